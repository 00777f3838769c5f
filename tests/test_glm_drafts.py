"""Drafts of the GLM: what they were changes no token, no sum and no byte that a stream keeps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.devices.glm import rank as glm_module
from kvtape.devices.glm.step import step_tables
from kvtape.events import facts as f
from kvtape.events.commands import Arrive
from kvtape.events.ids import Lane, RequestId

from .cpu_rig import ids
from .glm_memory import Playing, Schedule, differing, held
from .glm_rig import GlmRig, glm_device, glm_tokens
from .glm_watched import (
    VOCAB,
    assert_same,
    faults,
    replies,
    serve,
    undrafted,
    wishes,
    with_drafter,
    wrong,
)

TOKENS = glm_tokens()


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


def test_drafts_are_drawn_after_the_last_row_and_from_rows_on_own_pages() -> None:
    """None behind a piece of a prompt; after row 61, three: a fourth would follow from row 64."""
    with GlmRig(drafts=4) as rig:
        stream, facts = rig.begin(TOKENS[:62], draft=True)
        counts = rig.device.memory.draft_counts
        facts += rig.lease(stream, 62)
        rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=40))
        assert counts[stream] == 0
        rig.step(f.PromptStepRun(stream=stream, first=40, rows=22))
        assert rig.state.streams[stream].pages == 4 and counts[stream] == 3


@pytest.mark.parametrize(("world", "threads"), [(2, 1), (3, 1), (2, 2)])
def test_ranks_keep_the_same_windows(world: int, threads: int) -> None:
    """Own drafts and right ones in turn: each rank samples, accepts and rolls back by itself."""
    with GlmRig(world=world, threads=threads, drafts=4) as rig:
        stream, facts = rig.begin(TOKENS[:61], draft=True)
        facts += [*rig.lease(stream, 66), f.PromptStepRun(stream=stream, first=0, rows=61)]
        reply: list[int] = []
        turn = 0
        while len(reply) < 15:
            reports = rig.step(*facts)
            new = reports[0].tokens
            assert all(report.tokens == new and not report.flagged for report in reports)
            reply += new
            at = 61 + len(reply)
            for device in rig.devices if turn % 2 else ():
                device.memory.drafts[stream] = [*TOKENS[at : at + turn % 4], 5, 5, 5, 5][:4]
                device.memory.draft_counts[stream] = 4
            turn += 1
            facts = [
                f.RowsKept(streams=(stream,), starts=(0, len(new)), tokens=ids(new)),
                *rig.lease(stream, at + 4),
                f.RoundRun(lanes=(Lane(stream),)),
            ]
        assert reply == TOKENS[61 : 61 + len(reply)] and turn < len(reply)
        ranks = zip(rig.devices, rig.states, strict=True)
        first, *others = [held(device, state, stream) for device, state in ranks]
        for other in others:  # states and rings are of other heads
            assert not set(differing(first, other)) - {"states", "conv"}


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
