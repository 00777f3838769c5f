"""The figures of /metrics: the engine's, read at each scrape, and the door's own histograms."""

from collections.abc import Callable, Iterator
from dataclasses import fields

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
    "hits": ("prompt_store_hits", "Prompts that resumed from a kept state"),
    "misses": ("prompt_store_misses", "Prompts that found no kept state"),
    "evicted": ("prompt_store_evicted", "Kept states dropped to make room"),
    "refused": ("requests_refused", "Requests that could not be served"),
}
_GAUGES = {
    "requests_running": ("requests_running", "Streams in lanes"),
    "requests_waiting": ("requests_waiting", "Streams that wait for a lane"),
    "pages_total": ("pages", "Pages of the pool"),
    "pages_free": ("pages_free", "Pages nobody holds"),
    "pages_held": ("pages_held", "Pages that kept states hold"),
    "kept_states": ("kept_states", "Kept states"),
    "queue_age_seconds": ("queue_age_seconds", "How long the oldest waiting request has waited"),
}
assert set(_COUNTERS) | set(_GAUGES) == {field.name for field in fields(Meters)}


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
        used = meters.pages_total - meters.pages_free
        ratio = used / meters.pages_total if meters.pages_total else 0.0
        yield GaugeMetricFamily("kvtape_kv_cache_usage_ratio", "Pages in use", value=ratio)


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
