"""The GLM on CPU ranks: the contract's bits, however rows are cut, shared or placed."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtape.core.kernels.poison import poison_value
from kvtape.devices.glm.layout import GlmOp
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import Lane, StreamId
from kvtape.events.records import Sampling

from .glm_memory import Held, differing, held
from .glm_rig import PAGE, TINY, GlmRig, glm_device, glm_opened, glm_tokens, recorded
from .rig import Rig, arrive

TOKENS = glm_tokens()
EXACT = dict(np.load(TINY / "exact.npz"))
MTP = dict(np.load(TINY / "exact_mtp.npz"))
BITS: NDArray[np.uint32] = EXACT["logits"]
PROMPT, KPOOL, POOLS = 61, 4, 4  # of the recorded run; pools that a query reads at most
FORCED = int(np.float32(1000).view(np.uint32))


def same(have: NDArray[np.uint32], want: NDArray[np.uint32]) -> bool:
    return have.shape == want.shape and bool((have == want).all())


def exact() -> Held:
    """What the definition holds after the 81 tokens."""
    parts = {"rows": "latent", "keys": "keys", "states": "states", "conv": "rings"}
    return {part: EXACT[name] for part, name in parts.items()}


def joined(rig: GlmRig, stream: StreamId) -> Held:
    """What all ranks hold: heads side by side, after a look that the rest is the same on each."""
    ranks = [held(d, s, stream) for d, s in zip(rig.devices, rig.states, strict=True)]
    for other in ranks[1:]:
        assert not set(differing(ranks[0], other)) - {"states", "conv"}
    conv = [rank["conv"].reshape(*rank["conv"].shape[:2], 3, -1) for rank in ranks]
    whole = np.concatenate(conv, axis=-1)
    return ranks[0] | {
        "states": np.concatenate([rank["states"] for rank in ranks], axis=1),
        "conv": whole.reshape(*whole.shape[:2], -1),
    }


@pytest.mark.parametrize(
    ("chunk", "settings"),
    [
        (1, {}), (2, {"threads": 2}), (5, {"poison": "a"}), (7, {"order": "adversarial"}),
        (64, {"poison": "b", "threads": 2}), (81, {"order": "lifo"}), (13, {"page_rows": 8}),
        (40, {"page_rows": 160, "pages": 4}),  # a whole window as one page
        (20, {"drafts": 4}), (9, {"drafts": 1, "poison": "b", "threads": 2}),
    ],
)  # fmt: skip
def test_every_bit_is_the_definitions_however_rows_are_cut(
    chunk: int, settings: dict[str, Any]
) -> None:
    with GlmRig(prompt_rows=81, **settings) as rig:
        stream, logits, reports = rig.run(TOKENS, chunk)
        assert same(logits, BITS)
        memory = joined(rig, stream)
        assert differing(exact(), memory) == []
        for rows, keys in zip(memory["draft rows"], memory["draft keys"], strict=True):
            assert (rows[:80] == MTP["latent"]).all() and (keys == MTP["keys"]).all()
        assert not any(report.flagged or report.poisoned for report in reports)


@pytest.mark.parametrize(
    ("world", "threads", "drafts"), [(1, 2, 0), (2, 1, 0), (2, 2, 1), (3, 1, 0), (4, 1, 2)]
)
def test_ranks_and_threads_do_not_change_bits(world: int, threads: int, drafts: int) -> None:
    """A prompt in pieces, then rounds: every rank's logits, and what they hold together."""
    with GlmRig(world=world, threads=threads, drafts=drafts) as rig:
        stream, logits, _ = rig.run(TOKENS[:73], 17)
        assert same(logits, BITS[:73])
        for position in range(73, 81):
            rig.step(*rig.draw(stream, TOKENS[position]))
            for rank in range(world):
                assert same(rig.logits(stream, position, rank), BITS[position])
        assert differing(exact(), joined(rig, stream)) == []


@pytest.mark.parametrize("order", ["lifo", "fifo", "adversarial"])
def test_page_ids_and_what_stood_there_before_do_not_change_bits(order: str) -> None:
    """Another stream's rows lie in the same lane's rings and on pages nearby."""
    with GlmRig(order=order, drafts=1) as rig:
        rig.run(TOKENS[5:60], 8)
        stream, logits, _ = rig.run(TOKENS, 17)
        assert same(logits, BITS)
        assert differing(exact(), joined(rig, stream)) == []


def prompts() -> list[list[int]]:
    """Eight streams that share nothing, of every length around pools and pages."""
    rng = np.random.default_rng(5)
    return [rng.integers(0, 512, n).tolist() for n in (60, 1, 33, 2, 64, 31, 17, 4)]


