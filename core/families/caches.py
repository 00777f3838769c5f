"""What the caches of a layer are called, by family and part: how faults and places name them."""

_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {"rows": ("k", "v")},
    "glm": {
        "rows": ("latent",),
        "keys": ("pool",),
        "states": ("state",),
        "rings": ("qkv",),
        "drafts": ("latent", "pool"),
    },
}
_ONE = ("k",)  # where there is nothing to tell apart


def cache_names(family: str, part: str) -> tuple[str, ...]:
    """The caches that a layer of a part has; digest layers count them within each layer."""
    return _NAMES.get(family, {}).get(part, _ONE)


def digest_layer(family: str, part: str, layer: int, cache: str) -> int:
    """The digest layer of a layer's cache. Raises ValueError for a cache of another name."""
    names = cache_names(family, part)
    if cache not in names:
        raise ValueError(f"{part} has caches {', '.join(names)}, not {cache!r}")
    return len(names) * layer + names.index(cache)
