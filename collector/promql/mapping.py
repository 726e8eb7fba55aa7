"""What the series of other exporters than dcgm-exporter mean: one TOML table an exporter, of Tocsin's or of the site.

    uuid_prefix = "GPU-"                                 # in front of identities that do not have it
    [labels]
    uuid = ["uuid"]                                      # the first of these labels that has a value
    [metrics]
    acme_temp_fahrenheit_tenths = { metric = "gpu_temperature_celsius", scale = 0.1 }

dcgm-exporter itself needs no table: `tocsin.collector.dcgm.exposition` knows its names and labels in all releases.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tocsin.collector.dcgm.exposition import Entity, Head, LineLabels, Use, host_of
from tocsin.collector.dcgm.fields import Field as ReadField
from tocsin.collector.dcgm.readings import SINCE_START_MS
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS, nearest, split_variant
from tocsin.domain.reading import Gpu, Owner, normalise_pci_bus_id

MAX_FILE_BYTES = 256 * 1024
MAX_METRICS = 1_000
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_EXPORTER = re.compile(r"exporter", re.IGNORECASE)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Target(_Table):
    """Where one series goes."""

    metric: str
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    second: bool = False
    only: dict[str, str] = Field(default_factory=dict, max_length=8)

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        name, label, _ = split_variant(value)
        spec = METRICS.get(name)
        if spec is None or spec.entity != "gpu" or (label and label != spec.label):
            raise ValueError(f"is no metric of a GPU; the nearest is {nearest(name)} (docs/metrics.md)")
        return value


class _Labels(_Table):
    """Labels of an exporter, by what they say; of several the first that has a value counts."""

    uuid: list[str] = Field(default_factory=list)
    partition: list[str] = Field(default_factory=list)
    instance: list[str] = Field(default_factory=list)
    index: list[str] = Field(default_factory=list)
    host: list[str] = Field(default_factory=list)
    model: list[str] = Field(default_factory=list)
    driver: list[str] = Field(default_factory=list)
    pci_bus_id: list[str] = Field(default_factory=list)
    pod: list[str] = Field(default_factory=list)
    namespace: list[str] = Field(default_factory=list)
    container: list[str] = Field(default_factory=list)
    job: list[str] = Field(default_factory=list)
    xid: list[str] = Field(default_factory=lambda: ["xid"])

    @field_validator("*")
    @classmethod
    def _spelt(cls, value: list[str]) -> list[str]:
        if len(value) > 8 or not all(_LABEL.fullmatch(one) for one in value):
            raise ValueError("is a list of up to 8 names of labels")
        return [one.lower() for one in value]


class _File(_Table):
    """One file."""

    uuid_prefix: str = Field(default="", max_length=20)
    info: str = ""
    xid_count: str = ""
    labels: _Labels = Field(default_factory=_Labels)
    metrics: dict[str, str | _Target | list[_Target]] = Field(min_length=1, max_length=MAX_METRICS)

    @field_validator("metrics")
    @classmethod
    def _named(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a metric of Prometheus")
        return {name: _Target(metric=one) if isinstance(one, str) else one for name, one in value.items()}

    @field_validator("info", "xid_count")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError("is no name of a metric of Prometheus")
        return value


@dataclass(frozen=True, slots=True)
class MappedMetric:
    """A row of the metric table that a series feeds, and the labels that it must have for that."""

    field: ReadField
    only: Mapping[str, str]


class ExporterMapping:
    """One exporter's names and labels; `heads` of other names are foreign."""

    prefixes: tuple[str, ...] = ()

    def __init__(self, name: str, file: _File) -> None:
        self.name = name
        self._labels = file.labels
        self._prefix = file.uuid_prefix
        self._info = file.info
        self._xid_count = file.xid_count
        self._metrics = {metric: _mapped(found) for metric, found in file.metrics.items()}
        self.names = [*self._metrics, *filter(None, (self._info, self._xid_count))]
        self.errors = [self._xid_count] if self._xid_count else []

    def reads(self, metric: str) -> bool:
        return metric in self.names

    def entity(self, raw: Mapping[str, str]) -> Entity:
        """What the labels `raw` are about."""
        labels = LineLabels(raw)
        gpu = self._gpu(labels)
        return Entity(labels, gpu, self._owner(labels), gpu.host if gpu is not None else "")

    def head(self, name: str, entity: Entity) -> Head:
        """What the series `name` is about, with the labels of `entity`; `UNKNOWN` where it only names the GPU."""
        labels, gpu = entity.labels, entity.gpu
        if gpu is None:
            return Head(name, Use.OTHER_ENTITY)
        if name == self._xid_count:
            code = labels.first(*self._labels.xid)
            number = int(code) if code.isdecimal() and len(code) <= 5 else 0
            use = Use.XID_COUNT if 0 < number <= 0xFFFF else Use.UNKNOWN
            return Head(name, use, gpu, code=number, window_ms=SINCE_START_MS, host=gpu.host)
        for one in self._metrics.get(name, ()):
            if all(labels.first(label) == value for label, value in one.only.items()):
                key = one.field.key()
                use = Use.XID if key == "gpu_xid_last_code" else Use.METRIC
                return Head(name, use, gpu, one.field, key, entity.owner, host=gpu.host)
        return Head(name, Use.UNKNOWN, gpu, host=gpu.host)

    def _gpu(self, labels: LineLabels) -> Gpu | None:
        wanted = self._labels
        uuid, index = labels.first(*wanted.uuid), labels.first(*wanted.index)
        if not uuid and not index:
            return None
        host = labels.first(*wanted.host) or host_of(labels)
        if not uuid:
            uuid = f"{host}/gpu{index}"
        elif not uuid.lower().startswith(self._prefix.lower()):
            uuid = self._prefix + uuid
        partition, instance = labels.first(*wanted.partition), labels.first(*wanted.instance)
        if partition and partition != "0":
            uuid = f"{uuid}/part{partition}"
        driver = labels.first(*wanted.driver)
        return Gpu(
            uuid=f"{uuid}/gi{instance}" if instance else uuid,
            host=host,
            index=int(index) if index.isdecimal() and len(index) < 5 else None,
            model=labels.first(*wanted.model),
            pci_bus_id=normalise_pci_bus_id(labels.first(*wanted.pci_bus_id)),
            parent=uuid if instance else "",
            labels={"driver_version": driver} if driver else {},
        )

    def _owner(self, labels: LineLabels) -> Owner | None:
        wanted = self._labels
        pod, container = labels.first(*wanted.pod), labels.first(*wanted.container)
        if _EXPORTER.search(pod) or _EXPORTER.search(container):
            pod = container = ""  # the scraper's own labels: the exporter's pod
        job = labels.first(*wanted.job)
        if not pod and not job:
            return None
        return Owner(0, "", container, pod, labels.first(*wanted.namespace) if pod else "", "", job)


