"""What all tests share: one folder of compiled kernels."""

from kvtape.devices.kernel_cache import use_cache

use_cache()
