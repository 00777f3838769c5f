"""A prompt of nearly a million rows as the machine leases and steps it, beside other streams.

No device computes: replies are of one token after another, what a device would say of a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvtape.core.apply import apply
from kvtape.core.check import check
from kvtape.core.decide import decide
from kvtape.core.device import Report
from kvtape.core.kernels.glm_memory import GlmStep
from kvtape.core.outcome import commands_of
from kvtape.core.state import State, open_state
from kvtape.devices.glm.step import GlmBatch, batch_with_drafts, step_tables
from kvtape.events.commands import AnyCommand, Arrive
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import Rank, RequestId, SessionId, Token

LONG = "long"
PROMPT = 1_039_996
ROUNDS = 4  # steps after the prompt's last one


@dataclass(slots=True)
class Seen:
    """A step of the machine: the state after its facts, its batch and its tables."""

    state: State
    batch: GlmBatch
    tables: GlmStep


def wishes(vocab: int, others: int, prompt: int, reply: int) -> list[AnyCommand]:
    """The long prompt, and others that go on replying beside it."""
    ids = np.arange(prompt) * 7919 % vocab
    tokens = tuple(Token(one) for one in ids.tolist())
    long = Arrive(
        request=RequestId(LONG), session=SessionId(LONG), prompt=tokens, max_new=reply,
        ignore_eos=True,
    )  # fmt: skip
    return [
        long,
        *(
            Arrive(
                request=RequestId(f"short {i}"), session=SessionId(f"short {i}"),
                prompt=tokens[i + 1 : i + 401], max_new=100, ignore_eos=True,
            )
            for i in range(others)
        ),
    ]  # fmt: skip


def steps(opened: RunOpened, first: list[AnyCommand]) -> Iterator[Seen]:
    """Every step until the long prompt has a few tokens of its reply; then all are let go."""
    state, commands, after = open_state(opened), first, 0
    drafts = np.zeros((opened.lanes, max(1, opened.rules.drafts)), np.int64)
    counts = np.zeros(opened.lanes, np.int64)
    while after < ROUNDS:
        facts: list[AnyFact] = []
        for fact in decide(state, commands):
            apply(state, fact)
            facts.append(fact)
        batch = batch_with_drafts(state, facts, drafts, counts, every_row=False)
        tables = step_tables(state, batch, opened.rules.drafts, opened.pages + 1, 0)
        yield Seen(state, batch, tables)
        after += long_stream_has_tokens(state)
        commands = commands_of(opened.rules, [report_of(state, batch)], "")
    check(state)


def long_stream_has_tokens(state: State) -> bool:
    """Whether the long prompt's reply has begun."""
    stream = state.streams[state.requests[RequestId(LONG)]]
    return len(stream.tokens) > stream.prompt_tokens


def report_of(state: State, batch: GlmBatch) -> Report:
    """A token for each run that came to the last one known."""
    report = Report(Rank(0), state.step)
    for run, window in zip(batch.rows.runs, batch.windows, strict=True):
        if run.accepts:
            report.streams.append(run.stream)
            report.tokens.append(5)
            report.starts.append(len(report.tokens))
        if window:
            report.drafts[run.stream] = (run.rows - 1, 0)
    return report


def accounted(opened: RunOpened, seen: Seen) -> dict[str, int]:
    """Checks a step's pages and tables, and counts: leased pages, rows of the long prompt."""
    state, page_rows = seen.state, opened.rules.page_rows
    leased = [page for one in state.streams.values() if one.lane >= 0 for page in state.table(one)]
    assert len(set(leased)) == len(leased), "two streams write one page"
    rows, tables = seen.batch.rows, seen.tables
    pages = tables.tables[rows.lanes, rows.positions // page_rows]
    assert np.array_equal(pages, rows.pages), "a row's page is not the table's"
    for run in rows.runs:
        stream = state.streams[run.stream]
        assert run.first + run.rows <= stream.pages * page_rows, f"{run} is past its pages"
    stream = state.streams[state.requests[RequestId(LONG)]]
    return {"leased": len(leased), "long": stream.pages, "rows": stream.rows}
