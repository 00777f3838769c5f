"""The fake device against its oracle: every value, however rows are cut, drafted or placed."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvtape.core.families.fake import Oracle, fake_rules, paged_rules
from kvtape.core.kernels import sampling
from kvtape.core.kernels.fake_memory import HEADS
from kvtape.events.facts import RoundRun
from kvtape.events.ids import StreamId
from kvtape.events.records import FamilyRules, Sampling

from .hand import Hand, check_memory, check_stream, opened

KINDS = {"states": fake_rules(vocab=16), "paged": paged_rules(vocab=16)}
DRAFTED = fake_rules(vocab=16, drafts=4)
PROMPTS = ([3], [1, 2, 3, 4, 5, 6, 7], [9, 8, 7] * 11)


def whole_run(rules: FamilyRules, chunk: int = 64, **other: Any) -> Hand:
    """Three prompts in pieces of `chunk` rows side by side, then their replies; all checked."""
    hand = Hand(opened(rules, **other))
    streams = [hand.start(prompt) for prompt in PROMPTS]
    while left := [
        one for one in streams if hand.stream(one).rows < hand.stream(one).prompt_tokens
    ]:
        for stream in left:
            seated = hand.stream(stream)
            hand.prompt(stream, min(chunk, seated.prompt_tokens - seated.rows))
        hand.launch()
    hand.decode(*streams)
    for stream in streams:
        check_stream(hand, stream)
    return hand


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_every_value_is_the_oracles_in_any_chunks(kind: str, chunk: int) -> None:
    whole_run(KINDS[kind], chunk)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_value_is_the_oracles_at_any_number_of_ranks(kind: str, world: int) -> None:
    hand = whole_run(KINDS[kind], world=world)
    split = hand.run.rules.split[0]
    holders = [device for device in hand.devices if device.layers(split)]
    assert len(holders) == min(world, HEADS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["lifo", "fifo", "adversarial"])
def test_no_value_depends_on_page_ids(kind: str, order: str) -> None:
    whole_run(KINDS[kind], order=order)


@pytest.mark.parametrize("kind", KINDS)
def test_both_poisons_change_nothing_and_are_never_read(kind: str) -> None:
    replies = [whole_run(KINDS[kind], 7, poison=poison).drawn for poison in ("off", "a", "b")]
    assert replies[0] == replies[1] == replies[2]


@pytest.mark.parametrize(("drafter", "rounds"), [(1, 3), (2, 15), (0, None)])
def test_drafts_change_the_rounds_and_nothing_else(drafter: int, rounds: int | None) -> None:
    hand = Hand(opened(DRAFTED, flags={"fake_drafter": drafter}))
    stream = hand.start(PROMPTS[1])
    hand.prompt(stream, 7)
    hand.launch()
    first = hand.state.step
    hand.decode(stream)
    check_stream(hand, stream)
    made = hand.state.step - first
    assert made == rounds if rounds else 3 < made < 15


@pytest.mark.parametrize("world", [1, 3])
def test_a_stream_that_wants_no_drafts_gets_none(world: int) -> None:
    hand = Hand(opened(DRAFTED, flags={"fake_drafter": 1}, world=world))
    plain, drafted = hand.start(PROMPTS[1], draft=False), hand.start(PROMPTS[2])
    hand.prompt(plain, len(PROMPTS[1]))
    hand.prompt(drafted, len(PROMPTS[2]))
    hand.launch()
    hand.round(plain, drafted)
    hand.launch()
    assert [len(hand.drawn[one]) for one in (plain, drafted)] == [2, 6]
    for stream in (plain, drafted):
        check_stream(hand, stream)


def test_a_window_ends_at_the_id_that_ends_the_reply() -> None:
    oracle = Oracle(DRAFTED)
    oracle.extend(PROMPTS[1])
    reply = oracle.reply(6)
    end = next(i for i in range(2, 6) if reply[i] not in reply[:i])
    for ignored in (False, True):
        hand = Hand(opened(DRAFTED, flags={"fake_drafter": 1}))
        stream = hand.start(PROMPTS[1], eos=(reply[end],), ignore_eos=ignored)
        hand.prompt(stream, 7)
        hand.launch()
        hand.round(stream)
        hand.launch()
        assert hand.drawn[stream] == (reply if ignored else reply[: end + 1])
        check_stream(hand, stream)


def test_a_window_ends_with_the_reply_and_with_the_pages() -> None:
    hand = Hand(opened(DRAFTED, flags={"fake_drafter": 1}))
    stream = hand.start(PROMPTS[1], max_new=3)
    hand.prompt(stream, 7)
    hand.launch()
    assert hand.stream(stream).pages == 1  # of eight rows
    hand.do(RoundRun(lanes=(hand.stream(stream).lane,)))  # with no lease for its drafts
    hand.launch()
    assert len(hand.drawn[stream]) == 2  # one row is left on the page
    hand.decode(stream)
    check_stream(hand, stream)
    assert len(hand.drawn[stream]) == 3


@pytest.mark.parametrize("rule", ["states", "rings", "drafts", "sums"])
def test_each_rule_of_the_roll_back_is_needed(rule: str) -> None:
    hand = Hand(opened(DRAFTED, flags={"fake_drafter": 2}), broken=[rule])
    stream = hand.start(PROMPTS[1])
    hand.prompt(stream, 7)
    hand.launch()
    hand.decode(stream)
    with pytest.raises(AssertionError):
        check_stream(hand, stream)


def sampler_of(how: Sampling, prompt: int, vocab: int) -> Any:
    """The oracle's sampler for a request, by the meaning of the sampling kernel."""
    bits = (how.temperature_bits, how.top_p_bits, how.repetition_bits, how.frequency_bits)
    floats = np.array([*bits, how.presence_bits], np.uint32).view(np.float32)
    ids = np.array([token for token, _ in how.bias], np.int32)
    meaning: Any = sampling.sample_row_meaning
    bias = np.array([bits for _, bits in how.bias], np.uint32).view(np.float32)

    def draw(logits: NDArray[np.float32], tokens: Sequence[int]) -> int:
        counts = np.bincount(tokens, minlength=vocab).astype(np.int32)
        replied = np.bincount(tokens[prompt:], minlength=vocab).astype(np.int32)
        return int(
            meaning(
                logits, floats[0], how.top_k, floats[1], tuple(floats[2:]), ids, bias,
                counts, replied, how.seed, len(tokens), 0, *sampling.sample_scratch(vocab),
            )
        )  # fmt: skip

    return draw


