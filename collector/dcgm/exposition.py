"""The text of dcgm-exporter: its lines, and their labels in the spellings of all its releases and of what scrapes it.

dcgm-exporter changed the case of label names (`UUID`, `uuid`, `gpu_uuid`; `Hostname`, `hostname`; `modelName`,
`model_name`) and the names of attributes (`pod_name` in its old naming mode). Prometheus puts `exported_` before labels
that collide with those of its own target, unless it honours the exporter's.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tocsin.collector.dcgm.fields import (
    SXID_FATAL,
    SXID_NON_FATAL,
    XID_COUNT,
    XID_NAMES,
    Field,
    blank_number,
    blank_text,
    field_named,
)
from tocsin.collector.source import NodeIdentity
from tocsin.domain.reading import Gpu, Missing, Owner, normalise_pci_bus_id

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


class LineLabels:
    """Labels of one line, found in any case; an empty value is no value."""

    __slots__ = ("_by_name",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        stripped = ((name.lower(), value.strip()) for name, value in labels.items())
        self._by_name = {name: value for name, value in stripped if value}

    def first(self, *names: str) -> str:
        """The value of the first of `names` (lower case) that has one."""
        for name in names:  # half the time of a generator, for each line of each GPU
            if (found := self._by_name.get(name)) is not None:
                return found
        return ""


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


def host_of(labels: LineLabels) -> str:
    """The node: what the exporter says, else what a scraper's relabelling is likely to have added; "" if unknown."""
    named = labels.first("hostname", "exported_hostname", "node", "exported_node", "kubernetes_node", "nodename")
    return named or _PORT.sub("", labels.first("instance"))


def gpu_of(labels: LineLabels) -> Gpu | None:
    """The GPU, or MIG instance, of a line; None for a line of something else.

    A line that names a GPU instance belongs to the instance alone, never to its parent. Without a UUID the GPU is
    called after its host and index.
    """
    index = labels.first("gpu", "exported_gpu")
    if not (uuid := labels.first("uuid", "gpu_uuid", "exported_uuid")) and not index:
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


def owner_of(labels: LineLabels) -> Owner | None:
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


class Entity(NamedTuple):
    """What the labels of a line say, whatever its name; most lines of a GPU have the same."""

    labels: LineLabels
    gpu: Gpu | None
    owner: Owner | None
    host: str


def entity_of(raw: Mapping[str, str]) -> Entity:
    """The entity of the labels `raw`, in the spellings of dcgm-exporter."""
    labels = LineLabels(raw)
    gpu = gpu_of(labels)
    return Entity(labels, gpu, owner_of(labels) if gpu is not None else None, gpu.host if gpu else host_of(labels))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _xid_count(name: str, labels: LineLabels, gpu: Gpu) -> Head:
    code = _number(labels.first("xid", "err_code"))
    window = _number(labels.first("window_size_in_ms"))
    return Head(name, Use.XID_COUNT if code else Use.UNKNOWN, gpu, code=code, window_ms=window, host=gpu.host)


def head_of(name: str, raw: Mapping[str, str]) -> Head:
    """What the line `name` with labels `raw` is about."""
    if name != PROCESS_START and not name.startswith(DCGM_PREFIXES):
        return Head(name, Use.FOREIGN)
    return head_about(name, entity_of(raw))


def head_about(name: str, entity: Entity) -> Head:
    """What the line `name` is about, whose labels are those of `entity`."""
    labels, gpu = entity.labels, entity.gpu
    if name == PROCESS_START:
        return Head(name, Use.PROCESS_START, part=labels.first("instance"), host=entity.host)
    if name in SXID_FATAL or name in SXID_NON_FATAL:
        switch = labels.first("nvswitch")
        return Head(name, Use.SXID if switch else Use.OTHER_ENTITY, part=switch, host=entity.host)
    if gpu is None or labels.first("cpu", "cpucore"):
        return Head(name, Use.OTHER_ENTITY)
    if name == XID_COUNT:
        return _xid_count(name, labels, gpu)
    field, link = field_named(name), labels.first("nvlink")
    if field is None or (link and not field.of_links()):
        return Head(name, Use.UNKNOWN, gpu, host=gpu.host)
    use = Use.XID if name in XID_NAMES else Use.METRIC
    return Head(name, use, gpu, field, field.key(link), entity.owner, host=gpu.host)


