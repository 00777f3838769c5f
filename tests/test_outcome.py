"""The ranks' reports made one: what is added, what is compared, and who is believed."""

from kvtape.core.device import Ack, Break, Poisoned, Report
from kvtape.core.families.fake import fake_rules
from kvtape.core.outcome import commands_of, partings
from kvtape.events import commands as c
from kvtape.events.ids import Rank, StateId, StreamId

RULES = fake_rules()
STREAM, STATE = StreamId(3), StateId(5)
SUMS = {"rows": (7, 8), "states": (2**64 - 1, 1), "logits": (9, 9)}


def report(rank: int, **fields: object) -> Report:
    made = Report(Rank(rank), 4, sums={STREAM: dict(SUMS)}, book="b" * 32)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def done(*reports: Report) -> c.DeviceDone:
    first = commands_of(RULES, reports, "b" * 32)[0]
    assert isinstance(first, c.DeviceDone)
    return first


def test_split_parts_add_modulo_2_to_the_64_and_each_share_is_told() -> None:
    digests = done(report(0), report(1)).digests
    assert digests.parts["states"] == ("fffffffffffffffe" + "0000000000000002",)
    assert digests.ranks["states"] == (("f" * 16 + "0" * 15 + "1",) * 2,)
    assert digests.parts["rows"] == ("0" * 15 + "7" + "0" * 15 + "8",)
    assert set(digests.ranks) == {"states"}


def test_a_part_that_a_step_did_not_sum_is_told_as_not_kept() -> None:
    """Of one stream of two: "" stands there, for every rank; of both: the part is left out."""
    some = {STREAM: dict(SUMS), StreamId(4): {"rows": (1, 1), "logits": (2, 2)}}
    digests = done(report(0, sums=some), report(1, sums=some)).digests
    assert digests.parts["states"] == ("fffffffffffffffe" + "0000000000000002", "")
    assert digests.ranks["states"][1] == ("", "")
    assert digests.of(StreamId(4))["rows"] == "0" * 15 + "1" + "0" * 15 + "1"
    none = {STREAM: {"rows": (1, 1), "logits": (2, 2)}}
    assert set(done(report(0, sums=none), report(1, sums=none)).digests.parts) == {"rows", "logits"}


def test_only_rank_0_says_which_tokens() -> None:
    outcome = done(report(0, streams=[STREAM], starts=[0, 1], tokens=[11]), report(1, tokens=[12]))
    assert outcome.tokens == (11,)


def test_any_rank_may_flag_a_stream() -> None:
    assert done(report(0), report(1, flagged=[STREAM])).flagged == (STREAM,)


def test_ranks_that_agree_have_not_parted() -> None:
    assert partings(RULES, [report(0), report(1)], "b" * 32) == []


def test_a_replicated_part_must_be_equal_and_a_split_one_need_not() -> None:
    other = report(1, sums={STREAM: SUMS | {"states": (0, 0)}})
    assert partings(RULES, [report(0), other], "b" * 32) == []
    other = report(1, sums={STREAM: SUMS | {"rows": (7, 0)}})
    found = partings(RULES, [report(0), other], "b" * 32)
    assert [(parting.part, parting.stream) for parting in found] == [("rows", STREAM)]


def test_another_book_is_the_first_parting() -> None:
    other = report(1, book="c" * 32, sums={STREAM: SUMS | {"rows": (7, 0)}})
    found = partings(RULES, [report(0), other], "b" * 32)
    assert [parting.part for parting in found] == ["book", "rows"]
    assert found[0].values == ["b" * 32, "c" * 32]


def answer(*acks: Ack) -> c.ResumeAcked:
    reports = [report(rank, acks=[ack]) for rank, ack in enumerate(acks)]
    made = commands_of(RULES, reports, "b" * 32)[1]
    assert isinstance(made, c.ResumeAcked)
    return made


def test_a_resume_needs_every_rank() -> None:
    yes, no = Ack(STREAM, STATE, True, digest=SUMS), Ack(STREAM, STATE, False, "no room")
    assert answer(yes, yes).ok
    refused = answer(yes, no)
    assert (refused.ok, refused.rank, refused.why) == (False, 1, "no room")


def test_a_resume_is_refused_where_ranks_read_back_other_rows() -> None:
    mine = Ack(STREAM, STATE, True, digest=SUMS)
    other = Ack(STREAM, STATE, True, digest=SUMS | {"rows": (7, 0)})
    parted = answer(mine, other)
    assert not parted.ok
    assert "rows" in parted.why


def test_what_a_resume_read_back_is_added_over_ranks() -> None:
    ack = Ack(STREAM, STATE, True, digest=SUMS)
    assert answer(ack, ack).digest["states"] == "fffffffffffffffe" + "0000000000000002"


def test_broken_sums_and_poison_come_with_their_rank() -> None:
    broken = report(1, breaks=[Break(STREAM, "states", (1, 2), (3, 4))])
    poisoned = report(0, poisoned=[Poisoned(STREAM, 2, 40)])
    news = commands_of(RULES, [poisoned, broken], "b" * 32)
    assert news[1] == c.BreakFound(
        step=4, rank=Rank(1), stream=STREAM, part="states",
        kept="0" * 15 + "1" + "0" * 15 + "2", found="0" * 15 + "3" + "0" * 15 + "4",
    )  # fmt: skip
    assert news[2] == c.PoisonFound(step=4, rank=Rank(0), stream=STREAM, layer=2, position=40)