def f32_bits(x: float) -> int:
    """The pattern of a float32."""
    return int(np.float32(x).view(np.uint32))


HOWS = {
    "hot": Sampling(temperature_bits=f32_bits(1.5), seed=-7),
    "cut": Sampling(temperature_bits=f32_bits(4), seed=5, top_k=9, top_p_bits=f32_bits(0.9)),
    "penalised": Sampling(
        repetition_bits=f32_bits(1.3), presence_bits=f32_bits(2), frequency_bits=f32_bits(1)
    ),
    "biased": Sampling(bias=((2, f32_bits(6)), (5, f32_bits(5)))),
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("rules", [KINDS["paged"], DRAFTED], ids=["paged", "drafted"])
def test_requests_draw_as_they_say_drafted_or_not(how: str, rules: FamilyRules) -> None:
    hand = Hand(opened(rules))
    stream, other = hand.start(PROMPTS[1], sampling=HOWS[how]), hand.start(PROMPTS[2])
    hand.prompt(stream, 7)
    hand.prompt(other, len(PROMPTS[2]))
    hand.launch()
    hand.decode(stream, other)
    check_stream(hand, other)
    oracle = Oracle(rules, sampler_of(HOWS[how], 7, rules.vocab))
    oracle.extend(PROMPTS[1])
    greedy = Oracle(rules)
    greedy.extend(PROMPTS[1])
    assert hand.drawn[stream] == oracle.reply(16) != greedy.reply(16)


@given(st.integers(0, 2**32), st.sampled_from([KINDS["paged"], DRAFTED]), st.integers(1, 2))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_any_mix_of_prompts_and_rounds_gives_the_same(
    seed: int, rules: FamilyRules, world: int
) -> None:
    rng = random.Random(seed)
    order, poison = rng.choice(["lifo", "adversarial"]), rng.choice("ab")
    hand = Hand(opened(rules, world=world, order=order, poison=poison, digests="full"))
    streams: list[StreamId] = []
    for _ in range(14):
        if len(streams) < 3 and rng.random() < 0.5:
            prompt = [rng.randrange(16) for _ in range(rng.randrange(1, 40))]
            streams.append(hand.start(prompt, max_new=40, draft=rng.random() < 0.7))
        going: list[StreamId] = []
        for stream in streams:
            seated = hand.stream(stream)
            if seated.rows < seated.prompt_tokens:
                hand.prompt(stream, rng.randint(1, seated.prompt_tokens - seated.rows))
            elif rng.random() < 0.7:
                going.append(stream)
        if going:
            hand.round(*rng.sample(going, len(going)))
        for report in hand.launch():
            assert not report.breaks
            assert not report.poisoned
            for stream in report.sums:
                seated = hand.stream(stream)
                if seated.rows >= seated.prompt_tokens:
                    check_memory(hand, stream)