# A line is split once into its head and its value, and the head is then known by its text. prometheus_client parses
# the labels (quoting, escapes, blanks after commas). A scrape repeats the same names and labels every time, so that
# after the first one a line costs a dictionary look-up and a float.

MAX_HEADS = 200_000
"""Most remembered heads, some 100 MB: a fleet's dump; a node has some hundred."""
_OURS = (*DCGM_PREFIXES, PROCESS_START)
_NAN = float("nan")
_BLANKS = " \t"


class BadSampleLine(ValueError):
    """A line that is no sample."""


class Sample(NamedTuple):
    """One line. `raw` is as DCGM printed it, NaN where `blank` gives the reason; `at_ms` None where it has no time."""

    head: Head
    raw: float
    blank: Missing | None
    at_ms: int | None


def _parse_head(text: str) -> Head:
    try:
        found = [s for family in text_string_to_metric_families(f"{text} 0") for s in family.samples]
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise BadSampleLine(str(error)) from None
    if len(found) != 1:
        raise BadSampleLine(text)
    return head_of(found[0].name, found[0].labels)


def _completed(head: Head, node: NodeIdentity) -> Head:
    """`head` about that GPU, or about this host where it is about none."""
    if head.gpu is None:
        return replace(head, host=node.host or head.host or socket.gethostname())
    gpu = node.complete(head.gpu)
    return replace(head, gpu=gpu, host=gpu.host)


class Heads:
    """Heads by their text. With `node` each is completed by what is known of the node, once, when it is first met."""

    def __init__(self, node: NodeIdentity | None = None) -> None:
        self._node = node
        self._known: dict[str, Head] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, text: str) -> Head:
        """The head written as `text`. Raises BadSampleLine where it is none."""
        if (head := self._known.get(text)) is None:
            head = _parse_head(text)
            if self._node is not None:
                head = _completed(head, self._node)
            if len(self._known) >= MAX_HEADS:
                self._known.clear()
            self._known[text] = head
        return head

    def keep(self, least: int) -> None:
        """Forget all where far more than `least` are known: pods come and go, and each leaves its labels behind."""
        if len(self._known) > 4 * least + 1000:
            self._known.clear()

    def sample(self, line: str) -> Sample:
        """The sample on `line`, which is neither empty nor a comment. Raises BadSampleLine."""
        brace = line.rfind("}")
        cut = brace + 1 if brace >= 0 else line.find(" ")
        rest = line[cut:].split()
        if cut <= 0 or not 1 <= len(rest) <= 2:
            raise BadSampleLine(line[:200])
        head = self.of(line[:cut])
        text = rest[0]
        at_ms = _instant(rest[1]) if len(rest) == 2 else None
        try:
            raw = float(text)
        except ValueError:
            if (reason := blank_text(text)) is None:
                raise BadSampleLine(line[:200]) from None
            return Sample(head, _NAN, reason, at_ms)
        reason = blank_number(raw, text)
        return Sample(head, raw if reason is None else _NAN, reason, at_ms)


def _instant(text: str) -> int:
    """The Prometheus text format has milliseconds, OpenMetrics seconds with a fraction."""
    try:
        return round(float(text) * 1000) if "." in text else int(text)
    except ValueError:
        raise BadSampleLine(text) from None


def samples(text: str, heads: Heads, bad: Callable[[str], None]) -> Iterator[Sample]:
    """Samples of dcgm-exporter, and of its process, in `text`; a line that cannot be used goes to `bad`."""
    for line in text.split("\n"):
        line = line.strip(_BLANKS + "\r")
        if not line.startswith(_OURS):
            continue
        try:
            yield heads.sample(line)
        except BadSampleLine:
            bad(line)
