"""Which faults the brain shows at Kubernetes nodes, and when it shows none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.signs import Fault, WriteCount
from tocsin.config.settings import Settings
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.finding import (
    PREDICTION_EVIDENCE,
    ActionKind,
    Category,
    Evidence,
    Finding,
    Incident,
    Severity,
    Subject,
    SubjectKind,
)
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.fault_signs import FaultSigns, faults_by_host, hosts_seen
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading


def _finding(host: str, rule: str = "xid", **more: Any) -> Finding:
    subject = Subject(SubjectKind.GPU, f"GPU-{host}-{rule}", host)
    made = Finding(rule, subject, Severity.CRITICAL, Category.HARDWARE, ActionKind.DRAIN, T0, T0, "it is broken")
    return replace(made, **more)


def _incident(*members: Finding, cleared: tuple[str, ...] = ()) -> Incident:
    return Incident(members[0], members, T0, T0, members[0].sentence, cleared=cleared)


def test_faults_of_the_node_itself_count_and_the_gravest_is_first() -> None:
    hot = _finding("a", "hot", category=Category.THERMAL, severity=Severity.WARNING, sentence="it is hot")
    broken, over = _finding("a"), _finding("b")
    foretold = _finding("d", evidence=(Evidence(f"{PREDICTION_EVIDENCE}risk", "90 %", T0),))
    incidents = [
        _incident(hot),
        _incident(broken, over, cleared=(over.id,)),
        _incident(_finding("c", category=Category.MEMORY)),
        _incident(_finding("c", simulated=True)),
        _incident(_finding("c", severity=Severity.INFO)),
        _incident(foretold),
    ]
    assert faults_by_host(incidents) == {
        "a": [
            Fault(broken.id, "xid", "it is broken", "drain"),
            Fault(hot.id, "hot", "it is hot", "drain"),
        ]
    }


def test_a_host_is_seen_while_one_of_its_gpus_is() -> None:
    old, new = T0 - MINUTE, T0
    readings = [reading(gpu(0, host="a"), at_ms=old), reading(gpu(1, host="a"), at_ms=new)]
    assert hosts_seen([*readings, reading(gpu(2, host="b"), at_ms=old)], new) == {"a": True, "b": False}


class _Signs:
    def __init__(self) -> None:
        self.shown = 0
        self.error: KubeError | None = None

    def show(self, *_: object) -> WriteCount:
        self.shown += 1
        if self.error is not None:
            raise self.error
        return WriteCount({"event": 2}, {"condition": 1}, "refused by a webhook")


def test_only_the_active_brain_that_has_seen_the_fleet_shows_them() -> None:
    settings, clock, signs, held = Settings(), ManualClock(T0), _Signs(), [True]
    metrics = OwnMetrics()
    brain = SimpleNamespace(
        settings=settings, clock=clock, started_ms=T0, evaluations=1, incidents=[], metrics=metrics,
        lease=SimpleNamespace(held=lambda: held[0]), memory=SimpleNamespace(latest=lambda: ()),
    )  # fmt: skip
    watch = FaultSigns(cast(Brain, brain), cast(Any, signs))
    watch.look()
    assert signs.shown == 0, "within the boot grace"
    clock.advance(round(settings.actions.boot_grace_seconds * SECOND))
    brain.evaluations = 0
    watch.look()
    assert signs.shown == 0, "before the first evaluation"
    brain.evaluations, held[0] = 1, False
    watch.look()
    assert signs.shown == 0, "while another brain is active"
    held[0] = True
    watch.look()
    assert signs.shown == 1
    name, registry = "tocsin_kubernetes_signs_total", metrics.registry
    assert registry.get_sample_value(name, {"kind": "event", "outcome": "written"}) == 2
    assert registry.get_sample_value(name, {"kind": "condition", "outcome": "refused"}) == 1
    signs.error = KubeError(0, "no answer")
    watch.look()
    assert signs.shown == 2