def _mapped(found: Any) -> tuple[MappedMetric, ...]:
    targets: list[_Target] = found if isinstance(found, list) else [found]
    made = []
    for one in targets:
        name, _, value = split_variant(one.metric)
        only = {label.lower(): text for label, text in one.only.items()}
        made.append(MappedMetric(ReadField(METRICS[name], value, one.second, one.scale), only))
    return tuple(made)


def open_nvidia_gpu_exporter() -> ExporterMapping:
    """The plug-in `nvidia_gpu_exporter`."""
    return built_in("nvidia_gpu_exporter")


def open_amd() -> ExporterMapping:
    """The plug-in `amd`: AMD's exporter."""
    return built_in("amd")


def built_in(name: str) -> ExporterMapping:
    """The table of the exporter `name` that comes along."""
    return ExporterMapping(name, _shipped(name))


@cache
def _shipped(name: str) -> _File:
    text = resources.files("tocsin.collector.promql").joinpath("mappings", f"{name}.toml").read_text(encoding="utf-8")
    return _File.model_validate(tomllib.loads(text))


def read_mapping(path: Path) -> ExporterMapping:
    """The mapping in a file of the site. Raises InputError, which names the first key that cannot be used."""
    field = "promql.mapping_file"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(field, str(path), f"is larger than {MAX_FILE_BYTES} bytes", "map fewer metrics")
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read: {error.strerror}", "name a readable file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(field, str(path), f"is no TOML: {error}", "see docs/promql.md for the format") from None
    try:
        return ExporterMapping("mapping_file", _File.model_validate(found))
    except ValidationError as error:
        # Of what is no plain text, the complaint about what it is instead says more.
        first = min(error.errors(), key=lambda one: one["type"] == "string_type")
        place = ".".join(str(part) for part in first["loc"])
        problem = f"{place}: {first['msg'].removeprefix('Value error, ')}"
        raise InputError(field, str(path), problem, "see docs/promql.md for the format") from None
