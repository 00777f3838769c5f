"""The figures of /metrics: the engine's, read at each scrape, and the door's own histograms."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .engine import Meters
from .talk import Talk

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

# Field of Meters: metric without its prefix (counters get `_total`), and its help.
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of accepted requests"),
    "generated_tokens": ("generation_tokens", "Reply tokens"),
    "drafted_tokens": ("drafted_tokens", "Tokens drafted"),
    "accepted_drafts": ("accepted_draft_tokens", "Drafted tokens that were kept"),
    "cached_tokens": ("cached_tokens", "Prompt tokens resumed from kept states"),
    "rounds": ("decode_rounds", "Rounds"),
    "steps": ("steps", "Steps"),
    "lookups": ("prompt_store_lookups", "Prompts that came into a lane"),
    "hits": ("prompt_store_hits", "Prompts that resumed from a kept state"),
    "kept": ("prompt_store_kept", "States kept"),
    "evicted": ("prompt_store_evicted", "Kept states dropped to keep others"),
    "reclaimed": ("prompt_store_reclaimed", "Kept states dropped to give streams their pages"),
    "not_kept": (
        "prompt_store_refused",
        "States due that the store had no place for",
    ),
    "failed": ("prompt_store_failed", "Kept states that the ranks could not read back"),
    "refused": ("requests_refused", "Requests that could not be served"),
}
_GAUGES = {
    "requests_running": ("requests_running", "Streams in lanes"),
    "requests_waiting": ("requests_waiting", "Streams that wait for a lane"),
    "pages_total": ("pages", "Pages of the pool"),
    "pages_free": ("pages_free", "Pages nobody holds"),
    "pages_held": ("pages_held", "Pages that kept states hold"),
    "kept_states": ("kept_states", "Kept states"),
    "kept_states_max": ("kept_states_limit", "Kept states at most, 0 where bytes bound them"),
    "store_bytes": ("prompt_store_bytes", "Bytes of states kept as copies, on the first rank"),
    "store_bytes_max": ("prompt_store_bytes_limit", "Bytes of states kept as copies at most"),
    "queue_age_seconds": ("queue_age_seconds", "How long the head of the queue has waited"),
}
# Field of Meters that has a value for each of some words: also the name of their label.
_COUNTERS_BY = {
    "misses": (
        "prompt_store_misses", "reason", "Prompts that came into a lane and resumed nothing"
    ),
    "missed_tokens": (
        "prompt_store_missed_tokens", "reason",
        "Prompt tokens up to the last possible mark that no kept state held, of hits too",
    ),
}  # fmt: skip
_GAUGES_BY = {
    "pages_by_holder": (
        "pages_by_holder", "holder",
        "Pages: free, promised to streams, of streams alone, of kept states alone, shared by both",
    ),
}  # fmt: skip
_SHOWN = _COUNTERS.keys() | _GAUGES.keys() | _COUNTERS_BY.keys() | _GAUGES_BY.keys()
assert _SHOWN - {"lookups"} == {field.name for field in fields(Meters)}


class _EngineMeters(Collector):
    """Reads the engine's figures when it is asked."""

    def __init__(self, read: Callable[[], Meters]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """One family a figure."""
        meters = self._read()
        for field, (name, help_text) in _COUNTERS.items():
            yield CounterMetricFamily(f"kvtape_{name}", help_text, value=getattr(meters, field))
        for field, (name, help_text) in _GAUGES.items():
            yield GaugeMetricFamily(f"kvtape_{name}", help_text, value=getattr(meters, field))
        for field, (name, label, help_text) in _COUNTERS_BY.items():
            counter = CounterMetricFamily(f"kvtape_{name}", help_text, labels=[label])
            yield _filled(counter, getattr(meters, field))
        for field, (name, label, help_text) in _GAUGES_BY.items():
            gauge = GaugeMetricFamily(f"kvtape_{name}", help_text, labels=[label])
            yield _filled(gauge, getattr(meters, field))
        used = meters.pages_total - meters.pages_free
        ratio = used / meters.pages_total if meters.pages_total else 0.0
        yield GaugeMetricFamily("kvtape_kv_cache_usage_ratio", "Pages in use", value=ratio)


Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


def _filled(family: Family, values: Mapping[str, int]) -> Family:
    """A family with a sample for each word."""
    for word, value in values.items():
        family.add_metric([word], value)
    return family


class Metrics:
    """A registry of this door alone."""

    def __init__(self, read: Callable[[], Meters]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineMeters(read))
        self._first = Histogram(
            "kvtape_time_to_first_token_seconds", "From arrival to the first reply token",
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self._whole = Histogram(
            "kvtape_request_seconds", "From arrival to the end, however it ended",
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip

    def count(self, talk: Talk, now: float) -> None:
        """A request is over; now in monotonic seconds."""
        if talk.first_token_at is not None:
            self._first.observe(talk.first_token_at - talk.began_at)
        self._whole.observe(now - talk.began_at)

    def page(self) -> tuple[bytes, str]:
        """The text of /metrics and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
