"""Drafts of the GLM: what they were changes no token, no sum and no byte that a stream keeps."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.devices.glm import device as glm_module
from kvtape.devices.glm.arena import RingSizes
from kvtape.devices.glm.group import glm_group
from kvtape.devices.glm.layout import GlmOp
from kvtape.devices.glm.step import step_tables
from kvtape.events import facts as f
from kvtape.events.commands import AnyCommand, Arrive
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId
from kvtape.events.records import Sampling
from kvtape.replay.opening import settings_of

from .glm_memory import Drafter, Forgetful, Held, Playing, Schedule, differing, held
from .glm_rig import GlmRig, glm_device, glm_opened, glm_tokens, tiny_glm
from .rig import Rig, arrive

TOKENS = glm_tokens()
VOCAB = 512
Make = Callable[[RunOpened], Any]
Seen = dict[tuple[str, int], Held]  # by request and kept rows


def bits(value: float) -> int:
    """A float32's pattern."""
    return int(np.float32(value).view(np.uint32))


HOT = Sampling(temperature_bits=bits(1.0), top_k=40, seed=5)
WARM = Sampling(temperature_bits=bits(0.8), top_p_bits=bits(0.9), seed=-7, bias=((9, bits(2.0)),))
HEAVY = Sampling(temperature_bits=bits(1.0), repetition_bits=bits(1.3), seed=2)
RARE = Sampling(presence_bits=bits(1.5), frequency_bits=bits(0.5))


def some(seed: int, rows: int) -> list[int]:
    """Random ids that end no reply."""
    found: list[int] = np.random.default_rng(seed).integers(6, VOCAB, rows).tolist()
    return found


def wishes(draft: bool = True) -> list[Arrive]:
    """Requests of every kind, over page edges at 16, 32, 48, 64; `d` never wants drafts."""
    return [
        arrive("a", TOKENS[:61], 20, draft=draft),
        arrive("b", TOKENS[:33], 25, draft=draft, sampling=HOT),
        arrive("c", some(3, 50), 18, draft=draft),
        arrive("d", some(4, 17), 23, draft=False),
        arrive("e", some(5, 1), 30, draft=draft, sampling=WARM),
        arrive("f", some(6, 14), 7, draft=draft, sampling=HEAVY),
        arrive("g", some(7, 30), 9, draft=draft, sampling=RARE),
        arrive("h", some(8, 29), 1, draft=draft),
    ]


class Watched(Rig):
    """A rig that looks after every step at what each seated stream holds."""

    def __init__(self, opened: RunOpened, make: Make) -> None:
        super().__init__(opened, make=make)
        self.seen: Seen = {}
        self.sums: dict[str, dict[str, str]] = {}
        self.windows = 0

    def step(self, *wishes: AnyCommand) -> tuple[Any, ...]:
        """A turn; kept are the memory and the sums behind each request's kept rows."""
        facts = super().step(*wishes)
        for stream in self.state.streams.values():
            totals = self.device.ledger.streams.get(stream.stream)
            if totals and totals.rows >= stream.prompt_tokens:
                known = stream.request.request, totals.rows
                self.seen[known] = held(self.device, self.state, stream.stream)
        for fact in facts:
            if fact.kind == "step_closed":
                for at, stream_id in enumerate(fact.digests.streams):
                    request = self._requests[stream_id]
                    self.sums[request] = {p: v[at] for p, v in fact.digests.parts.items()}
            self.windows += len(fact.lanes) if fact.kind == "round_run" else 0
        return facts


def serve(asked: list[Arrive], drafts: int, make: Make = glm_device, **opened: Any) -> Watched:
    """Two requests, then the others while these are being answered, to the end."""
    rig = Watched(glm_opened(drafts, lanes=8, pages=60, prompt_rows=40, **opened), make)
    rig.step(*asked[:2])
    rig.step()
    rig.step(*asked[2:])
    rig.settle()
    rig.device.close()
    return rig


