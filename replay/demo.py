"""kvtape demo: the whole idea on a real model, told as a short story with figures."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from rich.console import Console

from ..devices.http.serve import bind
from ..devices.weights.checkpoint import ModelError
from ..devices.weights.find import find_model
from .show import WRONG_USE, fail

MODEL = "smollm2"
READY_SECONDS_MAX = 900.0  # the first start compiles kernels
STOP_SECONDS_MAX = 60.0
SYSTEM = "You are a patient teacher. Answer in two short sentences, without lists."
FIRST = "Why does the sea taste of salt?"
SECOND = "And why do rivers not?"
SLOW = "Tell me a long story about a lighthouse and its keeper."
FLIP = "flip:rank=1,step=12,session=flipped,position=7,when=rest"


class DemoFailed(Exception):
    """A chapter did not come out as told; the message says which and what was seen."""


@dataclass(slots=True)
class Story:
    """The folder of the demo and the voice that tells it."""

    folder: Path
    console: Console

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False)

    def chapter(self, title: str) -> None:
        """What comes next."""
        self.console.print(f"\n[bold]{title}[/bold]", highlight=False)


def run_demo(keep: str) -> int:
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
    try:
        return _tell(Story(folder, console))
    finally:
        if not keep:
            rmtree(folder)


def _folder(keep: str) -> Path:
    """A new folder, or an empty one of that name. Raises OSError."""
    if not keep:
        return Path(mkdtemp(prefix="kvtape-demo-"))
    folder = Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name another folder")
    return folder


def _tell(story: Story) -> int:
    try:
        _serve_and_chat(story)
        _replay(story)
        _diff(story)
        _flip(story)
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


# --- the server ----------------------------------------------------------------------------------


@contextmanager
def _server(story: Story, tape: Path, *flags: str) -> Any:
    """A server of two ranks as a process of its own; ends it whatever happens."""
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    log = (story.folder / f"{tape.stem}.log").open("w")
    command = [
        sys.executable, "-m", "kvtape", "serve", MODEL, "--tp", "2", "--port", str(port),
        "--trace", str(tape), *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=log, stdout=log)
    try:
        _wait_until_ready(process, port, Path(log.name))
        yield process, port
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import urllib.error
    import urllib.request

    until = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DemoFailed(f"the server ended at once: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise DemoFailed(f"no server at port {port} after {READY_SECONDS_MAX:.0f} s")


def _client(port: int) -> Any:
    import openai

    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def _ask(
    client: Any, session: str, messages: Sequence[dict[str, str]], max_tokens: int
) -> tuple[str, Any, dict[str, Any]]:
    reply = client.chat.completions.create(
        model=MODEL, messages=list(messages), max_tokens=max_tokens, temperature=0.7, seed=7,
        extra_headers={"x-kvtape-session": session},
    )  # fmt: skip
    return reply.choices[0].message.content, reply.usage, reply.model_extra["kvtape"]


def _serve_and_chat(story: Story) -> None:
    story.chapter("1. Serve with a tape, on two ranks")
    tape = story.folder / "run.tape"
    opening = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": FIRST}]
    began = time.monotonic()
    story.say("starting; the first start on a machine compiles kernels, a minute or two ...")
    with _server(story, tape) as (_, port):
        story.say(f"ready after {time.monotonic() - began:.1f} s; this conversation is session sea")
        client = _client(port)
        text, usage, receipt = _ask(client, "sea", opening, 48)
        _said(story, FIRST, text)
        _walk_away(story, client)
        more = [*opening, {"role": "assistant", "content": text}]
        text, usage, receipt = _ask(client, "sea", [*more, {"role": "user", "content": SECOND}], 48)
        cached = usage.prompt_tokens_details.cached_tokens
        _said(story, SECOND, text)
        story.say(
            f"{cached} of {usage.prompt_tokens} prompt tokens came from the first turn's kept"
            f" state; the receipt: events {receipt['seq'][0]} to {receipt['seq'][1]} on the tape,"
            f" reply hash {receipt['token_sha'][:12]}"
        )
        if not cached:
            raise DemoFailed("the second turn resumed nothing")
    story.say(f"the tape: {tape.stat().st_size // 1024} KiB, sealed")


def _said(story: Story, question: str, answer: str) -> None:
    story.say(f"  [cyan]you:[/cyan]   {question}")
    story.say(f"  [cyan]model:[/cyan] {' '.join(answer.split())}")


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


# --- the tape's tools -----------------------------------------------------------------------------


def _tool(story: Story, *arguments: str) -> dict[str, Any]:
    """Run a reading command; its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "kvtape", *arguments, "--json"], capture_output=True, text=True
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise DemoFailed(f"kvtape {' '.join(arguments)}: {done.stderr[-2000:]}") from None
    return found | {"exit": done.returncode}


def _equal(story: Story, found: dict[str, Any], what: str) -> None:
    if found["verdict"] != "equal":
        raise DemoFailed(f"{what}: {found}")
    compared = sum(found["compared"].values())
    story.say(
        f"{what}: [green]equal[/green], {compared} digests and tokens over {found['steps']} steps,"
        f" {found['seconds']:.1f} s with loading"
    )


def _replay(story: Story) -> None:
    story.chapter("2. Replay it: other numbers of ranks, and one session alone")
    tape = str(story.folder / "run.tape")
    for ranks, words in ((1, "one rank"), (3, "three ranks")):
        kept = ("--record", str(story.folder / f"replay{ranks}.tape"))
        found = _tool(story, "replay", tape, "--tp", str(ranks), *kept)
        _equal(story, found, f"the whole run on {words}")
    _equal(story, _tool(story, "replay", tape, "--session", "sea"), "session sea alone")


def _diff(story: Story) -> None:
    story.chapter("3. Diff the ranks, and the replays")
    tape, one, three = (str(story.folder / f"{n}.tape") for n in ("run", "replay1", "replay3"))
    for left, right, what in (
        (f"{tape}#0", f"{tape}#1", "rank 0 against rank 1"),
        (one, three, "the replay on one rank against the replay on three"),
        (tape, one, "the run against the replay on one rank"),
    ):
        found = _tool(story, "diff", left, right, "--no-deep")
        if found["verdict"] != "equal":
            raise DemoFailed(f"{what}: {found}")
        story.say(f"{what}: [green]equal[/green]")


def _flip(story: Story) -> None:
    story.chapter("4. Flip one bit in rank 1's memory, and find it")
    tape = story.folder / "flip.tape"
    flags = ("--digests", "full", "--inject", FLIP)
    with _server(story, tape, *flags) as (process, port):
        try:
            _ask(_client(port), "flipped", [{"role": "user", "content": FIRST}], 200)
        except Exception as error:  # the run stops itself: whatever the client makes of that
            story.say(f"the client was told: {getattr(error, 'message', error)}")
        code = process.wait(STOP_SECONDS_MAX)
    if code != 1:
        raise DemoFailed(f"a flipped bit went unseen: the server ended with {code}")
    found = _tool(story, "diff", str(tape))
    first = found.get("first")
    if not first:
        raise DemoFailed(f"diff found nothing: {found}")
    story.say("the run stopped itself: rank 1's rows no longer sum to their digest (I11)")
    place = ", ".join(
        f"{name} {first[name]}"
        for name in ("step", "rank", "layer", "cache", "position", "head", "column", "bit")
    )
    story.say(f"the difference of two sums names it: [bold]{place}[/bold]")
    story.say(f"what was asked for: {FLIP}, the rest picked at random")
