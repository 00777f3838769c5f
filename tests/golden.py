"""The golden runs: small stories, without a model or on a tiny one, each time the same bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtape.core.evict import ODDS
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.state import FLAT
from kvtape.events.commands import Cancel, Close, Flush, StopMatched
from kvtape.events.export import export
from kvtape.events.ids import RequestId
from kvtape.events.reader import Tape
from kvtape.events.records import Sampling
from kvtape.events.tape import TapeWriter

from .glm_rig import glm_device, glm_opened
from .rig import Rig, arrive, flat_plan, opened_with

SHARED = [7 * at % 61 for at in range(40)]
WARM = Sampling(temperature_bits=0x3F4CCCCD, top_k=20, top_p_bits=0x3F733333, seed=-(2**63))


def two_chats_share_a_prefix() -> Rig:
    """The second resumes at the first one's mark, and says the same."""
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", SHARED, 6, session="a", history_tokens=33))
    rig.settle()
    rig.step(arrive("second", SHARED, 6, session="b", history_tokens=33))
    rig.settle()
    return rig


def drafts_kept_and_refused() -> Rig:
    """Windows of four rows, some of them wrong; one request goes without."""
    rig = Rig(opened_with(fake_rules(drafts=3)))
    rig.step(arrive("drafted", SHARED[:9], 14), arrive("plain", SHARED[:9], 14, draft=False))
    rig.settle()
    return rig


def sampled_with_a_seed() -> Rig:
    """The lowest seed there is; a stop string and an end token end two of three."""
    rig = Rig(opened_with(paged_rules()))
    rig.step(*(arrive(name, SHARED[:11], 12, sampling=WARM) for name in ("one", "two", "three")))
    while rig.state.streams[rig.state.requests[RequestId("two")]].new_tokens < 4:
        rig.step()
    rig.step(StopMatched(request=RequestId("two"), tokens=3))
    rig.settle()
    return rig


def cancel_midway() -> Rig:
    """One client leaves while its prompt runs, one while it waits, one is over already."""
    rig = Rig(opened_with(fake_rules(), lanes=1))
    rig.step(arrive("runs", SHARED, 8), arrive("waits", SHARED[:5], 8), arrive("stays", [3], 3))
    rig.step(Cancel(request=RequestId("waits"), why="client left"))
    rig.step(Cancel(request=RequestId("runs"), why="client left"))
    rig.settle()
    rig.step(Cancel(request=RequestId("stays"), why="too late"))
    rig.settle()
    return rig


def room_is_short() -> Rig:
    """Kept states go so that a prompt can begin, longest unused first; a flush takes the rest."""
    rig = Rig(opened_with(paged_rules(), pages=17, states=3))
    for at in range(5):
        rig.step(arrive(f"chat{at}", [at, *SHARED[:30]], 4))
        rig.settle()
    rig.step(arrive("large", SHARED * 2, 40), arrive("late", SHARED[:3], 2))
    rig.settle()
    rig.step(Flush())
    return rig


def a_rank_refuses_a_resume() -> Rig:
    """The state is dropped and the prompt runs from row 0, with the same reply."""
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", SHARED, 4))
    rig.settle()
    rig.device.refuse_resume = True
    rig.step(arrive("again", SHARED, 4))
    rig.settle()
    return rig


def refused_at_the_door_of_the_machine() -> Rig:
    """What can never be served, each with its numbers."""
    rig = Rig(opened_with(fake_rules(), pages=10, queue=1, lanes=1))
    rig.step(
        arrive("empty", [], 4), arrive("long", SHARED * 3, 20), arrive("wide", SHARED * 2, 2),
        arrive("odd", [64], 2), arrive("first", [1], 2), arrive("second", [1], 2),
        arrive("third", [1], 2),
    )  # fmt: skip
    rig.settle()
    return rig


def a_glm_resumes_and_drafts() -> Rig:
    """A tiny model's states are kept at a mark; two go on from there, drafted and not."""
    rig = Rig(glm_opened(2, model="glm_tiny", lanes=2, pages=12, context=96), glm_device)
    text = [(at * at * 7 + 3 * at) % 500 for at in range(41)]
    rig.step(arrive("first", text[:35], 3, session="a", ignore_eos=True))
    rig.settle()
    rig.step(
        arrive("again", text, 4, session="a", ignore_eos=True),
        arrive("plain", text, 4, session="b", ignore_eos=True, draft=False, sampling=WARM),
    )
    rig.settle()
    rig.device.close()
    return rig


