"""`python -m kvtape.devices.cuda sm_90 MODEL...`: compiles kernels for a GPU that is elsewhere."""

import re
import sys

from ..weights.checkpoint import ModelError
from .card import NoCard, lacking

USAGE = "python -m kvtape.devices.cuda sm_90 MODEL...: a chip, and models by name or path"


def main(arguments: list[str]) -> int:
    """The exit code: 0 compiled, 1 not all, 2 wrong use, 3 refused."""
    if not arguments or not re.fullmatch(r"sm_\d+a?", arguments[0]):
        return _said(USAGE, 2)
    try:
        from .ahead import fill_for

        return fill_for(arguments[0], arguments[1:])
    except ImportError as error:
        return _said(lacking(error), 3)
    except ModelError as error:
        return _said(str(error), 2)
    except NoCard as error:
        return _said(str(error), error.exit_code)


def _said(why: str, code: int) -> int:
    sys.stderr.write(f"{why}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
