"""Commands and facts for the tests of the tape: strategies for every kind, and a short run."""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.records import Digests, FamilyRules, Large, Record

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=12)
SUM = st.one_of(st.just(""), st.text("0123456789abcdef", min_size=32, max_size=32))


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a record's field may have."""
    origin, parts = get_origin(kind), get_args(kind)
    if hasattr(kind, "__supertype__"):
        return of_type(kind.__supertype__)
    if origin is Annotated:
        return SUM if parts[0] is str else of_type(parts[0])
    if origin is Literal:
        return st.just(parts[0])
    if origin in (dict, Mapping):
        return st.dictionaries(TEXT, of_type(parts[1]), max_size=3)
    if origin is tuple and parts[-1] is Ellipsis:
        return st.lists(of_type(parts[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, parts))
    if isinstance(kind, type) and issubclass(kind, Record):
        return of_record(kind)
    return {int: INT64, str: TEXT, bool: st.booleans()}[kind]


def of_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    """Values of one field, its marks heeded."""
    if any(isinstance(mark, Large) for mark in field.metadata):
        return st.lists(INT32, max_size=6).map(tuple)
    if field.annotation is str and field.metadata:
        return SUM
    return of_type(field.annotation)


def of_record(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Records of one kind."""
    return st.builds(kind, **{name: of_field(field) for name, field in kind.model_fields.items()})


def kinds(union: UnionType) -> list[type[Record]]:
    """The record classes of a union, in order."""
    return list(get_args(union))


FACT_KINDS = kinds(f.AnyFact)
COMMAND_KINDS = kinds(c.AnyCommand)
LATER_FACTS = st.one_of(
    *(of_record(kind) for kind in FACT_KINDS if kind not in (f.RunOpened, f.RunClosed))
)
COMMANDS = st.one_of(*(of_record(kind) for kind in COMMAND_KINDS))

RULES = FamilyRules(
    page_rows=4,
    mark_rows=4,
    lookahead=0,
    drafts=0,
    snapshots=False,
    finish_marks=True,
    min_prompt=0,
    min_gap=0,
    vocab=512,
    parts=("rows", "logits", "tokens"),
    split=(),
)
OPENED = f.RunOpened(
    format=f.FORMAT,
    contract=1,
    weights="int16",
    build="0.1.0",
    model="fake",
    model_digest="",
    family="fake",
    rules=RULES,
    lanes=2,
    context=64,
    pages=32,
    prompt_rows=8,
    queue=4,
    states=4,
    order="lowest",
    plan={},
    world=1,
    devices=("fake",),
    flags={},
    poison="",
    digests="rows",
    text="ids",
)


Kind = TypeVar("Kind", bound=Record)


def made(kind: type[Kind], **fields: Any) -> Kind:
    """A record from plain integers and texts, which pydantic checks as it would in any place."""
    return kind(**fields)


def a_sum(number: int) -> str:
    """A sum that is told from others by its number."""
    return f"{number:032x}"


def sums(step: int, streams: tuple[int, ...]) -> Digests:
    """What streams sum to after a step, by part."""
    return made(
        Digests,
        streams=streams,
        parts={
            part: tuple(a_sum(1000 * step + 10 * stream + at) for stream in streams)
            for at, part in enumerate(("logits", "rows", "tokens"))
        },
    )


Turn = tuple[int, list[c.AnyCommand], list[f.AnyFact]]


def arrival(request: str, session: str, stream: int) -> tuple[c.AnyCommand, list[f.AnyFact]]:
    """A request that comes and is seated at once."""
    prompt = (1, 2, 3, 300 + stream)
    command = made(c.Arrive, request=request, session=session, prompt=prompt, max_new=4)
    asked = command.model_dump(exclude={"kind"})
    return command, [
        made(f.RequestArrived, **asked),
        made(f.StreamQueued, stream=stream, request=request, choice=0),
        made(
            f.StreamBegun,
            stream=stream,
            lane=stream,
            kept_pages=0,
            promise_pages=2,
            marks=(),
            owner=0,
            state=-1,
        ),
        made(f.PagesLeased, stream=stream, first=0, pages=(2 * stream, 2 * stream + 1)),
        made(f.PromptStepRun, stream=stream, first=0, rows=4),
    ]


def a_run(rounds: int = 3) -> list[Turn]:
    """Two sessions with a stream each, that keep one token a round and are then let go."""
    first, began = arrival("r0", "alice", 0)
    second, followed = arrival("r1", "bob", 1)
    turns: list[Turn] = [(0, [first, second], [*began, *followed])]
    for step in range(rounds):
        digests = sums(step, (0, 1))
        kept = {"streams": (0, 1), "starts": (0, 1, 2), "tokens": (step, step + 1)}
        done = made(c.DeviceDone, step=step, **kept, flagged=(), digests=digests, book=a_sum(step))
        turns.append(
            (
                step + 1,
                [done],
                [
                    made(f.RowsKept, **kept),
                    made(f.StepClosed, step=step, digests=digests, book=a_sum(step), flagged=()),
                    made(f.RoundRun, lanes=(0, 1)),
                ],
            )
        )
    turns.append((rounds + 1, [made(c.Cancel, request="r1", why="gone")], _ending()))
    return turns


def _ending() -> list[f.AnyFact]:
    facts: list[f.AnyFact] = [made(f.RequestCancelled, request="r1", why="gone")]
    for stream in (0, 1):
        facts += [
            made(
                f.RequestFinished,
                stream=stream,
                request=f"r{stream}",
                reason="length",
                prompt_tokens=4,
                cached_tokens=0,
                new_tokens=3,
                token_sha="",
            ),
            made(f.PagesReturned, stream=stream, pages=(2 * stream, 2 * stream + 1)),
            made(f.StreamReleased, stream=stream, lane=stream),
        ]
    return facts
