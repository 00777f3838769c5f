"""Run as a process: the GLM on numba's simulator of a GPU beside the CPU's, a model of two layers.

Prints a line of JSON a device: what it said of each step. The simulator is chosen by the
environment before numba is loaded.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from kvtape.devices.kernel_cache import use_cache
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events import facts as f
from kvtape.events.ids import StateId
from kvtape.tests.cpu_rig import ids
from kvtape.tests.cuda_glm_rig import GlmEagerRig
from kvtape.tests.device_play import SAMPLINGS, Told, told
from kvtape.tests.glm_rig import GlmRig
from kvtape.tests.soil_watch import watched_soil
from kvtape.tests.tiny_glm import config, stored, weights, write

TOKENS = [7, 1, 40, 33, 12, 12]
SMALL: dict[str, Any] = {
    "lanes": 2, "context": 64, "pages": 24, "prompt_rows": 6, "digests": "full", "states": 1,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "deepseek_sparse_attention"],
    "mlp_layer_types": ["dense", "sparse"], "index_topk": 4,
}  # fmt: skip
PAGE, DRAFTS = 4, 2


def steps(rig: GlmRig, rounds: int) -> list[Told]:
    """Two prompts, the first in two steps and kept; rounds with windows; the kept one resumed."""
    one, seat = rig.begin(TOKENS, draft=True)
    prompt = f.PromptStepRun(stream=one, first=0, rows=4)
    found = [told(rig.step(*seat, *rig.lease(one, 4), prompt, every_row=True)[0])]
    taken = f.SnapshotTaken(state=StateId(0), stream=one, mark=4, shared=False, pages=(), digest={})
    rest = f.PromptStepRun(stream=one, first=4, rows=2)
    report = rig.step(taken, *rig.lease(one, 8), rest)[0]
    found.append({**told(report), "drafts": drafted(rig)})
    for _ in range(rounds):
        report = rig.step(*round_of(rig, one, report.tokens))[0]
        found.append({**told(report), "drafts": drafted(rig)})
    again, seat = rig.begin(TOKENS[:5], SAMPLINGS[1], draft=True, state=StateId(0))
    lease = f.PagesLeased(stream=again, first=0, pages=rig.state.book.next(1))
    found.append(told(rig.step(*seat, lease)[0]))
    resumed = f.StateResumed(stream=again, state=StateId(0), mark=4, digest={})
    rest = f.PromptStepRun(stream=again, first=4, rows=1)
    found.append(told(rig.step(resumed, *rig.lease(again, 5), rest)[0]))
    rows = rig.state.streams[one].rows
    for part, at in (("rows", 2), ("keys", 3), ("drafts", 1), ("states", 0), ("rings", rows - 1)):
        held = rig.device.read(rig.state, one, part, 0, at)
        found.append({part: [row.hex() for row in held.values()]})
    return found


def one_step(rig: GlmRig) -> list[Told]:
    """A prompt of one row."""
    one, seat = rig.begin(TOKENS[:1])
    prompt = f.PromptStepRun(stream=one, first=0, rows=1)
    return [told(rig.step(*seat, *rig.lease(one, 1), prompt, every_row=True)[0])]


def drafted(rig: GlmRig) -> list[Any]:
    """What is drafted by lane, and how much of it."""
    counts = rig.device.draft_counts
    return [rig.device.drafts[lane, : counts[lane]].tolist() for lane in range(len(counts))]


def round_of(rig: GlmRig, stream: Any, new: list[int]) -> list[Any]:
    """The facts of a round after these tokens were kept."""
    known = rig.state.streams[stream]
    return [
        f.RowsKept(streams=(stream,), starts=(0, len(new)), tokens=ids(new)),
        *rig.lease(stream, len(known.tokens) + len(new) + 1),
        f.RoundRun(lanes=(known.lane,)),
    ]


def main() -> None:
    """Play on both devices; the argument: how many rounds, or none for one row without drafts."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    use_cache()
    sizes = config(**SIZES)
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "tiny", sizes, stored(weights(sizes), "BF16"))
        for kind in (GlmRig, GlmEagerRig):
            rounds = [int(one) for one in sys.argv[1:]]
            drafts = DRAFTS if rounds else 0
            with (
                watched_soil(),
                kind(
                    checkpoint=GlmCheckpoint(path),
                    page_rows=PAGE,
                    drafts=drafts,
                    poison="a",
                    **SMALL,
                ) as rig,
            ):
                found = steps(rig, rounds[0]) if rounds else one_step(rig)
                print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
