"""What guards see of the fleet, where events are judged while it is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Category, Finding, Severity
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.brain import seen_fleet
from tocsin.runtime.brain.counting import Counting
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin.runtime.brain.ownership import Ownership
from tocsin.runtime.brain.seen_fleet import FleetSight, SeenFleet
from tocsin.topology.topology import Topology
from tocsin_testing.builders import T0
from tocsin_testing.law_words import finding

GPUS = [Gpu(f"GPU-{n}", f"node-{n // 2}") for n in range(12)]


class Site:
    """A fleet of six nodes, each of which has been seen for a day."""

    def __init__(self) -> None:
        self.memory, owners = FleetMemory(), Ownership(256, 10 * MINUTE)
        owners.seed((), T0 - DAY, ())
        self.counting = Counting(owners, 8, "managed")
        self.owners = owners
        self.report(GPUS, T0)
        self.active: list[Finding] = []
        self.nodes: dict[str, NodeState] = {}
        self.sight = FleetSight(self.memory, self.counting)

    def report(self, gpus: list[Gpu], at_ms: int) -> None:
        batch = Batch(readings=[Reading(one, at_ms, {"gpu_temperature_celsius": 40.0}) for one in gpus])
        assert not self.owners.refuse(batch, at_ms).readings
        self.memory.put(batch)

    def look(self, at_ms: int, pause: Callable[[], object] = lambda: None) -> SeenFleet:
        self.counting.look([one.gpu for one in self.memory.latest()], {}, at_ms)
        return self.sight.look(SeenFleet(at_ms, (), Topology(), {}, {}), lambda: self.active, lambda: self.nodes, pause)

    def fail(self, gpu: Gpu, at_ms: int) -> None:
        """An event about `gpu` is judged."""
        self.active = [*self.active, finding(gpu, at_ms, at_ms, category=Category.HARDWARE, severity=Severity.CRITICAL)]
        self.sight.after([Event(EventKind.XID, gpu.uuid, gpu.host, at_ms, 79)], self.active, {})


def groups_of(seen: SeenFleet) -> tuple[object, ...]:
    groups = seen.groups
    return dict(groups.gpus), dict(groups.by_host), groups.flagged, groups.counted, dict(groups.counted_in)


@pytest.mark.parametrize("pause", range(4))
@pytest.mark.parametrize("gpu", [GPUS[0], GPUS[5], GPUS[11]])
def test_what_is_judged_between_the_parts_of_a_look_is_seen(
    gpu: Gpu, pause: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_fleet, "VIEWED", 4)
    site, pauses = Site(), list[int]()
    site.look(T0)

    def judge() -> None:
        if len(pauses) == pause:
            site.fail(gpu, T0 + MINUTE)
        pauses.append(1)

    seen = site.look(T0 + MINUTE, judge)
    assert len(pauses) == 4
    assert seen.faulty == {gpu.uuid}
    assert not seen.groups.gpus[gpu.uuid].healthy
    assert sum(view.healthy for view in seen.groups.gpus.values()) == len(GPUS) - 1
    assert groups_of(seen) == groups_of(site.look(T0 + MINUTE))


def test_a_gpu_that_came_with_its_event_during_a_look_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_fleet, "VIEWED", 4)
    site, late = Site(), Gpu("GPU-late", "node-late")
    site.look(T0)

    def judge() -> None:
        if not site.active:
            site.report([late], T0 + MINUTE)
            site.counting.look_at_new([late], {}, T0 + MINUTE)
            site.fail(late, T0 + MINUTE)

    seen = site.look(T0 + MINUTE, judge)
    assert not seen.groups.gpus[late.uuid].healthy
    assert [view.gpu for view in seen.groups.by_host["node-late"]] == [late]


def test_a_host_that_is_taken_out_of_service_during_a_look_is_seen_so() -> None:
    site = Site()
    site.look(T0)
    seen = site.look(T0, lambda: site.nodes.update({"node-2": NodeState("node-2", schedulable=False)}))
    assert [uuid for uuid, view in seen.groups.gpus.items() if view.under_action] == ["GPU-4", "GPU-5"]
    assert seen.groups.flagged == {"GPU-4", "GPU-5"}
