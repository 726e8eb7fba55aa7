"""Open faults of GPUs in Kubernetes' own words: a condition of each node, and Events about it.

No controller acts on this condition, so that it is written in mode `observe` too. The API server leaves
``lastTransitionTime`` to the writer: it moves here with the status alone.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import Json, KubeError, KubeNode
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.domain.clock import MINUTE, from_iso, to_iso

FAULT_CONDITION = "TocsinGpuFault"
"""``True`` while a GPU of the node has an open fault, ``Unknown`` while no GPU of it is seen."""
HEARTBEAT_MS = 5 * MINUTE
"""How often a condition is written again whose status stays: by its heartbeat a reader sees that it is kept."""
MOST_WRITES = 50
"""Writes in one look; the rest waits for the next one, so that a fault of the whole fleet is no flood (own choice)."""
MOST_FAULTS = 3
"""Faults that a condition names; the rest is counted."""
_LONGEST_NOTE = 1024
"""Bytes of a note and a condition's message: the server refuses longer notes."""
_LONGEST_NAME = 128
"""Characters of a reason, an action and a reporting instance: the server refuses longer ones."""
_NAMESPACE = "default"
"""Where Events about nodes belong: they have no namespace of their own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An open fault on one host: `id` is that of its incident, `rule` the root's, `action` what the rule proposes."""

    id: str
    rule: str
    sentence: str
    action: str


@dataclass(frozen=True, slots=True)
class _Sign:
    """What the condition of a node says, and the ids of the faults that it is about."""

    status: str
    reason: str
    message: str
    faults: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """All but the message, whose sentences carry readings that move at every look."""
        return self.status, self.reason, *self.faults


@dataclass(slots=True)
class WriteCount:
    """What one look wrote: counts by kind, ``condition`` or ``event``, and refusals with the last one's words."""

    written: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    left: int = MOST_WRITES


