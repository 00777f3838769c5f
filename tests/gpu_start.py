"""Run as a process on a GPU: seconds until a server answers, its first start and the next ones.

At the first nothing is compiled yet: neither the kernels for the card nor the page book.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from .gpu_decode import named_model, tell
from .server import serving

STARTS = ("nothing compiled yet", "all compiled")


def main() -> None:
    """Print the table."""
    with TemporaryDirectory() as folder:
        model = named_model("", Path(folder))
        tell(f"| {Path(model).name} | seconds until it answers |")
        tell("|---|---|")
        for start in STARTS:
            tell(f"| {start} | {seconds(model, Path(folder), f'{start}.tape'):.1f} |")


def seconds(model: str, folder: Path, tape: str) -> float:
    """From its process to its first answer; what is compiled stays in the folder."""
    compiled, start = str(folder / "compiled"), time.perf_counter()
    flags = ("--device", "cuda", "--context", "1024")
    with serving(folder, *flags, model=model, tape=tape, KVTAPE_CACHE=compiled):
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
