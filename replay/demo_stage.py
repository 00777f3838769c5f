"""What the demo's chapters share: the voice that tells it, a server, a client, the tape's tools."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..devices.http.serve import bind
from .server_process import NotServed, ended, wait_until_served

READY_SECONDS_MAX = 900.0  # the first start compiles kernels


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


@contextmanager
def server(story: Story, model: str, tape: Path, *flags: str) -> Any:
    """A server of two ranks as a process of its own; ends it whatever happens."""
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    log = (story.folder / f"{tape.stem}.log").open("w")
    command = [
        sys.executable, "-m", "kvtape", "serve", model, "--tp", "2", "--port", str(port),
        "--trace", str(tape), *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=log, stdout=log)
    with log, ended(process):
        try:
            health = f"http://127.0.0.1:{port}/health"
            wait_until_served(process, [health], READY_SECONDS_MAX, Path(log.name))
            yield process, port
        except NotServed as error:
            raise DemoFailed(str(error)) from None


def client(port: int) -> Any:
    """The official client of a server here."""
    import openai

    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def ask(
    client: Any, model: str, session: str, messages: Sequence[dict[str, str]], max_tokens: int
) -> tuple[str, Any, dict[str, Any]]:
    """A chat's text, usage and receipt."""
    reply = client.chat.completions.create(
        model=model, messages=list(messages), max_tokens=max_tokens, temperature=0.7, seed=7,
        extra_headers={"x-kvtape-session": session},
    )  # fmt: skip
    return reply.choices[0].message.content, reply.usage, reply.model_extra["kvtape"]


def said(story: Story, question: str, answer: str) -> None:
    """A turn of a chat."""
    story.say(f"  [cyan]you:[/cyan]   {question}")
    story.say(f"  [cyan]model:[/cyan] {' '.join(answer.split())}")


def tool(story: Story, *arguments: str) -> dict[str, Any]:
    """Run a reading command; its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "kvtape", *arguments, "--json"], capture_output=True, text=True
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise DemoFailed(f"kvtape {' '.join(arguments)}: {done.stderr[-2000:]}") from None
    return found | {"exit": done.returncode}


def equal(story: Story, found: dict[str, Any], what: str) -> None:
    """Say that a replay was equal. Raises DemoFailed if it was not."""
    if found["verdict"] != "equal":
        raise DemoFailed(f"{what}: {found}")
    compared = sum(found["compared"].values())
    story.say(
        f"{what}: [green]equal[/green], {compared} digests and tokens over {found['steps']} steps,"
        f" {found['seconds']:.1f} s with loading"
    )
