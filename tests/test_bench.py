"""The benchmark: its statistics, its watch over the machine, its peers, its control plane."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import comb
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.devices.fake import fake_group
from kvtape.events.reader import Tape
from kvtape.replay import bench, bench_book, bench_peer, bench_quiet, bench_replay, bench_rounds
from kvtape.replay.bench_engine import Engine, NoReply
from kvtape.replay.bench_figures import Bar, Figure, number, ratio, sure_range
from kvtape.replay.bench_quiet import Quiet, Ticks, share_of_others
from kvtape.replay.bench_rounds import Part, interleaved
from kvtape.replay.bench_server import resident_bytes
from kvtape.replay.bench_speed import PeerMissing, PeerProcess
from kvtape.replay.book import rebook
from kvtape.replay.difference import Comparison, Difference
from kvtape.replay.machine import Machine
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import Played

from .replay_bench import opening
from .small_trace import small_trace

FLOATS = st.floats(0.01, 1e6)


def chance_outside(cut: int, count: int) -> float:
    """That the median of a distribution lies below the cut-th or above its mirror of n draws."""
    below = sum(comb(count, at) for at in range(cut + 1))
    return 2 * below / float(2**count)


@given(st.lists(FLOATS, min_size=1, max_size=60))
def test_the_sure_range_is_the_tightest_that_is_sure_enough(values: list[float]) -> None:
    ordered = sorted(values)
    count = len(values)
    sure = [cut for cut in range(count // 2) if chance_outside(cut, count) <= 0.05]
    found = sure_range(values)
    assert (found is None) == (not sure)
    if found is not None:
        cut = max(sure)
        assert found == (ordered[cut], ordered[count - 1 - cut])
        assert found[0] <= median(values) <= found[1]


def test_five_rounds_are_never_sure_and_six_are() -> None:
    assert sure_range([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert sure_range([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)
    assert sure_range([float(at) for at in range(16)]) == (3.0, 12.0)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20), FLOATS)
def test_a_ratio_pairs_what_was_measured_in_one_round(
    pairs: list[tuple[float, float]], limit: float
) -> None:
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = ratio("ours", ours, theirs, Bar(limit))
    assert found.values == tuple(mine / other for mine, other in pairs)
    assert found.met == (median(found.values) >= limit)
    assert ratio("ours", ours, theirs).met is None


def test_pairs_of_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter than"):
        ratio("ours", [1.0, 2.0], [1.0])


def test_a_bar_holds_on_its_own_side() -> None:
    assert Bar(2.0).met(2.0) and not Bar(2.0).met(1.9)
    assert Bar(2.0, at_least=False).met(2.0) and not Bar(2.0, at_least=False).met(2.1)
    assert [str(Bar(2500.0)), str(Bar(0.7, at_least=False))] == [">= 2,500", "<= 0.7"]
    assert [number(value) for value in (0, 0.01234, 7.0, 99.96, 12345.6)] == [
        "0", "0.0123", "7", "100", "12,346",
    ]  # fmt: skip


# --- the watch ------------------------------------------------------------------------------------


def test_others_are_what_is_neither_idle_nor_ours() -> None:
    before = Ticks(busy=10.0, stolen=1.0, ours=4.0, cores=100.0)
    after = Ticks(busy=13.0, stolen=1.5, ours=5.0, cores=104.0)  # two seconds of two cores
    assert share_of_others(before, after, 2) == pytest.approx((2.0 + 0.5) / 2)
    assert share_of_others(before, before, 2) == 0.0
    assert Quiet(0.3).busy and not Quiet(0.1).busy and not Quiet(None).busy


def test_ours_are_this_process_and_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    lines = {  # pid: name, parent, ticks of user, system, ended children's user and system
        own: ("us", 1, 10, 2, 100, 20),
        own + 1: ("a child (with) brackets", own, 30, 4, 0, 0),
        own + 2: ("its child", own + 1, 50, 6, 0, 0),
        1: ("init", 0, 7000, 8, 0, 0),
        own + 3: ("another", 1, 900, 9, 0, 0),
    }
    for pid, (name, parent, *spent) in lines.items():
        (tmp_path / str(pid)).mkdir()
        fields = ["S", parent, *[0] * 9, *spent, *[0] * 20]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) " + " ".join(map(str, fields)))
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 50 6 7 80 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(bench_quiet, "PROC", tmp_path)
    monkeypatch.setattr(bench_quiet, "TICK", 1)
    assert bench_quiet.ticks() == Ticks(busy=163.0, stolen=80.0, ours=222.0, cores=4293.0)


def test_without_proc_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_quiet, "PROC", tmp_path / "none")
    with bench_quiet.watched() as quiet:
        pass
    assert quiet == Quiet(None)


def rounds_of(
    shares: list[float], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, dict[str, tuple[float, ...]], Part]:
    """Who was asked, the values and the part of rounds of two while others took these shares."""
    asked: list[str] = []
    taken = iter(shares)

    @contextmanager
    def watched() -> Iterator[Quiet]:
        yield Quiet(next(taken))

    def task(name: str) -> float:
        asked.append(name)
        return float(len(asked))

    monkeypatch.setattr(bench_rounds, "settle", lambda: None)
    monkeypatch.setattr(bench_rounds, "watched", watched)
    part = Part("speed")
    tasks = {name: partial(task, name) for name in "ab"}
    values = interleaved(part, tasks, rounds, lambda line: None)
    return "".join(asked), values, part


def test_rounds_go_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, values, part = rounds_of([0.0] * 6, 3, monkeypatch)
    assert asked == "abbaab" and values == {"a": (1.0, 4.0, 5.0), "b": (2.0, 3.0, 6.0)}
    assert part.busy == 0 and len(part.quiet) == 6 and not part.notes


def test_a_busy_round_is_measured_again_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, values, part = rounds_of([0.0, 0.0, 0.0, 0.9, 0.0, 0.0], 2, monkeypatch)
    assert asked == "abbaab" and values == {"a": (1.0, 5.0), "b": (2.0, 6.0)}
    assert part.busy == 0 and len(part.quiet) == 4
    assert part.notes == ["1 of 3 rounds left out, others worked"]


def test_a_machine_that_never_rests_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, values, part = rounds_of([0.9, 0.0] * 4 + [0.0] * 2 + [0.9] * 2, 3, monkeypatch)
    assert asked == "abba" * 3 and len(values["a"]) == 6  # one quiet round in six says little
    assert part.busy == 6 and len(part.quiet) == 12 and not part.notes


# --- peers ----------------------------------------------------------------------------------------

FAKE_PEER = """
import sys
print("whatever a library prints", flush=True)
class CommonParams:
    def __init__(self):
        self.model = self.cpuparams = self
