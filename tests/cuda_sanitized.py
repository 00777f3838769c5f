"""Run as a process on a GPU: NVIDIA's memory checkers over short runs of both families.

Without arguments each tool runs this script once more, with the argument `run`: the smallest case
of every twin, then scenes of tiny models, each kernel launched by itself. Findings are counted.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# Each tool's own options. memcheck counts calls that a driver refuses, too, and libraries ask on
# purpose for functions that it may lack; a refused call of ours raises, and the run has no end.
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": (), "initcheck": ()}
LIMIT_S = 180
SHOWN = 30  # lines of a tool's findings
COUNTED = re.compile(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+) (?:error|hazard)")


def tell(line: str) -> None:
    """A line, at once."""
    print(line, flush=True)  # noqa: T201


def tool_run(tool: str) -> tuple[str, bool]:
    """What a tool said, in short, and whether it found nothing over a run that came to its end."""
    command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--print-limit", "20",
               "--target-processes", "application-only",
               sys.executable, "-m", "kvtape.tests.cuda_sanitized", "run"]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        came = sum(line.startswith("ran ") for line in text.splitlines())
        return f"{tool}: not done after {LIMIT_S} s, {came} parts ran\n{text[-800:]}", False
    found = [int(count) for count in COUNTED.findall(done.stdout + done.stderr)]
    sound = done.returncode == 0 and found == [0] and "the end" in done.stdout
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    shown = [] if sound else [*lines[:SHOWN], "...", *lines[-SHOWN:]]
    ran = sum(line.startswith("ran ") for line in lines)
    return "\n".join([f"{tool}: {found} findings, {ran} parts ran", *shown]), sound


def run() -> None:
    """The work that is looked at."""
    from kvtape.core.kernels.cuda import twins
    from kvtape.devices.cuda.card import open_card
    from kvtape.devices.cuda.device import CudaDevice
    from kvtape.devices.kernel_cache import use_cache

    from .cpu_rig import tiny
    from .cuda_glm_rig import GlmEagerRig
    from .cuda_rig import EagerRig
    from .device_play import play
    from .glm_play import play as glm_play

    CudaDevice.warm = lambda self: None  # type: ignore[method-assign]
    use_cache()
    open_card(0).use()
    for one in twins.twins():
        verdict = twins.check(one, np.random.default_rng(5), 1, 1)
        assert not verdict.first, verdict
        tell(f"ran {one.name}")
    for scene in ("ragged", "poisoned"):
        play(scene, lambda **more: EagerRig(tiny(), **more))
        tell(f"ran llama, {scene}")
    glm_play("rounds", GlmEagerRig)
    tell("ran glm, rounds")
    tell("the end")


def main(arguments: list[str]) -> int:
    """1 if a tool found anything."""
    if arguments == ["run"]:
        run()
        return 0
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        outcomes = list(pool.map(tool_run, arguments or list(TOOLS)))
    for said, _ in outcomes:
        tell(said)
    return int(not all(sound for _, sound in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
