"""What goes wrong on a GPU is said and ends in order: too little memory, a kernel that fails."""

import threading
from pathlib import Path
from typing import Any

import pytest

from kvtape.events.reader import Tape
from kvtape.events.verify import verify
from kvtape.replay.run_diff import run_audit
from kvtape.tests.cpu_rig import TINY
from kvtape.tests.server import Seen, command, serving, stream, tool, wish

from .test_cuda_device import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="no CUDA device here"),
]
PROMPT = list(range(40, 52))
TRAPPED = 9  # of the steps that have both streams, whenever the second comes


def test_more_than_the_card_has_is_refused_with_numbers(tmp_path: Path) -> None:
    """Before anything is allocated, and nothing is left behind: the next start has room."""
    flags = ("--device", "cuda", "--port", "0", "--trace", tmp_path / "run.tape")
    done = tool("serve", TINY, *flags, "--pages", str(1 << 28))
    assert done.returncode == 3, done.stderr[-2000:]
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert "GiB" in said and "--pages" in said, said
    with serving(tmp_path, "--device", "cuda", model=str(TINY), tape="next.tape") as server:
        server.model = TINY.name
        assert len(server.ask(PROMPT, 5)) == 5
        assert server.stop() == 0


def test_a_kernel_that_fails_in_a_round_ends_streams_tape_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trapped(*arguments: Any) -> list[str]:
        line = command(*arguments)
        at = line.index("kvtape")
        return [*line[:at], "kvtape.tests.cuda_trap", str(TRAPPED), *line[at + 1 :]]

    monkeypatch.setattr("kvtape.tests.server.command", trapped)
    seen = [Seen(), Seen()]
    with serving(tmp_path, "--device", "cuda", model=str(TINY)) as server:
        server.model = TINY.name
        clients = [
            threading.Thread(
                target=stream,
                args=(server, wish(server.model, [*PROMPT, at], 400, stream=True), one, f"s{at}"),
            )
            for at, one in enumerate(seen)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(100)
        assert server.wait() == 1
    said = server.said()
    assert "failed on its GPU in step" in said
    for one in seen:
        assert one.error is not None and not one.whole, one
        assert one.error["code"] == "engine_failed"
    with Tape.open(server.tape) as tape:
        assert tape.closed is not None and tape.closed.reason == "failed"
        assert "rank 0 failed on its GPU in step" in tape.closed.error
    assert verify(server.tape) == []
    assert run_audit(server.tape) == 0