class Server:
    def __init__(self, params):
        assert params.n_threads == 2 and params.path.endswith("model.gguf")
    def handle_completions(self, asked):
        print("more of it")
        count, prompt = asked["max_tokens"], len(asked["prompt"])
        return {"timings": {"predicted_n": count, "predicted_ms": 100.0 * (count - 1),
                            "prompt_n": prompt, "prompt_ms": 10.0 * prompt}}
"""


def install(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the peer's name, where every new interpreter finds it first."""
    (folder / "xllamacpp.py").write_text(source)
    about = folder / "xllamacpp-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: xllamacpp\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_peer_answers_on_its_pipes_whatever_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, FAKE_PEER, monkeypatch)
    peer = PeerProcess("llama.cpp", sys.executable, tmp_path / "model.gguf")
    try:
        assert peer.version == "xllamacpp 9.9"
        assert peer.rate("decode", [1, 2, 3], 11) == pytest.approx(10.0)  # the first does not count
        assert peer.rate("prompt", [1, 2, 3, 4]) == pytest.approx(100.0)
    finally:
        peer.close()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise ImportError(name='xllamacpp')", "xllamacpp is not installed: pip install"),
        ("raise SystemExit(7)", "its process ended with 7"),
    ],
)
def test_a_peer_that_is_not_there_is_left_out_and_says_why(
    source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, source, monkeypatch)
    with pytest.raises(PeerMissing, match=why):
        PeerProcess("llama.cpp", sys.executable, tmp_path / "model.gguf")


