"""A served run and its kept prompts, from outside: bursts, salts and the flush."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtape.events import facts as f
from kvtape.events.reader import Tape

from .server import Server, serving, wish

PROMPT = [at * 7 % 251 for at in range(1500)]
KEPT = 1472  # the last page that leaves a row to run


def cached(server: Server, **more: Any) -> int:
    """Ask for a reply; the rows that it took over."""
    body = wish(server.model, PROMPT, 4) | more
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    told: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told


def flush(server: Server, path: str = "/flush_prompt_cache") -> dict[str, int]:
    """Drop what is kept."""
    reply = httpx.post(server.url + path, timeout=60)
    assert reply.status_code == 200
    counts: dict[str, int] = reply.json()
    return counts


@pytest.mark.parametrize("model", ["fake", "fake-pages"])
def test_a_burst_of_equal_prompts_costs_one_and_a_flush_forgets_it(
    tmp_path: Path, model: str
) -> None:
    with serving(tmp_path, "--parallel", "8", model=model) as server:
        free = flush(server)["pages_free"]
        with ThreadPoolExecutor(8) as eight:
            found = sorted(eight.map(lambda _: cached(server), range(8)))
        assert found == [0] + [KEPT] * 7
        assert cached(server) == KEPT
        for path in ("/flush_prompt_cache", "/v1/cache/flush"):
            assert cached(server, cache_salt=path) == 0, "another salt shares nothing"
            counts = flush(server, path)
            assert (counts["states_kept"], counts["pages_free"]) == (0, free)
            assert counts["states_dropped"] >= 1
        assert flush(server)["states_dropped"] == 0
        assert cached(server) == 0
        assert server.stop() == 0
    with Tape.open(server.tape) as tape:
        facts = [fact for step in tape.steps() for fact in step.facts]
    begun = [fact for fact in facts if isinstance(fact, f.StreamBegun)]
    assert [fact.state for fact in begun[:1]] == [-1]
    assert len([fact for fact in facts if isinstance(fact, f.RequestFinished)]) == 12
