"""Run as a process on a GPU: seconds until a server answers, its first start and the next ones.

At the first nothing is compiled yet: neither the kernels for the card nor the page book.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from .gpu_decode import named_model, tell
from .gpu_sessions import GLM
from .server import serving

STARTS = ("nothing compiled yet", "all compiled", "again")


def main() -> None:
    """Print the table."""
    with TemporaryDirectory() as folder:
        tell("| model | start | seconds until it answers |")
        tell("|---|---|---|")
        for model in (named_model("", Path(folder)), GLM):
            for number, start in enumerate(STARTS):
                took = seconds(model, Path(folder), f"{Path(model).stem}-{number}.tape")
                tell(f"| {Path(model).name} | {start} | {took:.1f} |")


def seconds(model: str, folder: Path, tape: str) -> float:
    """From its process to its first answer; what is compiled stays in the folder."""
    compiled, start = str(folder / f"{Path(model).stem} compiled"), time.perf_counter()
    flags = ("--device", "cuda", "--context", "1024")
    with serving(folder, *flags, model=model, tape=tape, KVTAPE_CACHE=compiled):
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
