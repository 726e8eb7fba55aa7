"""Labels of dcgm-exporter's lines, in the spellings of all its releases and of what scrapes it.

dcgm-exporter changed the case of label names (`UUID`, `uuid`, `gpu_uuid`; `Hostname`, `hostname`; `modelName`,
`model_name`) and the names of attributes (`pod_name` in its old naming mode). Prometheus puts `exported_` before labels
that collide with those of its own target, unless it honours the exporter's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tocsin.collector.dcgm.fields import SXID_FATAL, SXID_NON_FATAL, XID_COUNT, XID_NAMES, Field, field_named
from tocsin.domain.identity import Gpu, normalise_pci_bus_id
from tocsin.domain.owner import Owner

_PORT = re.compile(r":\d+$")
_SCRAPED = ("instance", "job")
_EXPORTER = re.compile(r"dcgm.exporter", re.IGNORECASE)
_DRIVER = ("dcgm_fi_driver_version", "dcgm_fi_system_driver_version")
PROCESS_START = "process_start_time_seconds"
DCGM_PREFIXES = ("DCGM_FI_", "DCGM_EXP_")


class Use(Enum):
    """What a line is good for."""

    METRIC = "metric"
    XID = "xid"
    """A metric too: the latched code of the last XID."""
    XID_COUNT = "xid_count"
    SXID = "sxid"
    PROCESS_START = "process_start"
    UNKNOWN = "unknown"
    """A field of a GPU that no row of the metric table is fed by."""
    OTHER_ENTITY = "other_entity"
    """A line of a CPU, of a switch's link, or of nothing named."""
    FOREIGN = "foreign"
    """No metric of dcgm-exporter's."""


class Labels:
    """Labels of one line, found in any case; an empty value is no value."""

    __slots__ = ("_by_name",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._by_name = {name.lower(): value.strip() for name, value in labels.items()}

    def first(self, *names: str) -> str:
        """The value of the first of `names` (lower case) that has one."""
        return next((self._by_name[name] for name in names if self._by_name.get(name)), "")


@dataclass(frozen=True, slots=True)
class Head:
    """A line without its value: what it is about. `key` is empty unless `use` is METRIC or XID."""

    name: str
    use: Use
    gpu: Gpu | None = None
    field: Field | None = None
    key: str = ""
    owner: Owner | None = None
    code: int = 0
    """The XID that an XID_COUNT line counts."""
    window_ms: int = 0
    """The span over which it counts."""
    part: str = ""
    """Which NVSwitch an SXID line is about, or whose process started."""
    host: str = ""


def host_of(labels: Labels) -> str:
    """The node: what the exporter says, else what a scraper's relabelling is likely to have added; "" if unknown."""
    named = labels.first("hostname", "exported_hostname", "node", "exported_node", "kubernetes_node", "nodename")
    return named or _PORT.sub("", labels.first("instance"))


def gpu_of(labels: Labels) -> Gpu | None:
    """The GPU, or MIG instance, of a line; None for a line of something else.

    A line that names a GPU instance belongs to the instance alone, never to its parent. Without a UUID the GPU is
    called after its host and index.
    """
    index = labels.first("gpu", "exported_gpu")
    uuid = labels.first("uuid", "gpu_uuid", "exported_uuid")
    if not uuid and not index:
        return None
    host = host_of(labels)
    uuid = uuid or f"{host}/gpu{index}"
    instance = labels.first("gpu_i_id")
    driver = labels.first(*_DRIVER)
    return Gpu(
        uuid=f"{uuid}/gi{instance}" if instance else uuid,
        host=host,
        index=int(index) if index.isdecimal() else None,
        model=labels.first("modelname", "model_name"),
        pci_bus_id=normalise_pci_bus_id(labels.first("pci_bus_id")),
        parent=uuid if instance else "",
        mig_profile=labels.first("gpu_i_profile") if instance else "",
        labels={"driver_version": driver} if driver else {},
    )


def owner_of(labels: Labels) -> Owner | None:
    """Who the GPU is given to; None where it is unassigned, which the exporter writes as empty values.

    A scraper that does not honour the exporter's labels puts its own pod, the exporter itself, in `pod`: such a one
    is nobody's.
    """
    pod = labels.first("exported_pod", "pod", "exported_pod_name", "pod_name")
    container = labels.first("exported_container", "container", "exported_container_name", "container_name")
    job = labels.first("hpc_job", "exported_hpc_job")
    own = labels.first("exported_pod", "exported_pod_name")
    if not own and labels.first(*_SCRAPED) and (_EXPORTER.search(pod) or _EXPORTER.search(container)):
        pod = container = ""
    if not pod and not job:
        return None
    namespace = labels.first("exported_namespace", "namespace", "exported_pod_namespace", "pod_namespace")
    uid = labels.first("pod_uid", "exported_pod_uid")
    return Owner(0, "", container, pod, namespace if pod else "", uid, job)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _xid_count(name: str, labels: Labels, gpu: Gpu) -> Head:
    code = _number(labels.first("xid", "err_code"))
    window = _number(labels.first("window_size_in_ms"))
    return Head(name, Use.XID_COUNT if code else Use.UNKNOWN, gpu, code=code, window_ms=window, host=gpu.host)


def head_of(name: str, raw: Mapping[str, str]) -> Head:
    """What the line `name` with labels `raw` is about."""
    if name == PROCESS_START:
        labels = Labels(raw)
        return Head(name, Use.PROCESS_START, part=labels.first("instance"), host=host_of(labels))
    if not name.startswith(DCGM_PREFIXES):
        return Head(name, Use.FOREIGN)
    labels = Labels(raw)
    if name in SXID_FATAL or name in SXID_NON_FATAL:
        switch = labels.first("nvswitch")
        return Head(name, Use.SXID if switch else Use.OTHER_ENTITY, part=switch, host=host_of(labels))
    gpu = gpu_of(labels)
    if gpu is None or labels.first("cpu", "cpucore"):
        return Head(name, Use.OTHER_ENTITY)
    if name == XID_COUNT:
        return _xid_count(name, labels, gpu)
    field, link = field_named(name), labels.first("nvlink")
    if field is None or (link and not field.of_links()):
        return Head(name, Use.UNKNOWN, gpu, host=gpu.host)
    use = Use.XID if name in XID_NAMES else Use.METRIC
    return Head(name, use, gpu, field, field.key(link), owner_of(labels), host=gpu.host)
