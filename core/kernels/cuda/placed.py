"""Arrays that launchers make or read themselves: on the device, and back on the host."""

import numpy as np
from numba import cuda

from . import target


def on_device(array):
    """A copy on the device; the array itself where launches are only recorded."""
    return array if target._recorded is not None else cuda.to_device(array)


def host(array):
    """What stands in an array of the device."""
    return array.copy_to_host() if hasattr(array, "copy_to_host") else np.asarray(array)