def with_drafter(drafter: Drafter) -> Make:
    """A device whose drafts this says."""
    return lambda opened: Playing(glm_device(opened), drafter)


_KNOWN: dict[str, Watched] = {}


def undrafted() -> Watched:
    """The same requests without a draft, on a device that has a drafter."""
    if "one" not in _KNOWN:
        _KNOWN["one"] = serve(wishes(draft=False), 4)
    return _KNOWN["one"]


def replies() -> Mapping[str, list[int]]:
    """What undrafted requests are answered, by request."""
    return {str(request): reply for request, reply in undrafted().replies.items()}


def faults(rig: Watched, want: Watched) -> set[str]:
    """The parts of memory that are not, at some kept row, what the other run held there."""
    shared = rig.seen.keys() & want.seen.keys()
    return {part for known in shared for part in differing(rig.seen[known], want.seen[known])}


def assert_same(rig: Watched, want: Watched) -> None:
    """Replies, sums and memory after each round."""
    assert rig.replies == want.replies
    assert {r: end.reason for r, end in rig.finished.items()} == {
        r: end.reason for r, end in want.finished.items()
    }
    assert rig.sums == want.sums
    assert rig.seen.keys() <= want.seen.keys()
    assert faults(rig, want) == set()


def wrong(stream: Any) -> list[int]:
    """Drafts that are never right: no reply here holds id 5, and `assert_same` would see it."""
    del stream
    return [5, 5, 5, 5]


def test_a_device_without_a_drafter_answers_the_same() -> None:
    plain = serve(wishes(), 0)
    assert plain.replies == undrafted().replies
    shared = {part for sums in plain.sums.values() for part in sums}
    for request, sums in undrafted().sums.items():
        assert {part: sums[part] for part in shared} == plain.sums[request]
    assert not faults(plain, undrafted()) - {"draft rows", "draft keys", "draft index"}


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_the_models_own_drafts_change_nothing(drafts: int) -> None:
    assert_same(serve(wishes(), drafts), undrafted())


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_drafts_that_are_always_wrong_change_nothing(drafts: int) -> None:
    rig = serve(wishes(), drafts, with_drafter(lambda stream: wrong(stream)[:drafts]))
    assert not any(5 in reply for reply in rig.replies.values())
    assert rig.windows == undrafted().windows  # nothing was won
    assert_same(rig, undrafted())


def test_drafts_that_are_always_right_save_rounds() -> None:
    rig = serve(wishes(), 4, with_drafter(Schedule(replies(), [(4, 4)], VOCAB)))
    assert_same(rig, undrafted())
    drafted = sum(len(undrafted().replies[RequestId(r)]) for r in "abce")
    plain = sum(len(undrafted().replies[RequestId(r)]) for r in "dfgh")
    assert rig.windows <= drafted / 5 + 4 + plain  # windows of five rows where drafts are wanted


def test_tokens_that_end_no_reply_end_no_window() -> None:
    """`ignore_eos` with every token of the reply as an end: as many rounds as without ends."""
    rounds = []
    for eos in (False, True):
        asked = [
            wish.model_copy(update={"eos": tuple(set(replies()[wish.request])) if eos else ()})
            for wish in wishes()
        ]
        asked = [wish.model_copy(update={"ignore_eos": True}) for wish in asked]
        rig = serve(asked, 4, with_drafter(Schedule(replies(), [(4, 4)], VOCAB)))
        assert rig.replies == undrafted().replies
        rounds.append(rig.windows)
    assert rounds[0] == rounds[1]


def test_a_window_is_no_longer_than_the_pages_hold() -> None:
    """Four right drafts after row 61 with pages up to row 63: three rows are run."""
    with GlmRig(drafts=4) as rig:
        stream, facts = rig.begin(TOKENS[:61], draft=True)
        facts += rig.lease(stream, 61)
        rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=61))
        rig.device.memory.drafts[stream] = TOKENS[62:66]
        rig.device.memory.draft_counts[stream] = 4
        report = rig.step(*rig.draw(stream, TOKENS[61]))[0]
        assert rig.state.streams[stream].pages == 4
        assert report.tokens == TOKENS[62:65]