class Signs:
    """Keeps conditions and Events as the faults are. For one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shown: dict[str, tuple[_Sign, int]] = {}
        self._told: dict[tuple[str, str], Fault] = {}

    def show(self, faults: Mapping[str, Sequence[Fault]], seen: Mapping[str, bool], now_ms: int) -> WriteCount:
        """Show `faults` by host; `seen` has each host with GPUs, and whether its readings are fresh.

        Nodes of the cluster that are no such hosts are left alone. A refusal of one write keeps no other from it.
        Raises KubeError where the server gives no service at all.
        """
        count = WriteCount()
        nodes = {node.name: node for node in self._cluster.nodes() if node.name in seen or node.name in faults}
        for name in self._shown.keys() - nodes.keys():
            del self._shown[name]
        due = {name: _sign(faults.get(name, ()), seen.get(name, False)) for name in nodes}
        stale = [name for name, sign in due.items() if not self._stands(nodes[name], sign)]
        for name in stale:
            self._condition(nodes[name], due[name], now_ms, count)
        open_now = {(name, one.id): one for name in nodes for one in faults.get(name, ())}
        for (name, _), fault in [item for item in open_now.items() if item[0] not in self._told]:
            if self._event(name, fault, "", now_ms, count):
                self._told[name, fault.id] = fault
        for (name, identity), fault in [item for item in self._told.items() if item[0] not in open_now]:
            if name not in nodes or self._event(name, fault, "ended", now_ms, count):
                del self._told[name, identity]
        # Heartbeats come last: news never waits for them.
        for name in due.keys() - set(stale):
            if now_ms - self._shown_at(nodes[name], due[name]) >= HEARTBEAT_MS:
                self._condition(nodes[name], due[name], now_ms, count)
        return count

    def _stands(self, node: KubeNode, sign: _Sign) -> bool:
        """Whether the condition says this, but for readings in its sentences: those wait for the heartbeat."""
        before, there = self._shown.get(node.name), node.condition(FAULT_CONDITION)
        if before is not None and before[0].key != sign.key:
            return False
        if self._cluster.dry_run:
            return before is not None
        return (there.get("status"), there.get("reason")) == (sign.status, sign.reason)

    def _shown_at(self, node: KubeNode, sign: _Sign) -> int:
        """When the condition was last written: by this process, else as it says itself."""
        written = _heartbeat(node.condition(FAULT_CONDITION))
        return self._shown.setdefault(node.name, (sign, written))[1]

    def _condition(self, node: KubeNode, sign: _Sign, now_ms: int, count: WriteCount) -> None:
        at = to_iso(now_ms)[:19] + "Z"
        body = patches.condition(
            node, FAULT_CONDITION, status=sign.status, reason=sign.reason, message=sign.message, at=at
        ) or {"type": FAULT_CONDITION, "lastHeartbeatTime": at}
        if _tried(count, "condition", lambda: self._cluster.set_condition(node.name, body)):
            self._shown[node.name] = (sign, now_ms)

    def _event(self, host: str, fault: Fault, ended: str, now_ms: int, count: WriteCount) -> bool:
        """Whether the Event is there; one of this name that stands already was told before a restart."""
        body = event(host, fault, ended, now_ms)
        return _tried(count, "event", lambda: self._cluster.create_event(_NAMESPACE, body))


def _tried(count: WriteCount, kind: str, write: Callable[[], object]) -> bool:
    if count.left <= 0:
        return False
    count.left -= 1
    try:
        write()
    except KubeError as error:
        if error.no_service:
            raise
        if not (kind == "event" and error.status == 409):
            count.refused[kind] = count.refused.get(kind, 0) + 1
            count.problem = str(error)
            return False
    else:
        count.written[kind] = count.written.get(kind, 0) + 1
    return True


def _sign(faults: Sequence[Fault], fresh: bool) -> _Sign:
    if faults:
        told = [f"{one.sentence} ({_pointer(one)})" for one in faults[:MOST_FAULTS]]
        more = len(faults) - MOST_FAULTS
        message = _cut("; ".join([*told, *([f"and {more} more"] if more > 0 else [])]))
        return _Sign("True", _camel(faults[0].rule), message, tuple(one.id for one in faults))
    if not fresh:
        return _Sign("Unknown", "NotSeen", "no fresh reading of a GPU of this node", ())
    return _Sign("False", "NoFault", "no fault of a GPU is open", ())


def event(host: str, fault: Fault, ended: str, now_ms: int) -> Json:
    """The Event that a fault of `host` opened, or has `ended`; its name is the same after a restart."""
    digest = hashlib.sha256(host.encode()).hexdigest()[:10]
    note = f"over: {fault.sentence}" if ended else f"{fault.sentence}; proposed: {fault.action}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"tocsin-{fault.id}-{digest}" + (f"-{ended}" if ended else ""),
            "namespace": _NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": patches.OWNER},
        },
        "eventTime": to_iso(now_ms)[:19] + ".000000Z",
        "reportingController": "tocsin.io/brain",
        "reportingInstance": socket.gethostname()[:_LONGEST_NAME] or patches.OWNER,
        "action": "Observe",
        "reason": _camel(fault.rule) + ("Over" if ended else ""),
        # kubectl describe looks for Events of a node under its name.
        "regarding": {"kind": "Node", "apiVersion": "v1", "name": host, "uid": host},
        "note": _cut(f"{note} ({_pointer(fault)})"),
        "type": "Normal" if ended else "Warning",
    }


def _pointer(fault: Fault) -> str:
    return f"tocsin card {fault.id}"


def _camel(rule: str) -> str:
    """A rule's name as a reason: a word of letters and digits that begins with a letter."""
    joined = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", rule))
    return f"Rule{joined}"[: _LONGEST_NAME - 4] if not joined[:1].isalpha() else joined[: _LONGEST_NAME - 4]


def _cut(text: str) -> str:
    """`text` in one line, within the bytes that the server takes."""
    return " ".join(text.split()).encode()[:_LONGEST_NOTE].decode(errors="ignore")


def _heartbeat(condition: Mapping[str, object]) -> int:
    """When it was last written as it says itself; 0 where that cannot be read."""
    try:
        return from_iso(str(condition.get("lastHeartbeatTime", "")))
    except ValueError:
        return 0