@pytest.mark.parametrize(("world", "threads"), [(1, 1), (1, 2), (2, 1)])
def test_a_ragged_batch_computes_what_each_stream_computes_alone(world: int, threads: int) -> None:
    """Every step takes another number of rows of each stream, in another order."""
    rng = np.random.default_rng(11)
    with GlmRig() as rig:
        wanted = [rig.run(tokens, 64)[1] for tokens in prompts()]
        memory = [held(rig.device, rig.state, StreamId(at)) for at in range(8)]
    with GlmRig(world=world, threads=threads) as rig:
        begun = [rig.begin(tokens) for tokens in prompts()]
        facts: list[AnyFact] = [fact for _, seat in begun for fact in seat]
        done = [0] * 8
        while any(at < len(tokens) for at, tokens in zip(done, prompts(), strict=True)):
            taken = []
            for index in rng.permutation(8):
                rows = int(min(rng.integers(0, 10), len(prompts()[index]) - done[index]))
                if rows:
                    facts += _lease(rig, facts, begun[index][0], done[index], rows)
                    taken.append((int(index), rows))
                    facts.append(
                        f.PromptStepRun(stream=begun[index][0], first=done[index], rows=rows)
                    )
            rig.step(*facts, every_row=True)
            facts = []
            for index, rows in taken:
                for position in range(done[index], done[index] + rows):
                    have = rig.logits(begun[index][0], position)
                    assert same(have, wanted[index][position]), (index, position)
                done[index] += rows
        for index, (stream, _) in enumerate(begun):
            assert differing(memory[index], joined(rig, stream)) == [], index