@settings(max_examples=6)
@given(
    drafts=st.sampled_from([1, 2, 4]),
    turns=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9),
    opened=st.fixed_dictionaries(
        {"poison": st.sampled_from(["off", "a", "b"]), "order": st.sampled_from(["lowest", "lifo"])}
    ),
)
def test_drafts_that_are_right_for_a_while_change_nothing(
    drafts: int, turns: list[tuple[int, int]], opened: dict[str, str]
) -> None:
    turns = [(right, min(count, drafts)) for right, count in turns]
    drafter = Schedule(replies(), turns, VOCAB)
    assert_same(serve(wishes(), drafts, with_drafter(drafter), **opened), undrafted())


@settings(max_examples=6)
@given(st.data())
def test_a_reply_ends_inside_a_window_where_it_would_end(data: st.DataObject) -> None:
    """By one of its tokens, or by its length; right drafts past the end are not kept."""
    cut: list[Arrive] = []
    for wish in wishes():
        reply = replies()[wish.request]
        new = data.draw(st.integers(1, len(reply)))
        ends = data.draw(st.sampled_from([(), (reply[new - 1],), (reply[new // 2], 3)]))
        more = {"max_new": new, "eos": ends, "ignore_eos": data.draw(st.booleans())}
        cut.append(wish.model_copy(update=more))
    want = serve([wish.model_copy(update={"draft": False}) for wish in cut], 4)
    right = [(data.draw(st.integers(1, 4)), 4)]
    drafter = Schedule(replies(), right, VOCAB)
    assert_same(serve(cut, 4, with_drafter(drafter)), want)


def test_what_is_kept_is_what_a_prompt_over_the_same_tokens_leaves() -> None:
    """Greedy, so that the drafter's last row has the same token after it."""
    rig = serve(wishes(), 4, with_drafter(Schedule(replies(), [(2, 4), (0, 4), (4, 4)], VOCAB)))
    compared = 0
    for (request, rows), memory in rig.seen.items():
        if request not in ("a", "c") or rows % 3 == 0:
            continue
        wish = rig.arrived[RequestId(request)]
        tokens = [*wish.prompt, *rig.replies[RequestId(request)]][:rows]
        with GlmRig(drafts=4, prompt_rows=96) as fresh:
            stream, _, _ = fresh.run(tokens, 64)
            assert differing(memory, held(fresh.device, fresh.state, stream)) == []
        compared += 1
    assert compared >= 6


def test_rows_past_a_streams_pages_are_nobodys() -> None:
    """Drafting rows leave the leased pages; with other streams' rows there, it would be seen."""
    pages: list[int] = []

    class Spying(Playing):
        def close(self) -> None:
            memory = self.inner.memory
            pages.extend(np.flatnonzero(memory.latent.any(axis=(0, 2, 3))).tolist())
            self.inner.close()

    right = Schedule(replies(), [(4, 4)], VOCAB)
    rig = serve(wishes(), 4, lambda opened: Spying(glm_device(opened), right))
    assert_same(rig, undrafted())
    spare, for_reads = rig.opened.pages + 1, rig.opened.pages
    assert spare in pages and for_reads not in pages


def test_a_spare_page_that_is_somebodys_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        glm_module, "step_tables", lambda s, b, d, _, side: step_tables(s, b, d, 0, side)
    )
    rig = serve(wishes(), 4, with_drafter(Schedule(replies(), [(4, 4)], VOCAB)))
    assert faults(rig, undrafted()) & {"rows", "keys", "draft rows", "draft keys"}


# --- what each part of a rollback is for ----------------------------------------------------------

MOSTLY = [(0, 4), (1, 4), (0, 4), (2, 4)]


def with_rings(rings: RingSizes) -> Make:
    """A device with rings of other sizes, and drafts of which most are wrong."""

    def make(opened: RunOpened) -> Any:
        family = Glm(tiny_glm().config, Choices(opened.rules.page_rows, 0, opened.rules.drafts))
        device = glm_group(
            tiny_glm(), family, settings_of(opened), world=1, threads=1, spins=0,
            progress=lambda done, total: None, rings=rings,
        )[0]  # fmt: skip
        return Playing(device, Schedule(replies(), MOSTLY, VOCAB))

    return make


def with_ops(change: Callable[[list[Any]], list[Any]]) -> Make:
    """A device whose program's ops were changed, and drafts of which most are wrong."""

    def make(opened: RunOpened) -> Any:
        device = glm_device(opened)
        ops = device.memory.ops
        ops[:] = np.array(change(list(ops.copy())))
        return Playing(device, Schedule(replies(), MOSTLY, VOCAB))

    return make


def late_acceptance(ops: list[Any]) -> list[Any]:
    """Rows are accepted after the drafter took the token behind each row, not before."""
    accept = next(at for at, op in enumerate(ops) if op[0] == GlmOp.ACCEPT)
    after = next(at for at, op in enumerate(ops) if op[0] == GlmOp.NEXT)
    return [*ops[:accept], *ops[accept + 1 : after + 1], ops[accept], *ops[after + 1 :]]


def forgetful(part: str, cache: int) -> Make:
    """A device that does not write a row or a key again where a refused one stands."""
    drafter = Schedule(replies(), MOSTLY, VOCAB)
    return lambda opened: Forgetful(glm_device(opened), drafter, part, cache)


ENOUGH = RingSizes(states=5, conv=7, index=8)


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda: with_rings(RingSizes(1, 7, 8)), "states"),
        (lambda: with_rings(RingSizes(5, 3, 8)), "conv"),
        (lambda: with_rings(RingSizes(5, 7, 4)), "index"),
        (lambda: with_rings(RingSizes(5, 7, 4)), "draft index"),
        (lambda: with_ops(late_acceptance), "draft rows"),
        (lambda: forgetful("rows", 2), "draft rows"),
        (lambda: forgetful("keys", 2), "draft keys"),
        (lambda: forgetful("keys", 0), "keys"),
        (lambda: forgetful("rows", 1), "rows"),
    ],
    ids=[
        "one state", "a conv ring of the taps", "an index ring of a pool",
        "the drafter's index ring", "drafts instead of true tokens", "drafted rows stay",
        "drafted keys stay", "refused keys stay", "refused rows stay",
    ],
)  # fmt: skip
def test_each_part_that_is_not_rolled_back_is_seen(make: Callable[[], Make], first: str) -> None:
    rig = serve(wishes(), 4, make())
    assert first in faults(rig, undrafted())


def test_the_same_drafts_are_sound_where_nothing_is_taken_out() -> None:
    """So that what the mutants show is what was taken out of them."""
    assert_same(serve(wishes(), 4, with_rings(ENOUGH)), undrafted())
    assert_same(serve(wishes(), 4, with_ops(list)), undrafted())


def test_only_who_may_be_drafted_for_is() -> None:
    """`draft: false` and penalties draw no drafts; the others as many as the run has."""
    counts: dict[str, set[int]] = {}

    class Counting(Playing):
        def launch(self, state: Any, facts: Any, **more: Any) -> Any:
            for stream in state.streams.values():
                if len(stream.tokens) > stream.prompt_tokens:
                    count = int(self.inner.memory.draft_counts[stream.lane])
                    counts.setdefault(stream.request.request, set()).add(count)
            return super().launch(state, facts, **more)

    serve(wishes(), 4, lambda opened: Counting(glm_device(opened)))
    assert {request: max(found) for request, found in counts.items()} == {
        "a": 4, "b": 4, "c": 4, "d": 0, "e": 4, "f": 0, "g": 0,
    }  # fmt: skip
