"""A machine driven by hand: facts applied to every rank's state and given to fake devices."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvtape.core.apply import apply
from kvtape.core.device import Pair, Report
from kvtape.core.digests import add_pairs
from kvtape.core.families.fake import Oracle, mix
from kvtape.core.kernels.digest import PARTS as KINDS
from kvtape.core.kernels.fake_memory import HEADS, LAYERS, POOL, RING
from kvtape.core.state import State, Stream, open_state
from kvtape.devices.fake import FakeDevice, fake_group
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import (
    NO_STATE,
    Lane,
    PageId,
    Rank,
    RequestId,
    SessionId,
    StateId,
    StreamId,
    Token,
)
from kvtape.events.records import Digests, FamilyRules, Sampling

SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


def opened(rules: FamilyRules, **other: Any) -> RunOpened:
    """The settings of a small run."""
    settings: dict[str, Any] = {
        "format": 1,
        "contract": 1,
        "weights": "none",
        "build": "",
        "model": "fake",
        "model_digest": "",
        "family": "fake",
        "rules": rules,
        "lanes": 4,
        "context": 160,
        "pages": 64,
        "prompt_rows": 64,
        "queue": 8,
        "states": 8,
        "order": "lowest",
        "plan": {},
        "world": 1,
        "devices": (),
        "flags": {},
        "poison": "off",
        "digests": "rows",
        "text": "ids",
    }
    return RunOpened(**settings | other)


def ids(tokens: Sequence[int]) -> tuple[Token, ...]:
    """Tokens as facts hold them."""
    return tuple(Token(token) for token in tokens)


class Hand:
    """Ranks in lockstep. Facts are applied at once and reach the devices with the next `launch`."""

    def __init__(self, run: RunOpened, broken: Sequence[str] = ()) -> None:
        self.run = run
        self.devices: list[FakeDevice] = fake_group(run, run.world, 20.0, frozenset(broken))
        self.states: list[State] = [open_state(run, leader=not rank) for rank in range(run.world)]
        self.facts: list[AnyFact] = []
        self.drawn: dict[StreamId, list[int]] = {}
        self._sums: dict[StreamId, list[dict[str, Pair]]] = {}

    @property
    def state(self) -> State:
        """Rank 0's state."""
        return self.states[0]

    def stream(self, stream: int) -> Stream:
        """A stream of rank 0's state."""
        return self.state.streams[StreamId(stream)]

    def do(self, *facts: AnyFact) -> None:
        """Make facts so."""
        for fact in facts:
            for state in self.states:
                apply(state, fact)
            self.facts.append(fact)

    def launch(self, *, every_row: bool = False) -> list[Report]:
        """Give the devices what was done since; their tokens are kept and the step is closed."""
        facts, self.facts = self.facts, []

        def one(rank: int) -> Report:
            device, state = self.devices[rank], self.states[rank]
            return device.launch(state, facts, every_row=every_row).report()

        with ThreadPoolExecutor(len(self.devices)) as pool:
            reports = list(pool.map(one, range(len(self.devices))))
        lead = reports[0]
        for stream in lead.sums:
            self._sums[stream] = [report.sums[stream] for report in reports]
        for i, stream in enumerate(lead.streams):
            tokens = lead.tokens[lead.starts[i] : lead.starts[i + 1]]
            self.drawn.setdefault(stream, []).extend(tokens)
        kept = f.RowsKept(
            streams=tuple(lead.streams), starts=tuple(lead.starts), tokens=ids(lead.tokens)
        )
        step = self.state.step
        self.do(kept, f.StepClosed(step=step, digests=Digests(), book="", flagged=()))
        return reports

    # --- facts by hand ---------------------------------------------------------------------------

    def arrive(self, prompt: Sequence[int], max_new: int = 16, **other: Any) -> StreamId:
        """A request and its stream, queued."""
        stream = StreamId(self.state.next_stream)
        settings: dict[str, Any] = {
            "history_tokens": 0,
            "sampling": Sampling(),
            "stop": (),
            "eos": (),
            "ignore_eos": False,
            "draft": True,
            "salt": "",
        }
        name = RequestId(str(stream))
        request = f.RequestArrived(
            request=name,
            session=SessionId(name),
            prompt=ids(prompt),
            max_new=max_new,
            **settings | other,
        )
        self.do(request, f.StreamQueued(stream=stream, request=name, choice=0))
        return stream

    def begin(
        self, stream: StreamId, state: StateId = NO_STATE, pages: Sequence[PageId] = ()
    ) -> None:
        """Seat the next stream in the first free lane, on a kept state's pages if there are."""
        lane = Lane(self.state.lanes.index(None))
        self.do(
            f.StreamBegun(
                stream=stream,
                lane=lane,
                kept_pages=len(pages),
                promise_pages=self.state.tables.shape[1] - len(pages),
                marks=(),
                owner=Rank(0),
                state=state,
            )
        )
        if pages:
            self.do(f.PagesAdopted(stream=stream, pages=tuple(pages)))

    def start(self, prompt: Sequence[int], max_new: int = 16, **other: Any) -> StreamId:
        """A stream in a lane, with nothing computed."""
        stream = self.arrive(prompt, max_new, **other)
        self.begin(stream)
        return stream

    def lease(self, stream: StreamId, rows: int) -> None:
        """Pages for so many rows."""
        missing = -(-rows // self.run.rules.page_rows) - self.stream(stream).pages
        if missing > 0:
            pages = self.state.book.next(missing)
            self.do(f.PagesLeased(stream=stream, first=self.stream(stream).pages, pages=pages))

    def prompt(self, stream: StreamId, rows: int) -> None:
        """So many rows of a prompt, in the next step."""
        first = self.stream(stream).rows
        self.lease(stream, first + rows)
        self.do(f.PromptStepRun(stream=stream, first=first, rows=rows))

    def round(self, *streams: StreamId) -> None:
        """A window of each stream, in the next step."""
        for stream in streams:
            self.lease(stream, self.stream(stream).rows + 1 + self.run.rules.drafts)
        self.do(f.RoundRun(lanes=tuple(self.stream(stream).lane for stream in streams)))

    def finish(self, stream: StreamId) -> None:
        """Let a stream go."""
        pages = tuple(self.state.table(self.stream(stream)))
        self.do(
            f.RequestFinished(
                stream=stream,
                request=self.stream(stream).request.request,
                reason="length",
                prompt_tokens=0,
                cached_tokens=0,
                new_tokens=0,
                token_sha="",
            ),
            f.PagesReturned(stream=stream, pages=pages),
            f.StreamReleased(stream=stream, lane=self.stream(stream).lane),
        )

    def keep(self, stream: StreamId) -> StateId:
        """Keep the rows of a stream as a state."""
        rows, state = self.stream(stream).rows, StateId(self.state.next_state)
        pages = tuple(self.state.table(self.stream(stream)))[: rows // self.run.rules.page_rows]
        self.do(
            f.SnapshotTaken(
                state=state, stream=stream, mark=rows, shared=True, pages=pages, digest={}
            )
        )
        return state

    def decode(self, *streams: StreamId) -> None:
        """Rounds until every stream's reply is complete."""
        while going := [one for one in streams if self._short(one)]:
            self.round(*going)
            self.launch()

    def _short(self, stream: StreamId) -> bool:
        return self.stream(stream).new_tokens < self.stream(stream).request.max_new

    # --- what is in memory -----------------------------------------------------------------------

    def share(self, rank: int, stream: StreamId) -> dict[str, Pair]:
        """A rank's last sums of a stream."""
        return self._sums[stream][rank]

    def sums(self, stream: StreamId) -> dict[str, Pair]:
        """A stream's last sums: of split parts over ranks, of replicated ones alike on all."""
        rules, whole = self.run.rules, {}
        for part in rules.parts:
            shares = [sums[part] for sums in self._sums[stream]]
            assert part in rules.split or len(set(shares)) == 1, f"ranks differ in {part}"
            whole[part] = add_pairs(*shares) if part in rules.split else shares[0]
        return whole

    def words(self, stream: StreamId, part: str, layer: int, position: int) -> dict[int, list[int]]:
        """The words of a row by head, from all ranks; a replicated part's are alike on all."""
        heads: dict[int, list[int]] = {}
        for device, state in zip(self.devices, self.states, strict=True):
            if not device.layers(part):
                continue
            for head, row in device.read(state, stream, part, layer, position).items():
                words = [int.from_bytes(row[i : i + 8], "little") for i in range(0, len(row), 8)]
                assert heads.setdefault(head, words) == words, f"ranks differ in {part}"
        return heads


def oracle_of(hand: Hand, stream: StreamId) -> Oracle:
    """The oracle of a stream, over its prompt and what it drew."""
    oracle = Oracle(hand.run.rules)
    seated = hand.stream(stream)
    oracle.extend([*seated.request.prompt, *hand.drawn.get(stream, [])])
    return oracle


def digest(part: str, layer: int, head: int, position: int, words: Sequence[int]) -> Pair:
    """The digest of a row's words, in whole numbers."""
    lanes = [0, 0]
    for column, word in enumerate(words):
        where = KINDS[part] << 56 | layer << 44 | head << 32 | column
        for lane, seed in enumerate(SEEDS):
            lanes[lane] += mix(word ^ mix(where ^ mix(position ^ seed)))
    return lanes[0] % 2**64, lanes[1] % 2**64


def oracle_sums(oracle: Oracle, rows: int, prompt: int) -> dict[str, Pair]:
    """The sums of a stream's first `rows` rows by part; its first `prompt` tokens were given."""
    pieces: dict[str, list[Pair]] = {part: [(0, 0)] for part in oracle.rules.parts}
    heads = range(HEADS if oracle.paged else 1)
    for p in range(rows):
        pieces["rows"] += [
            digest("rows", layer, head, p, oracle.rows[p][layer][head])
            for layer in range(LAYERS)
            for head in heads
        ]
        if p >= prompt - 1:
            logits = oracle.logits(p)
            row = [int(word) for word in logits.view("<u8")]
            pieces["logits"].append(digest("logits", 0, 0, p, row))
            token = oracle.sampler(logits, oracle.tokens[: p + 1])
            pieces["tokens"].append(digest("tokens", 0, 0, p + 1, [token]))
        if oracle.paged and (p + 1) % oracle.rules.mark_rows == 0:
            pieces["marks"] = [add_pairs(*pieces["rows"])]
        if not oracle.paged:
            following = oracle.sampler(oracle.logits(p), oracle.tokens[: p + 1])
            known = oracle.tokens[p + 1] if p + 1 < len(oracle.tokens) else following
            pieces["drafts"].append(digest("drafts", 0, 0, p, [oracle.draft_row(p, known)]))
            if p % POOL == POOL - 1:
                pieces["keys"].append(digest("keys", 0, 0, p, [oracle.keys[p]]))
    if not oracle.paged and rows:
        for head in range(HEADS):
            for layer in range(LAYERS):
                words = oracle.states[rows - 1][layer][head]
                pieces["states"].append(digest("states", layer, head, 0, words))
            for p in range(max(0, rows - RING), rows):
                pieces["rings"].append(digest("rings", 0, head, p, [oracle.rings[p][head]]))
    return {part: add_pairs(*pairs) for part, pairs in pieces.items()}


def check_memory(hand: Hand, stream: StreamId) -> None:
    """Every word of a stream in memory is the oracle's."""
    oracle, rows = oracle_of(hand, stream), hand.stream(stream).rows
    for p in range(rows):
        for layer in range(LAYERS):
            assert hand.words(stream, "rows", layer, p) == dict(enumerate(oracle.rows[p][layer]))
        if oracle.paged:
            continue
        assert hand.words(stream, "drafts", 0, p) == {0: [oracle.drafts[p]]}
        if p % POOL == POOL - 1:
            assert hand.words(stream, "keys", 0, p) == {0: [oracle.keys[p]]}
        if p >= rows - RING:
            rings = {head: [word] for head, word in enumerate(oracle.rings[p])}
            assert hand.words(stream, "rings", 0, p) == rings
    for layer in range(0 if oracle.paged else LAYERS):
        states = dict(enumerate(oracle.states[rows - 1][layer]))
        assert hand.words(stream, "states", layer, 0) == states


def check_stream(hand: Hand, stream: StreamId) -> None:
    """Tokens, memory and sums of a stream are the oracle's."""
    request = hand.stream(stream).request
    oracle = Oracle(hand.run.rules)
    oracle.extend(request.prompt)
    assert oracle.reply(len(hand.drawn[stream])) == hand.drawn[stream]
    check_memory(hand, stream)
    rows, prompt = hand.stream(stream).rows, len(request.prompt)
    assert hand.sums(stream) == oracle_sums(oracle, rows, prompt)
