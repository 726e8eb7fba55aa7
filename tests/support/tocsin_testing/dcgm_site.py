"""A small site's past in dcgm-exporter's metrics: what a Prometheus would have scraped, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tocsin.domain.clock import HOUR, SECOND

INTERVAL = 30 * SECOND
HOURS = 3
SCRAPED = {"instance": "10.0.0.{n}:9400", "job": "dcgm", "namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-{n}"}


@dataclass(frozen=True, slots=True)
class Point:
    """One sample as the server keeps it."""

    name: str
    labels: Mapping[str, str]
    value: float
    at_ms: int

    @property
    def head(self) -> str:
        """Name and labels in the text format."""
        return self.name + "{" + ",".join(f'{key}="{value}"' for key, value in self.labels.items()) + "}"

    def text(self) -> str:
        """The line of Prometheus' text format, with its instant."""
        return f"{self.head} {self.value!r} {self.at_ms}\n"


def labels_of(host: int, gpu: int, **more: str) -> dict[str, str]:
    """Labels of one GPU after a scrape that does not honour the exporter's."""
    base = {key: value.format(n=host) for key, value in SCRAPED.items()}
    own = {
        "gpu": str(gpu),
        "UUID": f"GPU-{host}-{gpu}",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": f"node-{host}",
    }
    return {**base, **own, **more}


def renamed(labels: Mapping[str, str]) -> dict[str, str]:
    """The same GPU as a newer exporter names it."""
    names = {"UUID": "gpu_uuid", "Hostname": "hostname", "modelName": "model_name"}
    return {names.get(key, key): value for key, value in labels.items()}


def instants(start_ms: int) -> Iterator[tuple[int, int]]:
    """(number, instant) of every scrape: each host is scraped at an offset of its own, some milliseconds off."""
    for k in range(HOURS * HOUR // INTERVAL):
        yield k, start_ms + k * INTERVAL + 7_123


def site(start_ms: int) -> list[Point]:
    """Three hours of two nodes with two GPUs each, one of the GPUs with two MIG instances.

    Node 1 is silent for twenty minutes and then has other label names; GPU 1 of node 1 gets XID 79 after an hour and
    XID 79 again two minutes later, and is gone from then on; GPU 0 of node 2 has sentinels and a pod for a while.
    """
    points: list[Point] = []
    for k, at_ms in instants(start_ms):
        for host in (1, 2):
            when = at_ms + host * 4_321
            silent = host == 1 and 200 <= k < 240
            if not silent:
                for gpu in (0, 1):
                    if not (host == 1 and gpu == 1 and k > 130):
                        points += _gpu(host, gpu, k, when)
    return points


def _gpu(host: int, gpu: int, k: int, at_ms: int) -> Iterator[Point]:
    labels = labels_of(host, gpu)
    if host == 1 and k >= 240:
        labels = renamed(labels)
    if host == 2 and gpu == 0 and 100 <= k < 160:
        labels |= {"exported_pod": "train-0", "exported_namespace": "ml", "exported_container": "main"}
    broken = host == 1 and gpu == 1 and k >= 120
    values = {
        "DCGM_FI_DEV_GPU_TEMP": 40 + (k + gpu) % 7,
        "DCGM_FI_DEV_POWER_USAGE": 95.123 + k % 5,
        "DCGM_FI_DEV_GPU_UTIL": k % 100,
        "DCGM_FI_DEV_FB_USED": 1000 + k,
        "DCGM_FI_DEV_FB_FREE": 80000 - k,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1_000_000 + 3_000_000 * k,
        "DCGM_FI_DEV_XID_ERRORS": 79 if broken else 0,
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0,
    }
    if host == 2:
        values["DCGM_FI_DEV_MEMORY_TEMP"] = 9223372036854775808 if gpu == 0 else 50
    for name, value in values.items():
        yield Point(name, labels, float(value), at_ms)
    if broken:
        counted = {**labels, "xid": "79", "window_size_in_ms": "300000"}
        yield Point("DCGM_EXP_XID_ERRORS_COUNT", counted, float(2 if k >= 124 else 1), at_ms)
    if host == 2 and gpu == 1:
        for instance, load in (("1", 0.25), ("2", 0.75)):
            mig = {**labels, "GPU_I_ID": instance, "GPU_I_PROFILE": "1g.10gb"}
            yield Point("DCGM_FI_PROF_GR_ENGINE_ACTIVE", mig, load, at_ms)


def openmetrics(points: list[Point]) -> str:
    """For promtool: OpenMetrics wants families together, seconds and an end mark."""
    lines: list[str] = []
    for name in sorted({point.name for point in points}):
        lines.append(f"# TYPE {name} gauge")
        lines += [f"{p.head} {p.value!r} {p.at_ms / 1000:.3f}" for p in points if p.name == name]
    return "\n".join([*lines, "# EOF", ""])
