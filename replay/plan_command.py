"""The command `plan`: how a model's room would be divided, without loading a weight."""

from collections.abc import Mapping

from ..core.families.family import UnsupportedShape
from ..core.plan import PlanRefused
from ..devices.weights.checkpoint import ModelError
from .opening import BadOption
from .plan_asked import PlanOptions, read_asked
from .plan_show import fits_json, plan_json, refused_json, show_fits, show_plan
from .plan_start import Asked
from .show import EQUAL, REFUSED, WRONG_USE, fail, say_json


def run_plan(options: PlanOptions, environment: Mapping[str, str]) -> int:
    """Print a plan, or why there is none. 0 it fits, 2 wrong use, 3 refused."""
    try:
        asked = read_asked(options, environment)
    except BadOption as error:
        return fail(error, error.exit_code, as_json=options.as_json)
    except (ModelError, UnsupportedShape) as error:
        return fail(error, WRONG_USE, as_json=options.as_json)
    try:
        return _tell(options, asked)
    except PlanRefused as error:
        return _refuse(options, asked, error)


def _tell(options: PlanOptions, asked: Asked) -> int:
    found = asked.plan()
    if not options.as_json:
        show_plan(asked, found)
        if options.what_fits:
            show_fits(asked)
        return EQUAL
    say_json(plan_json(asked, found) | (fits_json(asked) if options.what_fits else {}))
    return EQUAL


def _refuse(options: PlanOptions, asked: Asked, error: PlanRefused) -> int:
    if options.as_json:
        say_json(refused_json(asked, error) | (fits_json(asked) if options.what_fits else {}))
        return REFUSED
    fail(error, REFUSED, as_json=False)
    if options.what_fits:
        show_fits(asked)
    return REFUSED