def _lease(
    rig: GlmRig, before: list[AnyFact], stream: StreamId, first: int, rows: int
) -> list[AnyFact]:
    """Pages for a stream's rows, after what the same step leases already."""
    taken = sum(len(fact.pages) for fact in before if isinstance(fact, f.PagesLeased))
    held_pages = -(-first // rig.page_rows)
    missing = -(-(first + rows) // rig.page_rows) - held_pages
    pages = rig.state.book.next(taken + max(missing, 0))[taken:]
    return [f.PagesLeased(stream=stream, first=held_pages, pages=pages)] if pages else []


def test_the_recorded_bits_are_near_a_float32_forward() -> None:
    """The contract's own error on this model, over all 81 positions."""
    ours, reference = BITS.view(np.float32), recorded("full")
    assert ours.shape == reference.shape == (81, 512)
    assert np.abs(ours - reference).max() <= 1e-2
    assert (ours.argmax(-1) == reference.argmax(-1)).all()


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_greedy_reply_is_the_recorded_one(drafts: int) -> None:
    rig = Rig(glm_opened(drafts), make=glm_device)
    rig.step(arrive("r", TOKENS[:PROMPT], 20, draft=True))
    rig.settle()
    rig.device.close()
    told = json.loads((TINY / "tokens.json").read_text())
    assert rig.replies == {"r": told["generated"]} and len(told["generated"]) == 20


def drafted(rig: GlmRig) -> NDArray[np.float32]:
    """The logits [vocab] that the first draft of the last step was drawn from."""
    memory = rig.device.memory
    op = next(op for op in memory.ops if op[0] == GlmOp.DRAFT)
    logits: NDArray[np.float32] = memory.floats[op[1] : op[1] + op[2]].copy()
    return logits


@pytest.mark.parametrize("world", [1, 2])
def test_the_drafters_bits_are_the_definitions(world: int) -> None:
    """Each of 80 rows drafts with the recorded token after it, which a bias has it draw.

    The trunk's row enters after its last norm; the first row's embedding counts as zero.
    """
    with GlmRig(world=world, drafts=1, lanes=80, pages=500, prompt_rows=80) as rig:
        for row in range(0, 80, world):
            forced = Sampling(bias=((TOKENS[row + 1], FORCED),))
            stream, facts = rig.begin(TOKENS[: row + 1], forced, draft=True)
            facts += rig.lease(stream, row + 1)
            facts.append(f.PromptStepRun(stream=stream, first=0, rows=row + 1))
            for report in rig.step(*facts):
                assert report.tokens == [TOKENS[row + 1]]
            assert same(drafted(rig).view(np.uint32), MTP["logits"][row]), row
            memory = held(rig.device, rig.state, stream)
            assert (memory["draft rows"][0] == MTP["latent"][: row + 1]).all(), row
            assert (memory["draft keys"][0] == MTP["keys"][: (row + 1) // KPOOL]).all(), row


def test_the_drafters_bits_over_a_reply() -> None:
    """In rounds, from rings and pages: a window of one row, and one whose draft is refused."""
    with GlmRig(drafts=1) as rig:
        stream, facts = rig.begin(TOKENS[:PROMPT], draft=True)
        facts += rig.lease(stream, PROMPT + 1)
        rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=PROMPT))
        for position in range(PROMPT, 80):
            rig.device.memory.drafts[stream] = 7 if position % 2 else TOKENS[position + 1] ^ 1
            facts = rig.draw(stream, TOKENS[position])[:1]
            report = rig.step(*facts, *rig.lease(stream, position + 2), _round(stream))[0]
            assert report.tokens == [TOKENS[position + 1]]
            assert same(drafted(rig).view(np.uint32), MTP["logits"][position]), position
        memory = held(rig.device, rig.state, stream)
        assert (memory["draft rows"][0] == MTP["latent"]).all()
        assert (memory["draft keys"][0] == MTP["keys"]).all()


def _round(stream: StreamId) -> AnyFact:
    return f.RoundRun(lanes=(Lane(stream),))


def test_the_drafters_bits_are_near_a_float32_forward() -> None:
    """One row of 80 is off by 0.0112, the one where the trunk's own logits are furthest off."""
    far = np.abs(MTP["logits"].view(np.float32) - recorded("mtp")).max(axis=1)
    assert far.shape == (80,)
    assert np.flatnonzero(far > 1e-2).tolist() == [22] and far[22] < 1.12e-2
    assert np.abs(BITS.view(np.float32) - recorded("full")).max(axis=1).argmax() == 22
    assert (MTP["logits"].view(np.float32).argmax(-1) == recorded("mtp").argmax(-1)).all()


def test_rows_past_the_dense_limit_leave_pools_out() -> None:
    """Which pools a row reads is chosen by their keys, not by where they stand."""
    with GlmRig(prompt_rows=81) as rig:
        rig.run(TOKENS, 81)
        memory, rows = rig.device.memory, np.arange(81)
        whole = (rows + 1) // KPOOL
        assert (memory.counts[:81] == np.minimum(whole, POOLS)).all()
        sparse = rows[whole > POOLS]
        assert sparse[0] == 19
        newest = [set(range(whole[row] - POOLS, whole[row])) for row in sparse]
        picked = [set(memory.picked[row, :POOLS].tolist()) for row in sparse]
        assert all(len(chosen) == POOLS and max(chosen) < w for chosen, w in zip(
            picked, whole[sparse], strict=True
        ))  # fmt: skip
        assert sum(p != n for p, n in zip(picked, newest, strict=True)) > 40
        assert len({tuple(sorted(chosen)) for chosen in picked}) > 10


def test_a_model_that_leaves_no_pool_out_differs_from_the_first_sparse_row_on(
    tmp_path: Any,
) -> None:
    told = json.loads((TINY / "config.json").read_text())
    told["text_config"]["index_topk"] = 128
    (tmp_path / "config.json").write_text(json.dumps(told))
    (tmp_path / "model.safetensors").symlink_to(TINY / "model.safetensors")
    with GlmRig(checkpoint=GlmCheckpoint(tmp_path)) as rig:
        logits = rig.run(TOKENS, 40)[1]
    equal = (logits == BITS).all(axis=1)
    assert equal[:19].all() and not equal[19:].any()


@pytest.mark.parametrize("pattern", ["a", "b"])
def test_leased_pages_are_poisoned_and_a_row_that_nobody_wrote_is_named(pattern: str) -> None:
    with GlmRig(drafts=1, poison=pattern, threads=2) as rig:
        stream, facts = rig.begin(TOKENS)
        rig.step(*facts, *rig.lease(stream, 81))
        memory, pages = rig.device.memory, rig.state.table(rig.state.streams[stream])
        for rows in (memory.latent, memory.keys):
            assert (rows[:, pages] == poison_value(pattern, np.int16)).all()
        sound = rig.step(f.PromptStepRun(stream=stream, first=0, rows=40))[0]
        assert sound.poisoned == []
        rig.device.inspector.poison_pages((pages[1],), pattern)
        report = rig.step(f.PromptStepRun(stream=stream, first=40, rows=10))[0]
        assert [(p.stream, p.layer, p.position) for p in report.poisoned] == [(stream, 0, PAGE)]


def test_pages_of_512_rows_hold_what_small_ones_hold() -> None:
    """1,100 rows over two page edges, then rounds; the first 81 are the definition's."""
    rng = np.random.default_rng(3)
    tokens = [*TOKENS, *rng.integers(0, 512, 1015).tolist()]
    more = rng.integers(0, 512, 4).tolist()
    found: list[tuple[NDArray[np.uint32], Held]] = []
    for page_rows, chunk in ((512, 300), (16, 256)):
        with GlmRig(
            page_rows=page_rows, drafts=1, context=1200, pages=80, prompt_rows=300, lanes=1
        ) as rig:
            stream, logits, _ = rig.run(tokens, chunk)
            last = []
            for token in more:
                rig.step(*rig.draw(stream, token))
                last.append(rig.logits(stream, len(rig.state.streams[stream].tokens) - 1))
            found.append((np.concatenate([logits, last]), held(rig.device, rig.state, stream)))
    (large, memory), (small, other) = found
    assert large.shape == (1100, 512) and same(large, small) and same(large[:81], BITS)
    assert differing(memory, other) == []
