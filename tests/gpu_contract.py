"""Run as a process on a GPU: the bits of every CUDA kernel over random cases and golden vectors."""

import sys

from kvtape.core.kernels import registry
from kvtape.devices.cuda.checking import check_card

CASES = 120


def main() -> int:
    """1 if any kernel parts from its meaning."""
    verdicts = list(check_card(CASES))
    lines = [f"{one.kernel}: {one.first}" for one in verdicts if one.first]
    print("\n".join([*lines, registry.summary(verdicts)]), flush=True)  # noqa: T201
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
