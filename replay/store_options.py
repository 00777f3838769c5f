"""Which store keeps a server's prompts, how many or how large: from flags and environment."""

from collections.abc import Mapping
from typing import NamedTuple

from ..core.plan_pages import SwitchRefused, refuse_share
from ..core.plan_wanted import CACHE_BYTES
from .opening import STORES, BadOption
from .plan_options import gib_of, kv_pages_of, kv_share_of, one_of


class Keeping(NamedTuple):
    """store: radix or flat.  share: kept states by reference, 0: as many as by default.

    cache_bytes: of all copies of the flat store, on the first rank.
    """

    store: str = "radix"
    share: int = 0
    cache_bytes: int = CACHE_BYTES


def keeping_of(
    store: str, share: str, prompt_cache_gib: str, environment: Mapping[str, str]
) -> Keeping:
    """What a start was asked to keep. Raises BadOption where switches do not go together."""
    which = one_of("--store", store, tuple(STORES))
    count, pages = kv_share_of(share, environment), kv_pages_of("", environment)
    try:
        refuse_share(count, pages)
    except SwitchRefused as error:
        raise BadOption(str(error)) from None
    given = prompt_cache_gib.strip()
    if which == "flat":
        if count:
            raise BadOption(
                f"--store flat with --share {count} (TF_GLM_KV_SHARE): states by reference stand in"
                " the radix store; --store radix, or --share 0"
            )
        return Keeping(which, 0, gib_of("--prompt-cache-gib", given) if given else CACHE_BYTES)
    if given and gib_of("--prompt-cache-gib", given):
        raise BadOption(
            f"--prompt-cache-gib {given}: the radix store keeps prompts on the pool's pages;"
            " --store flat copies them into so many GiB"
        )
    return Keeping(which, count)
