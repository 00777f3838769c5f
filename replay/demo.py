"""kvtape demo: the whole idea on a real model, told as a short story with figures."""

import time
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from rich.console import Console

from ..devices.weights.checkpoint import ModelError
from ..devices.weights.find import find_model
from .demo_glm import tell_glm
from .demo_stage import DemoFailed, Story, ask, client, equal, said, server, tool
from .server_process import STOP_SECONDS_MAX
from .show import WRONG_USE, fail
from .signals import unwinding

MODEL = "smollm2"
SYSTEM = "You are a patient teacher. Answer in two short sentences, without lists."
FIRST = "Why does the sea taste of salt?"
SECOND = "And why do rivers not?"
SLOW = "Tell me a long story about a lighthouse and its keeper."
FLIP_AFTER = 12  # steps; when memory is at rest, before the next one reads it
FLIP = f"flip:rank=1,step={FLIP_AFTER},session=flipped,position=7,when=rest"


def run_demo(keep: str, *, glm: bool = False) -> int:
    """Tell the story; 0 if everything came out, 1 if not, 2 if something is missing."""
    console = Console()
    try:
        find_model(MODEL)
        import openai  # noqa: F401

        folder = _folder(keep)
    except (ModelError, OSError) as error:
        return fail(error, WRONG_USE, as_json=False)
    except ImportError:
        missing = ModelError("the openai client is missing: pip install openai")
        return fail(missing, WRONG_USE, as_json=False)
    with unwinding():
        try:
            return _tell(Story(folder, console), glm=glm)
        finally:
            if not keep:
                rmtree(folder)


def _folder(keep: str) -> Path:
    """A new folder, or an empty one of that name. Raises OSError, whose words say what to do."""
    if not keep:
        return Path(mkdtemp(prefix="kvtape-demo-"))
    folder = Path(keep)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except (FileExistsError, NotADirectoryError):
        raise OSError(f"--keep {folder}: a file is in the way; name a folder") from None
    except OSError as error:
        why = f"cannot be had: {error.strerror}; name another folder"
        raise OSError(f"--keep {folder} {why}") from None
    if not empty:
        raise OSError(f"{folder} is not empty: name another folder")
    return folder


def _tell(story: Story, *, glm: bool) -> int:
    try:
        _serve_and_chat(story)
        _replay(story)
        _diff(story)
        _flip(story)
        if glm:
            tell_glm(story)
    except DemoFailed as error:
        story.console.print(f"[red]not as told:[/red] {error}", highlight=False)
        return 1
    story.say(
        "\nEverything came out as told: equal where nothing was wrong, found where a bit was."
    )
    story.say(
        "To look at the tapes yourself: kvtape demo --keep DIR, then kvtape diff DIR/flip.tape"
    )
    return 0


def _serve_and_chat(story: Story) -> None:
    story.chapter("1. Serve with a tape, on two ranks")
    tape = story.folder / "run.tape"
    opening = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": FIRST}]
    began = time.monotonic()
    story.say("starting; the first start on a machine compiles kernels, a minute or two ...")
    with server(story, MODEL, tape) as (_, port):
        story.say(f"ready after {time.monotonic() - began:.1f} s; this conversation is session sea")
        asking = client(port)
        text, usage, receipt = ask(asking, MODEL, "sea", opening, 48)
        said(story, FIRST, text)
        _walk_away(story, asking)
        more = [*opening, {"role": "assistant", "content": text}]
        text, usage, receipt = ask(
            asking, MODEL, "sea", [*more, {"role": "user", "content": SECOND}], 48
        )
        cached = usage.prompt_tokens_details.cached_tokens
        said(story, SECOND, text)
        story.say(
            f"{cached} of {usage.prompt_tokens} prompt tokens came from the first turn's kept"
            f" state; the receipt: events {receipt['seq'][0]} to {receipt['seq'][1]} on the tape,"
            f" reply hash {receipt['token_sha'][:12]}"
        )
        if not cached:
            raise DemoFailed("the second turn resumed nothing")
    story.say(f"the tape: {tape.stat().st_size // 1024} KiB, sealed")


def _walk_away(story: Story, client: Any) -> None:
    """Start a long reply and leave in the middle of it."""
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": SLOW}], max_tokens=400, temperature=0,
        stream=True, extra_headers={"x-kvtape-session": "lighthouse"},
    )  # fmt: skip
    for _ in zip(range(10), stream, strict=False):
        pass
    stream.close()
    story.say(
        "another client asked for a long story and left after ten pieces: its request is cancelled"
    )


def _replay(story: Story) -> None:
    story.chapter("2. Replay it: other numbers of ranks, and one session alone")
    tape = str(story.folder / "run.tape")
    for ranks, words in ((1, "one rank"), (3, "three ranks")):
        kept = ("--record", str(story.folder / f"replay{ranks}.tape"))
        found = tool(story, "replay", tape, "--tp", str(ranks), *kept)
        equal(story, found, f"the whole run on {words}")
    equal(story, tool(story, "replay", tape, "--session", "sea"), "session sea alone")


def _diff(story: Story) -> None:
    story.chapter("3. Diff the ranks, and the replays")
    tape, one, three = (str(story.folder / f"{n}.tape") for n in ("run", "replay1", "replay3"))
    for left, right, what in (
        (f"{tape}#0", f"{tape}#1", "rank 0 against rank 1"),
        (one, three, "the replay on one rank against the replay on three"),
        (tape, one, "the run against the replay on one rank"),
    ):
        found = tool(story, "diff", left, right, "--no-deep")
        if found["verdict"] != "equal":
            raise DemoFailed(f"{what}: {found}")
        story.say(f"{what}: [green]equal[/green]")


def _flip(story: Story) -> None:
    story.chapter("4. Flip one bit in rank 1's memory, and find it")
    tape = story.folder / "flip.tape"
    flags = ("--digests", "full", "--inject", FLIP)
    with server(story, MODEL, tape, *flags) as (process, port):
        try:
            ask(client(port), MODEL, "flipped", [{"role": "user", "content": FIRST}], 200)
        except Exception as error:  # the run stops itself: whatever the client makes of that
            story.say(f"the client was told: {getattr(error, 'message', error)}")
        code = process.wait(STOP_SECONDS_MAX)
    if code != 1:
        raise DemoFailed(f"a flipped bit went unseen: the server ended with {code}")
    found = tool(story, "diff", str(tape))
    first = found.get("first")
    if not first:
        raise DemoFailed(f"diff found nothing: {found}")
    story.say("the run stopped itself: rank 1's rows no longer sum to their digest (I11)")
    place = ", ".join(
        f"{name} {first[name]}"
        for name in ("step", "rank", "layer", "cache", "position", "head", "column", "bit")
    )
    story.say(f"the difference of two sums names it: [bold]{place}[/bold]")
    story.say(
        f"what was asked for: {FLIP}, the rest picked at random; the bit was flipped once step"
        f" {FLIP_AFTER} was done, so the step after it is the first to show it"
    )