def copies_beside_the_pages() -> Rig:
    """Chats resume copies of their rows, a longer one takes the place of what it moved past."""
    opened = opened_with(fake_rules(drafts=2), flags={"store": FLAT}, plan=flat_plan(64))
    rig = Rig(opened)
    text = SHARED * 2
    for name, prompt in (("chat", text[:20]), ("ids", text[:20]), ("other", SHARED[9:30])):
        history = 0 if name == "ids" else len(prompt) - 2
        rig.step(arrive(name, prompt, 5, history_tokens=history))
        rig.settle()
    rig.step(arrive("longer", text[:37], 5, session="chat", history_tokens=35))
    rig.settle()
    rig.device.refuse_resume = True
    rig.step(arrive("again", text[:37], 5, session="chat", history_tokens=35))
    rig.settle()
    return rig


def each_stream_its_window() -> Rig:
    """Three lanes, two windows: the third waits, though its rows would fit; a copy comes back."""
    opened = opened_with(
        fake_rules(drafts=1), flags={"store": FLAT, "windows": 1}, plan=flat_plan(64), lanes=3,
        pages=34,
    )  # fmt: skip
    rig = Rig(opened)
    rig.step(*(arrive(name, SHARED[at:20], 4) for at, name in enumerate(("one", "two", "three"))))
    rig.settle()
    rig.step(arrive("chat", SHARED[:20], 4, session="chat", history_tokens=18))
    rig.settle()
    rig.step(arrive("again", SHARED[:30], 4, session="chat", history_tokens=18))
    rig.settle()
    return rig


def equal_prompts_wait() -> Rig:
    """One runs for three; another passes them; then an edited turn goes on from before it."""
    flags = {"marks": 1, "keep_resuming": 1, "keep_at_end": 1, "prefix_wait": 1}
    rig = Rig(opened_with(fake_rules(), flags=flags, lanes=3, pages=60))
    chat: dict[str, Any] = {"history_tokens": 38, "rewind_tokens": 20}
    rig.step(
        *(arrive(name, SHARED, 3, session=name, **chat) for name in ("one", "two", "three")),
        arrive("passes", SHARED[20:31], 2),
    )
    rig.settle()
    rig.step(*(arrive(f"left {name}", SHARED[::-1], 3, **chat) for name in "ab"))
    rig.step(Cancel(request=RequestId("left a"), why="client left"))
    rig.step(arrive("edited", [*SHARED[:20], *SHARED[:9]], 3, history_tokens=27, rewind_tokens=20))
    rig.settle()
    return rig


def what_will_hardly_come_back_goes() -> Rig:
    """By their odds a heap goes before an older talk that came back; then the talk comes again."""
    flags = {"evict": ODDS, "marks": 1, "keep_resuming": 1, "keep_at_end": 1}
    rig = Rig(opened_with(paged_rules(), flags=flags, lanes=1, pages=16, prompt_rows=64))
    talk, heap = SHARED[:17], [at % 61 for at in range(66)]
    for name, prompt in (
        ("talk", talk),
        ("on", [*talk, *SHARED[17:26]]),
        ("heap", heap),
        ("new", [*SHARED[::-1], 1, 2, 3]),
        ("again", [*talk, *SHARED[17:33]]),
    ):
        rig.step(arrive(name, prompt, 4, ignore_eos=True))
        rig.settle()
    return rig


def a_rank_is_lost() -> Rig:
    """While a prompt runs and another decodes: no outcome of the step, every stream at fault."""
    rig = Rig(opened_with(fake_rules(drafts=1)))
    rig.step(arrive("first", SHARED[:9], 14), arrive("second", SHARED, 6))
    rig.step(arrive("waits", SHARED[:3], 2))
    rig.news = []
    error = "rank 1 failed on its GPU in step 2: CUDARuntimeError: an illegal address"
    rig.step(Close(reason="failed", error=error))
    return rig


STORIES: dict[str, Callable[[], Rig]] = {
    story.__name__: story
    for story in (
        two_chats_share_a_prefix, drafts_kept_and_refused, sampled_with_a_seed, cancel_midway,
        room_is_short, a_rank_refuses_a_resume, refused_at_the_door_of_the_machine,
        a_glm_resumes_and_drafts, copies_beside_the_pages, each_stream_its_window,
        equal_prompts_wait, what_will_hardly_come_back_goes, a_rank_is_lost,
    )
}  # fmt: skip


def write_tape(rig: Rig, path: Path) -> None:
    """A closed tape of what a rig has played."""
    if not rig.state.closed:
        rig.step(Close(reason="closed"))
    writer = TapeWriter.create(path, rig.opened)
    for step, (commands, facts) in enumerate(zip(rig.commands, rig.steps, strict=True), 1):
        writer.append(step, commands, facts)
    writer.close()


def lines_of(path: Path) -> list[str]:
    """A tape as text."""
    with Tape.open(path) as tape:
        return list(export(tape))
