"""What all tests share: one folder of compiled kernels, and no test that a slow machine fails."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings
from rich.logging import RichHandler

from kvtape.devices.kernel_cache import use_cache

use_cache()
settings.register_profile("kvtape", deadline=None)
settings.load_profile("kvtape")
_OURS = (logging.StreamHandler, RichHandler)  # what set_up_logging puts there


@pytest.fixture(autouse=True)
def logs_end_with_their_test() -> Iterator[None]:
    """A server that a test ran within itself logs to a stream that is gone afterwards."""
    yield
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one) in _OURS]:
        root.removeHandler(handler)
