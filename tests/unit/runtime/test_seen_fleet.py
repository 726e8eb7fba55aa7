"""What guards see of the fleet, where events are judged while it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.model.view import Taken
from tocsin.actions.planning.facts import NodeState
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Finding, Severity
from tocsin.domain.reading import UNKNOWN_GPU, Gpu, Missing, Owner, Reading
from tocsin.queries.fleet_state import KnownWork, workloads_of
from tocsin.runtime.brain import seen_fleet
from tocsin.runtime.brain.counting import Counting
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin.runtime.brain.ownership import Ownership
from tocsin.runtime.brain.seen_fleet import FleetSight, SeenFleet
from tocsin.topology.topology import Topology
from tocsin_testing.builders import T0
from tocsin_testing.kube_site import decide
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
        self.active = [*self.active, hardware_fault(gpu, at_ms)]
        self.sight.after([Event(EventKind.XID, gpu.uuid, gpu.host, at_ms, 79)], self.active, self.nodes)


def hardware_fault(gpu: Gpu, at_ms: int) -> Finding:
    return finding(gpu, at_ms, at_ms, category=Category.HARDWARE, severity=Severity.CRITICAL)


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


def all_of(seen: SeenFleet) -> tuple[object, ...]:
    groups = seen.groups
    pool = groups.pool("default")
    asked = [groups.managed((), "managed"), groups.taken, dict(pool.sound), pool.read_ms]
    return seen.faulty, list(groups.gpus.items()), dict(groups.physical), *groups_of(seen), dict(groups.by_pool), *asked


READ = {"gpu_power_watts": 1.0}
CHANGES = ("read", "move", "pool", "own", "lose", "come", "fail", "event", "heal", "close", "open", "leave", "wait")


class ChangingSite(Site):
    """A site to which one thing after the other happens; `sight` looks at what has changed, another at all."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus = {gpu.uuid: gpu for gpu in GPUS}
        self.owners_of: dict[str, tuple[Owner, ...]] = {}
        self.known: dict[str, KnownWork] = {}

    def change(self, what: str, number: int, now_ms: int) -> None:
        gpu = self.gpus[f"GPU-{number}"]
        match what:
            case "fail":
                self.active = [*self.active, hardware_fault(gpu, now_ms)]
            case "event" if self.sight.seen is not None:
                self.fail(gpu, now_ms)
            case "heal":
                self.active = []
            case "close" | "open":
                node = NodeState(gpu.host, schedulable=what == "open")
                self.nodes = {**self.nodes, gpu.host: node}
            case "leave":
                self.memory.forget(now_ms - 3 * MINUTE)
            case "read" | "move" | "pool" | "own" | "lose" | "come":
                self.tell(what, gpu, number, now_ms)

    def tell(self, what: str, gpu: Gpu, number: int, now_ms: int) -> None:
        if what == "come":
            gpu = Gpu(f"{gpu.uuid}-late", gpu.host)
        elif what == "own":
            self.owners_of[gpu.uuid] = (Owner(1, slurm_job=str(number % 2)),)
        elif what in ("move", "pool"):
            gpu = replace(gpu, **{"host" if what == "move" else "pool": "other"})  # type: ignore[arg-type]
        self.gpus[gpu.uuid] = gpu
        values, missing = ({}, {"gpu_power_watts": Missing.LOST}) if what == "lose" else (READ, {})
        reading = Reading(gpu, now_ms, values, missing, self.owners_of.get(gpu.uuid, ()))
        self.memory.put(Batch(readings=[reading]))

    def looks(self, now_ms: int, came: Callable[[], None] = lambda: None) -> tuple[SeenFleet, SeenFleet]:
        """What both see where something `came` since the evaluation began."""
        readings, nodes = self.memory.latest(), self.nodes
        came()
        self.counting.look([one.gpu for one in readings], nodes, now_ms)
        work = workloads_of(readings, nodes, blind=False, known=self.known)
        fleet = SeenFleet(now_ms, (), Topology(), work, nodes)
        sights = self.sight, FleetSight(self.memory, self.counting)
        kept, anew = (one.look(fleet, lambda: self.active, lambda: self.nodes, lambda: None) for one in sights)
        return kept, anew


@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 2), st.booleans()), min_size=2, max_size=25))
def test_a_look_at_what_has_changed_sees_what_one_at_all_sees(changes: list[tuple[str, int, bool]]) -> None:
    site = ChangingSite()
    for minute, (what, number, looks) in enumerate(changes, 1):
        site.change(what, number, T0 + minute * MINUTE)
        if looks:
            kept, anew = site.looks(T0 + minute * MINUTE)
            assert all_of(kept) == all_of(anew)


def test_what_has_not_changed_is_not_viewed_again() -> None:
    site = ChangingSite()
    first, _ = site.looks(T0)
    first.groups.taken["k"] = Taken(decide(ActionKind.CORDON, "node-5"), frozenset({"node-5"}), frozenset())
    site.change("read", 3, T0 + MINUTE)
    second, _ = site.looks(T0 + MINUTE)
    assert second.groups.taken == {}, "what decisions take is looked up anew by each evaluation"
    assert [uuid for uuid, view in second.groups.gpus.items() if view is not first.groups.gpus[uuid]] == ["GPU-3"]


def test_a_gpu_that_takes_the_place_of_one_that_nobody_could_name_during_an_evaluation_is_seen() -> None:
    site, unknown = ChangingSite(), Gpu(f"{UNKNOWN_GPU}node-x", "node-x")
    site.memory.put(Batch(readings=[Reading(unknown, T0, READ)]))
    site.looks(T0)
    named = Batch(readings=[Reading(Gpu("GPU-x", "node-x"), T0 + MINUTE, READ)])
    kept, anew = site.looks(T0 + MINUTE, lambda: site.memory.put(named))
    assert all_of(kept) == all_of(anew)
    assert "GPU-x" in kept.groups.gpus
    assert unknown.uuid not in kept.groups.gpus