def test_a_peer_knows_nothing_of_us() -> None:
    source = Path(bench_peer.__file__).read_text()
    assert "from ." not in source and "import kvtape" not in source


# --- our side -------------------------------------------------------------------------------------


def test_an_engine_says_when_each_reply_began_and_ended() -> None:
    opened = opening("paged")
    engine = Engine(opened, fake_group(opened, 1))
    try:
        asked = engine.ask(range(9), 12)
        assert (asked.prompt_tokens, asked.tokens) == (9, 12)
        assert 0 < asked.first <= asked.last
        with pytest.raises(NoReply, match="context_length_exceeded"):
            engine.ask(range(9), 1000)
        assert engine.ask(range(9), 1).tokens == 1  # the run goes on
    finally:
        engine.close()


def test_the_control_plane_plays_as_many_rounds_as_it_says(tmp_path: Path) -> None:
    clocks = bench_book.Clocks()
    ran = bench_book.play(tmp_path, 50, clocks)
    assert ran.rounds == 50 and 0 < ran.stream_steps <= 50 * bench_book.LANES
    assert set(clocks.spent) == {"decide and apply", "device", "encode and tape", "outcome"}
    assert min(clocks.spent.values()) > 0 and ran.worked > 0 and ran.rate > 0
    (path,) = tmp_path.glob("*.tape")
    with Tape.open(path) as tape:
        again = rebook(tape.opened, tape.steps())
        rounds = [fact for step in tape.steps() for fact in step.facts if fact.kind == "round_run"]
    assert again.first is None and len(rounds) == 50
    assert sum(len(fact.lanes) for fact in rounds) == ran.stream_steps


def test_the_control_plane_can_do_without_a_tape(tmp_path: Path) -> None:
    assert bench_book.play(None, 20).rounds == 20
    assert not list(tmp_path.iterdir())


def test_a_replay_that_differs_has_no_time() -> None:
    found = Comparison(first=Difference(3, 9, "rows"))
    opened = opening("paged")
    with (
        Machine(opened, lambda opened: fake_group(opened, 1)) as machine,
        pytest.raises(bench_replay.Differed, match="rows"),
    ):
        bench_replay._timed(
            lambda machine, recording: Played(1, 1, found), machine, Recording.of(opened, [])
        )


def test_a_process_says_what_it_holds() -> None:
    whole, own = (resident_bytes(os.getpid(), kind) for kind in ("VmRSS", "RssAnon"))
    assert 0 < own <= whole


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_one_json_of_every_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_book, "ROUNDS", 20)
    trace = str(small_trace(tmp_path / "small.jsonl"))
    words = ["bench", "book", "--rounds", "2", "--trace", trace, "--pages", "60", "--live", "4"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert {"date", "build", "machine", "load"} <= set(told["machine"])
    part, pages = told["parts"]
    figures = {figure["name"]: figure for figure in part["figures"]}
    assert len(figures["rounds, tape"]["rounds"]) == 2
    assert figures["rounds, tape"]["bar"] == ">= 2,500"
    assert part["measurements"] == 4 and len(part["others_share"]) == 4
    bars = [figure["bar"] for figure in pages["figures"]]
    assert bars == [">= 3,000,000", ">= 300,000", None, None, None]
    assert pages["measurements"] == 10 and all(min(one["rounds"]) > 0 for one in pages["figures"])


def test_the_table_names_every_figure_and_marks_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Part("memory", [Figure("resident", (3.0,), "MiB", Bar(2.0, at_least=False))])
    part.quiet = [Quiet(0.1), Quiet(1.5)]
    monkeypatch.setattr(bench, "PARTS", {"memory": (1, lambda rounds, python, say: part)})
    assert bench.run_bench("memory", 0, "", as_json=False) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("resident", "<= 2", "no", "busy", "1 of 2", "1.5 cores"))


def test_an_unknown_part_is_wrong_use() -> None:
    done = CliRunner().invoke(app, ["bench", "everything"])
    assert done.exit_code == 2 and "recording" in done.output
