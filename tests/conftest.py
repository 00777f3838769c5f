"""What all tests share: one folder of compiled kernels, and no test that a slow machine fails."""

from hypothesis import settings

from kvtape.devices.kernel_cache import use_cache

use_cache()
settings.register_profile("kvtape", deadline=None)
settings.load_profile("kvtape")
