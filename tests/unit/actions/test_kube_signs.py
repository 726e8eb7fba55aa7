"""Open faults are a condition and Events of their nodes, and what others wrote there stays."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.actions.kubernetes.api import STRATEGIC, KubeError
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.release import Released, release_all
from tocsin.actions.kubernetes.signs import HEARTBEAT_MS, MOST_WRITES, Fault, Signs, event
from tocsin.domain.clock import MINUTE, SECOND, to_iso
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import ADMIN, KubeDouble
from tocsin_testing.kube_site import DirectDoor

NPD = {"type": "KernelDeadlock", "status": "False", "reason": "KernelHasNoDeadlock"}
FAULT = Fault("0123456789abcdef", "xid_hardware", "GPU-7 fell off the bus", "drain")
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def _double(*names: str) -> KubeDouble:
    made = KubeDouble()
    door = DirectDoor(made, ADMIN)
    for name in names:
        door.ask("POST", "/api/v1/nodes", body={"metadata": {"name": name}, "spec": {}})
        body = {"status": {"conditions": [NPD]}}
        door.ask("PATCH", f"/api/v1/nodes/{name}/status", body=body, content_type=STRATEGIC)
    return made


def _at(ms: int) -> str:
    return to_iso(ms)[:19] + "Z"


def _condition(double: KubeDouble, node: str = "n1") -> dict[str, Any]:
    return dict(Cluster(DirectDoor(double)).node(node).condition("TocsinGpuFault"))


def test_the_condition_follows_the_faults_and_its_transition_the_status_alone() -> None:
    double = _double("n1", "cpu-only")
    signs, seen = Signs(Cluster(DirectDoor(double))), {"n1": True}
    signs.show({}, seen, T0)
    assert (_condition(double)["status"], _condition(double)["reason"]) == ("False", "NoFault")
    assert _condition(double, "cpu-only") == {}
    at = T0 + MINUTE
    signs.show({"n1": [FAULT]}, seen, at)
    assert _condition(double) == {
        "type": "TocsinGpuFault",
        "status": "True",
        "reason": "XidHardware",
        "message": "GPU-7 fell off the bus (tocsin card 0123456789abcdef)",
        "lastHeartbeatTime": _at(at),
        "lastTransitionTime": _at(at),
    }
    other = Fault("fedcba9876543210", "hot", "GPU-3 is at 95 C", "throttle")
    signs.show({"n1": [FAULT, other]}, seen, at + 10 * SECOND)
    assert "GPU-3" in _condition(double)["message"]
    assert _condition(double)["lastTransitionTime"] == _at(at)
    signs.show({}, {"n1": False}, at + 20 * SECOND)
    assert (_condition(double)["status"], _condition(double)["reason"]) == ("Unknown", "NotSeen")
    assert _condition(double)["lastTransitionTime"] == _at(at + 20 * SECOND)
    assert Cluster(DirectDoor(double)).node("n1").condition("KernelDeadlock") == NPD


def test_what_stays_is_written_with_the_heartbeat_alone_also_after_a_restart() -> None:
    double = _double("n1")
    cluster = Cluster(DirectDoor(double))
    Signs(cluster).show({"n1": [FAULT]}, {"n1": True}, T0)
    signs, begun = Signs(cluster), len(double.writes())
    moved = Fault(FAULT.id, FAULT.rule, "GPU-7 fell off the bus 2 min ago", "drain")
    count = signs.show({"n1": [moved]}, {"n1": True}, T0 + 10 * SECOND)
    # The Event of before the restart stands: its name is the same.
    assert (count.written, count.refused) == ({}, {})
    signs.show({"n1": [moved]}, {"n1": True}, T0 + 20 * SECOND)
    assert len(double.writes()) == begun + 1
    signs.show({"n1": [moved]}, {"n1": True}, T0 + HEARTBEAT_MS)
    assert "2 min ago" in _condition(double)["message"]
    signs.show({"n1": [moved]}, {"n1": True}, T0 + 2 * HEARTBEAT_MS)
    assert _condition(double)["lastHeartbeatTime"] == _at(T0 + 2 * HEARTBEAT_MS)
    assert (_condition(double)["status"], _condition(double)["lastTransitionTime"]) == ("True", _at(T0))


def test_a_fault_is_one_event_when_it_opens_and_one_when_it_is_over() -> None:
    double = _double("n1")
    signs = Signs(Cluster(DirectDoor(double)))
    for ms, faults in enumerate([{"n1": [FAULT]}, {"n1": [FAULT]}, {}, {}]):
        signs.show(faults, {"n1": True}, T0 + ms * SECOND)
    opened, over = sorted(double.state.collection(EVENTS).values(), key=lambda one: one["eventTime"])
    assert (opened["type"], opened["reason"], over["type"], over["reason"]) == (
        "Warning", "XidHardware", "Normal", "XidHardwareOver",
    )  # fmt: skip
    assert opened["note"] == "GPU-7 fell off the bus; proposed: drain (tocsin card 0123456789abcdef)"
    assert opened["regarding"] == {"kind": "Node", "apiVersion": "v1", "name": "n1", "uid": "n1"}


def test_an_event_keeps_the_bounds_of_the_server() -> None:
    fault = Fault(FAULT.id, "9-" + "long-" * 60, "温度过高" * 500, "drain")
    made = event("n" * 250, fault, "ended", T0)
    assert len(made["note"].encode()) <= 1024
    assert len(made["reason"]) <= 128
    assert len(made["metadata"]["name"]) <= 253
    DirectDoor(_double()).ask("POST", EVENTS, body=made)


def test_a_flood_is_spread_and_a_refusal_keeps_no_other_back() -> None:
    names = [f"n{number}" for number in range(MOST_WRITES)]
    double = _double(*names)
    cluster = Cluster(DirectDoor(double))
    signs, faults, seen = Signs(cluster), {name: [FAULT] for name in names}, dict.fromkeys(names, True)
    assert sum(signs.show(faults, seen, T0).written.values()) == MOST_WRITES
    assert sum(signs.show(faults, seen, T0 + SECOND).written.values()) == MOST_WRITES
    assert len(double.state.collection(EVENTS)) == MOST_WRITES
    assert signs.show(faults, seen, T0 + 2 * SECOND).written == {}
    news = signs.show({**faults, "n0": []}, seen, T0 + HEARTBEAT_MS)
    assert news.written == {"condition": MOST_WRITES - 1, "event": 1}, "news goes before heartbeats"
    rehearsed = Signs(Cluster(DirectDoor(double), dry_run=True))
    assert [sum(rehearsed.show({}, seen, T0).written.values()) for _ in range(2)] == [MOST_WRITES, 0]

    class Webhook(Cluster):
        def create_event(self, namespace: str, body: Any) -> None:
            raise KubeError(422, "refused by a webhook")

    again = _double("n1", "n2")
    count = Signs(Webhook(DirectDoor(again))).show({"n1": [FAULT], "n2": [FAULT]}, {"n1": True, "n2": True}, T0)
    assert (count.written, count.refused) == ({"condition": 2}, {"event": 2})
    again.withheld = frozenset({"patch nodes/status"})
    with pytest.raises(KubeError, match="403"):
        Signs(Cluster(DirectDoor(again))).show({}, {"n1": True}, T0)


def test_it_is_taken_back_with_everything_else() -> None:
    double = _double("n1")
    Signs(Cluster(DirectDoor(double))).show({"n1": [FAULT]}, {"n1": True}, T0)
    assert list(release_all(Cluster(DirectDoor(double)))) == [Released("n1", ("condition TocsinGpuFault",))]
    assert _condition(double) == {}
