"""The byte form of commands and facts: there is one, it comes back equal, and no other is taken."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvtape.events.canon import (
    content_name,
    decode_command,
    decode_fact,
    encode,
    fill_outcome,
    pack_ids,
    unpack_ids,
)
from kvtape.events.commands import Arrive, DeviceDone
from kvtape.events.errors import BrokenRecord
from kvtape.events.facts import RowsKept, RunClosed, SnapshotTaken, StepClosed
from kvtape.events.records import Digests, Record, Sampling, known

from .tape_records import COMMAND_KINDS, FACT_KINDS, INT64, SUM, made, of_record


def there_and_back(record: Any, decode: Any) -> None:
    """Both forms, with token ids in place and beside."""
    content: dict[str, bytes] = {}
    apart = encode(record, content)
    assert decode(apart, content.__getitem__) == record
    assert decode(encode(record)) == record
    assert all(content_name(data) == name for name, data in content.items())


@pytest.mark.parametrize("kind", FACT_KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_fact_comes_back_from_its_bytes(kind: type[Record], data: st.DataObject) -> None:
    there_and_back(data.draw(of_record(kind)), decode_fact)


@pytest.mark.parametrize("kind", COMMAND_KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_command_comes_back_from_its_bytes(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(of_record(kind))
    if isinstance(record, DeviceDone):
        record = record.model_copy(update={"digests": Digests(), "book": ""})
    there_and_back(record, decode_command)


@pytest.mark.parametrize("kind", [*FACT_KINDS, *COMMAND_KINDS, Digests])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_record_that_is_known_is_the_one_that_is_checked(
    kind: type[Record], data: st.DataObject
) -> None:
    checked = data.draw(of_record(kind))
    unchecked = known(kind, **{name: getattr(checked, name) for name in kind.model_fields})
    assert unchecked == checked
    assert repr(unchecked) == repr(checked)
    assert unchecked.model_copy() == checked
    assert encode(unchecked) == encode(checked)
    with pytest.raises(ValidationError):
        setattr(unchecked, next(iter(kind.model_fields)), 1)


@given(digests=of_record(Digests), book=SUM)
def test_an_outcome_gets_its_sums_back_from_the_closed_step(digests: Digests, book: str) -> None:
    done = DeviceDone(
        step=3, streams=(), starts=(0,), tokens=(), flagged=(), digests=digests, book=book
    )
    closed = StepClosed(step=3, digests=digests, book=book, flagged=())
    bare = decode_command(encode(done))
    assert isinstance(bare, DeviceDone)
    assert bare.digests == Digests()
    assert fill_outcome(bare, closed) == done


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_other_bytes_decode(data: st.DataObject) -> None:
    """Whatever a changed byte makes of a record, it is refused or is the one form of another."""
    body = encode(data.draw(st.one_of(*map(of_record, FACT_KINDS))))
    at = data.draw(st.integers(0, len(body) - 1))
    piece = data.draw(st.sampled_from([b"", b" ", b"0", b"-", b".0", b"e1", b"]", b'"', b"\xff"]))
    changed = body[:at] + piece + body[at + data.draw(st.integers(0, 1)) :]
    try:
        other = decode_fact(changed)
    except BrokenRecord:
        return
    assert encode(other) == changed


@pytest.mark.parametrize(
    "body",
    [
        b'{"reason":"x","kind":"run_closed","steps":1}',
        b'{"kind":"run_closed","steps":1,"reason":"x"}',
        b'{"kind":"run_closed","reason":"x","steps":1.0}',
        b'{"kind":"run_closed","reason":"x","steps":"1"}',
        b'{"kind":"run_closed","reason":"x","steps":true}',
        b'{"kind":"run_closed","reason":"\\u0078","steps":1}',
        b'{"kind":"run_closed","reason":"x","steps":1,"steps":1}',
        b'{"kind":"run_closed","reason":"x","steps":1,"more":1}',
        b'{"kind":"run_closed", "reason":"x","steps":1}',
        b'{"kind":"run_closed","reason":"x","steps":9223372036854775808}',
        b'{"kind":"run_closed","reason":"x"}',
        b'{"kind":"run_closed","reason":"\xff","steps":1}',
        b"[]",
        b"",
    ],
)
def test_another_spelling_of_a_fact_is_refused(body: bytes) -> None:
    assert decode_fact(b'{"kind":"run_closed","reason":"x","steps":1}') == RunClosed(
        reason="x", steps=1
    )
    with pytest.raises(BrokenRecord):
        decode_fact(body)


def test_kinds_that_this_build_does_not_read_are_named() -> None:
    with pytest.raises(BrokenRecord, match="state_image is reserved: this build reads"):
        decode_fact(b'{"kind":"state_image"}')
    with pytest.raises(BrokenRecord, match="unknown kind of fact: pages_painted"):
        decode_fact(b'{"kind":"pages_painted"}')
    with pytest.raises(BrokenRecord, match="unknown kind of command: run_closed"):
        decode_command(encode(RunClosed(reason="", steps=0)))


def test_equal_records_have_equal_bytes_whatever_order_their_maps_have() -> None:
    left = made(
        SnapshotTaken,
        state=1,
        stream=2,
        mark=4,
        shared=True,
        pages=(1,),
        digest={"rows": "", "logits": ""},
    )
    right = left.model_copy(update={"digest": {"logits": "", "rows": ""}})
    assert encode(left) == encode(right)
    parts: dict[str, tuple[str, ...]] = {"tokens": (), "rows": (), "logits": ()}
    one = StepClosed(step=1, digests=Digests(parts=parts), book="", flagged=())
    other = StepClosed(
        step=1, digests=Digests(parts=dict(sorted(parts.items()))), book="", flagged=()
    )
    assert encode(one) == encode(other)


@given(number=INT64)
def test_integers_of_64_bits_survive(number: int) -> None:
    assert json.loads(encode(RunClosed(reason="", steps=number)))["steps"] == number


@pytest.mark.parametrize("seed", [-(2**63), -(2**63) + 1, -1, 2**53 + 1, 2**63 - 1])
def test_seeds_at_the_edge_survive(seed: int) -> None:
    arrive = made(
        Arrive, request="r", session="s", prompt=(), max_new=1, sampling=Sampling(seed=seed)
    )
    back = decode_command(encode(arrive))
    assert isinstance(back, Arrive)
    assert back.sampling.seed == seed


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_integers_past_64_bits_are_refused(number: int) -> None:
    with pytest.raises(BrokenRecord, match="does not fit int64"):
        encode(RunClosed(reason="", steps=number))
    with pytest.raises(BrokenRecord, match="does not fit int64"):
        encode(RowsKept(streams=(), starts=(1, number), tokens=()))
    with pytest.raises(ValidationError):
        Sampling(seed=number)


def test_long_digits_in_a_text_are_no_integers() -> None:
    fact = RunClosed(reason="at:99999999999999999999,[99999999999999999999", steps=1)
    assert decode_fact(encode(fact)) == fact


def test_values_that_no_field_may_hold_are_refused() -> None:
    with pytest.raises(BrokenRecord):
        encode(known(RowsKept, kind="rows_kept", streams=[1], starts=(0,), tokens=()))
    with pytest.raises(BrokenRecord):
        encode(RunClosed.model_construct(reason="", steps=1.5))
    with pytest.raises(BrokenRecord, match="not int32"):
        encode(made(Arrive, request="r", session="s", prompt=(2**31,), max_new=1), {})


@given(ids=st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_are_int32_little_endian(ids: list[int]) -> None:
    assert pack_ids(ids) == b"".join(i.to_bytes(4, "little", signed=True) for i in ids)
    assert unpack_ids(pack_ids(ids)) == ids


def test_content_that_is_missing_or_another_is_refused() -> None:
    content: dict[str, bytes] = {}
    nothing: dict[str, bytes] = {}
    body = encode(made(Arrive, request="r", session="s", prompt=(1, 2), max_new=1), content)
    (name,) = content
    assert f'"prompt":{{"content":"{name}"}}'.encode() in body
    with pytest.raises(BrokenRecord, match=f"content row {name} is missing"):
        decode_command(body, nothing.__getitem__)
    for other in (pack_ids((1, 3)), b"", b"abc"):
        with pytest.raises(BrokenRecord):
            decode_command(body, {name: other}.__getitem__)
    with pytest.raises(BrokenRecord):
        decode_command(body)


def test_a_text_that_looks_like_a_reference_stays_a_text() -> None:
    tricky = '"prompt":[] "prompt":{"content":"' + 32 * "0" + '"}'
    arrive = made(Arrive, request=tricky, session=tricky, prompt=(7,), max_new=1, salt=tricky)
    there_and_back(arrive, decode_command)


def test_no_field_is_a_float() -> None:
    def walk(kind: Any, at: str) -> None:
        assert kind is not float, at
        assert kind is not Any, at
        for part in get_args(kind):
            walk(part, at)
        if isinstance(kind, type) and issubclass(kind, Record):
            for name, field in kind.model_fields.items():
                walk(field.annotation, f"{at}.{name}")

    for kind in (*FACT_KINDS, *COMMAND_KINDS):
        walk(kind, kind.__name__)
