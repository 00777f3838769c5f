"""A request trace through the machine: what it finds, that it repeats, and what it refuses."""

import json
from pathlib import Path

import pytest

from kvtape.core.evict import POLICIES
from kvtape.events.export import export
from kvtape.events.reader import Tape
from kvtape.events.tape import TapeWriter
from kvtape.replay.simulate import SimulateOptions, simulate
from kvtape.replay.simulate_audit import audit_simulated
from kvtape.replay.simulate_command import Shown, run_simulate
from kvtape.replay.simulate_pool import LruPool
from kvtape.replay.simulate_trace import TraceError, read_trace

from .small_trace import small_trace, talks_and_heaps


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("trace") / "small.jsonl")


def ideal(trace: Path) -> int:
    """Pages that a pool without an end would find: whole ones, all of whose ids came before."""
    seen: set[int] = set()
    found = 0
    for line in trace.read_text().splitlines():
        asked = json.loads(line)
        ids = asked["hash_ids"][: asked["input_length"] // 512]
        found += next((at for at, name in enumerate(ids) if name not in seen), len(ids))
        seen.update(ids)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_without_an_end_finds_all_that_there_is(trace: Path, policy: str) -> None:
    counts = simulate(read_trace(trace), SimulateOptions(4000, 1, policy, compare=True))
    assert counts.hits == ideal(trace) > 100
    assert counts.lru is not None and (counts.lru.hits, counts.lru.short) == (counts.hits, 0)
    assert not counts.dropped["reclaimed"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tape_of_a_small_pool_is_sound_and_the_same_twice(
    trace: Path, tmp_path: Path, policy: str
) -> None:
    asked, texts = read_trace(trace), []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.tape"
        counts = simulate(asked, SimulateOptions(60, 6, policy, path))
        assert counts.dropped["reclaimed"] > 10
        assert len(counts.waits_us) == len(asked) and max(counts.waits_us) > 0
        assert audit_simulated(path) == []
        with Tape.open(path) as tape:
            assert tape.opened.flags["evict"] == POLICIES[policy]
            assert tape.opened.flags["rounds_as_one"] == 1
            texts.append("\n".join(export(tape)))
    assert texts[0] == texts[1]


def test_odds_find_talks_between_heaps_that_age_alone_pushes_out(tmp_path: Path) -> None:
    """A talk comes back after 160 pages of heaps, in a pool of 120: by odds it is there."""
    asked = read_trace(talks_and_heaps(tmp_path / "talks.jsonl", rounds=10, talks=8, heap=20))
    hits = {
        policy: simulate(asked, SimulateOptions(120, 4, policy)).hits
        for policy in ("seeds", "lru", "odds")
    }
    assert hits == {"seeds": 0, "lru": 0, "odds": 572}
    assert simulate(asked, SimulateOptions(4000, 4, "lru")).hits == 576


def test_rounds_between_two_page_events_are_one(trace: Path) -> None:
    asked = read_trace(trace)
    counts = simulate(asked, SimulateOptions(4000, 1, "odds"))
    pages = sum(-(-(len(one.prompt) + one.reply) // 8) for one in asked)
    assert counts.steps < pages + 3 * len(asked) < sum(one.reply for one in asked) + pages


def test_the_plain_pool_gives_up_what_was_unused_longest_tail_first() -> None:
    pool = LruPool(6)
    for stream, names in enumerate(("abc", "xyz")):
        assert pool.begin(stream, names, 0) == 0
        pool.finish(stream)
    assert pool.begin(2, "abc", 0) == 3
    pool.finish(2)
    assert pool.begin(3, "q", 1) == 0  # z and y go
    assert (pool.begin(4, "xy", 0), pool.short) == (1, 0)
    assert (pool.begin(5, "abc", 0), pool.short) == (2, 1)  # all others are in use


LINE = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    "change",
    [
        {"hash_ids": [1]},
        {"hash_ids": [1, -2]},
        {"hash_ids": [1, 2**30]},
        {"input_length": 0},
        {"timestamp": "now"},
        {"output_length": -1},
    ],
)
def test_a_line_of_another_form_is_refused_by_its_number(
    tmp_path: Path, change: dict[str, object]
) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | change) + "\n")
    with pytest.raises(TraceError, match="line 2"):
        read_trace(path)
    assert run_simulate(path, SimulateOptions(100, 2, "odds"), Shown(as_json=True)) == 2
    assert run_simulate(path, SimulateOptions(100, 2, "odds"), Shown(1, as_json=True)) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "a request is a JSON object"),
        ("{}", "no timestamp"),
        (json.dumps(LINE | {"hash_ids": 7}), "hash_ids is no list"),
        ("", "Expecting value"),
    ],
)
def test_a_line_that_is_no_request_is_refused_in_words(
    tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + line + "\n")
    with pytest.raises(TraceError, match=f"line 2: {words}"):
        read_trace(path)


def test_a_request_larger_than_the_pool_is_refused_and_counted(trace: Path) -> None:
    counts = simulate(read_trace(trace), SimulateOptions(8, 4, "odds"))
    assert 0 < counts.refused < 120
    assert len(counts.waits_us) == 120 - counts.refused


def test_the_report_says_where_the_hits_are(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = SimulateOptions(60, 6, "odds", tmp_path / "run.tape", compare=True)
    assert run_simulate(trace, options, Shown(as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["audit"]["findings"] == []
    assert sum(one["hits"] for one in told["by_depth"].values()) == told["hits"] > 0
    assert sum(one["references"] for one in told["by_depth"].values()) == told["references"]
    assert all(leased + kept <= 60 for _, leased, kept in told["pages_over_time"])
    assert run_simulate(trace, SimulateOptions(60, 6, "lru"), Shown()) == 0
    shown = capsys.readouterr().out
    assert "order lru" in shown and "pages by streams" in shown


@pytest.mark.parametrize("kind", ["pages_leased", "state_dropped"])
def test_a_fact_that_does_not_fit_is_named_by_the_audit(
    trace: Path, tmp_path: Path, kind: str
) -> None:
    path, odd = tmp_path / "run.tape", tmp_path / "odd.tape"
    simulate(read_trace(trace), SimulateOptions(60, 6, "odds", path))
    with Tape.open(path) as tape, TapeWriter.create(odd, tape.opened) as writer:
        left = 3
        for step in tape.steps():
            facts = list(step.facts)
            at = next((at for at, one in enumerate(facts) if one.kind == kind), -1)
            if at >= 0 and left:
                left -= 1
                if not left:
                    del facts[at]
            facts = [one for one in facts if one.kind not in ("run_opened",)]
            writer.append(step.step, step.commands, facts)
    found = audit_simulated(odd)
    assert [one.kind for one in found] == ["state"]
