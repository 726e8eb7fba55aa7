"""`/metrics` for Prometheus: what the newest readings say, and nothing about GPUs that are gone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS, MetricKind, MetricSpec, split_variant
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.telemetry.metrics import OWN_METRICS


@dataclass(frozen=True, slots=True)
class _Update:
    """The newest readings of one source, and when they came on the monotonic scale."""

    readings: tuple[Reading, ...]
    came: float


def gpu_labels(gpu: Gpu) -> dict[str, str]:
    """Labels of a GPU's series. For a MIG instance ``gpu_uuid`` is the physical GPU, ``mig_uuid`` the instance.

    ``simulated`` is there on simulated GPUs only, so that no query over real ones can meet them unawares.
    """
    labels = {
        "gpu_uuid": gpu.parent or gpu.uuid,
        "gpu_index": "" if gpu.index is None else str(gpu.index),
        "model": gpu.model,
        "host": gpu.host,
        "pool": gpu.pool,
    }
    if gpu.is_mig:
        labels |= {"mig_uuid": gpu.uuid, "mig_profile": gpu.mig_profile}
    if gpu.simulated:
        labels["simulated"] = "true"
    return labels


def _family(spec: MetricSpec) -> Metric:
    # The library adds the suffix of a counter itself and would double one that the family's name has already.
    return Metric(spec.name.removesuffix("_total"), spec.help, spec.kind.value)


def _sample_name(spec: MetricSpec) -> str:
    return spec.name if spec.kind is MetricKind.GAUGE else spec.name.removesuffix("_total") + "_total"


class FleetCollector(Collector):
    """Exports the newest readings of each source.

    A GPU that its source no longer reports, and a source that has been silent for `max_age_seconds`, is not exported:
    an old value that looks new is worse than none. `update` may run beside a scrape.
    """

    def __init__(self, clock: Clock, max_age_seconds: float) -> None:
        self._clock = clock
        self._max_age = max_age_seconds
        self._updates: dict[str, _Update] = {}
        self._lock = threading.Lock()

    def update(self, source: str, readings: Iterable[Reading]) -> None:
        """Replace all that `source` said before; of several readings of one GPU the newest counts."""
        newest: dict[str, Reading] = {}
        for reading in readings:
            if (known := newest.get(reading.gpu.uuid)) is None or known.at_ms <= reading.at_ms:
                newest[reading.gpu.uuid] = reading
        with self._lock:
            self._updates[source] = _Update(tuple(newest.values()), self._clock.monotonic())

    def describe(self) -> Iterable[Metric]:
        """Nothing: which families there are depends on the readings."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Families in the order of the metric table, then what is missing and how many GPUs there are."""
        current = self._current()
        yield from self._families([reading for readings in current.values() for reading in readings])
        missing = Counter(
            reason for readings in current.values() for reading in readings for reason in reading.missing.values()
        )
        yield _own_gauge("tocsin_missing_readings", "reason", {reason.label: missing[reason] for reason in Missing})
        yield _own_gauge("tocsin_gpus", "source", {source: len(readings) for source, readings in current.items()})

    def _current(self) -> dict[str, Sequence[Reading]]:
        now = self._clock.monotonic()
        with self._lock:
            return {
                source: update.readings if now - update.came <= self._max_age else ()
                for source, update in sorted(self._updates.items())
            }

    def _families(self, readings: Sequence[Reading]) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for reading in readings:
            labels = gpu_labels(reading.gpu)
            for key, value in reading.values.items():
                name, label, text = split_variant(key)
                if (spec := METRICS.get(name)) is None:
                    continue
                if (family := families.get(name)) is None:
                    family = families[name] = _family(spec)
                family.add_sample(_sample_name(spec), {**labels, label: text} if label else labels, value)
        for name in METRICS:
            if name in families:
                yield families[name]


def _own_gauge(name: str, label: str, values: Mapping[str, int]) -> Metric:
    family = Metric(name, OWN_METRICS[name].help, "gauge")
    for text, value in values.items():
        family.add_sample(name, {label: text}, value)
    return family


class MetricsServer:
    """Serves a registry at ``/metrics`` from a thread of its own.

    `port` 0 takes a free one; `url` and `port` are the real ones. Raises InputError where the address cannot be bound.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InputError(
                "agent.listen",
                f"{host}:{port}",
                f"cannot be listened on ({error.strerror or error})",
                "choose an address of this host and a port that is free; port 0 takes any",
            ) from None
        self.port = int(self._server.server_port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/metrics"

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
