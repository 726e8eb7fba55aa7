"""What the brain makes of many findings with one cause: incidents that last, by place, each told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.config.settings import Settings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.batch import Batch
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu, Owner, Reading
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0, gpu, reading, xid


def moving(one: Gpu, now_ms: int) -> dict[str, float]:
    """What a healthy GPU shows."""
    minute = now_ms // MINUTE
    return {
        "temperature_celsius": 50.0 + minute % 3,
        "power_watts": 200.0 + minute % 7,
        "sm_clock_hertz": 1e9 + minute % 5,
        "energy_joules_total": 1000.0 * minute,
        "memory_used_bytes": 1e9 + minute % 11,
        "utilization_ratio": 0.5,
    }


class Site:
    """A few hosts under a brain that proposes; each evaluation sees what the test gives it."""

    def __init__(self, folder: Path, gpus: Sequence[Gpu]) -> None:
        self.gpus = list(gpus)
        self.clock = ManualClock(T0)
        self.settings = Settings.model_validate(
            {
                "store": {"path": folder / "store.db"},
                "journal": {"path": folder / "journal.db"},
                "forecast": {"worker": False},
                "actions": {"mode": "propose", "boot_grace_seconds": 0, "managed_pools": ["default"]},
            }
        )
        self.running: RunningBrain = open_brain(self.settings, self.clock)

    def look(
        self,
        *events: Event,
        after_ms: int = MINUTE,
        owners: dict[str, Owner] | None = None,
        show: Callable[[Gpu, int], dict[str, float]] = moving,
    ) -> None:
        """One evaluation with a fresh reading of each GPU, which shows what `show` says of it at that instant."""
        self.clock.advance(after_ms)
        now = self.clock.now_ms()
        readings = [self._reading(one, now, (owners or {}).get(one.uuid), show(one, now)) for one in self.gpus]
        self.running.brain.accept(Batch(readings=readings, events=list(events)))
        self.running.brain.tick()

    @staticmethod
    def _reading(one: Gpu, now_ms: int, owner: Owner | None, values: dict[str, float]) -> Reading:
        made = reading(one, now_ms, **values)
        return replace(made, owners=(owner,)) if owner is not None else made

    def notices(self) -> list[DecisionStatus]:
        """The notifications so far."""
        return [one for one in self.running.brain.statuses() if one.decision.action is ActionKind.NOTIFY]

    def asked(self) -> list[str]:
        """The keys of all decisions so far."""
        return sorted(one.decision.key for one in self.running.brain.statuses())

    def restart(self) -> None:
        """The brain ends and starts again over the same files."""
        self.running.stop()
        self.running = open_brain(self.settings, self.clock)

    @property
    def places(self) -> list[Place | None]:
        return [one.place for one in self.running.brain.incidents]


MakeSite = Callable[[Sequence[Gpu]], Site]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    made: list[Site] = []

    def make(gpus: Sequence[Gpu]) -> Site:
        made.append(Site(tmp_path, gpus))
        return made[-1]

    yield make
    for one in made:
        one.running.stop()


@pytest.mark.parametrize(("hung", "joined"), [(2, False), (5, True)])
def test_ranks_of_a_job_hang_for_one_cause_where_most_of_all_its_gpus_do(
    make_site: MakeSite, hung: int, joined: bool
) -> None:
    site = make_site([gpu(n) for n in range(8)])
    owners = {one.uuid: Owner(pid=100 + one.index, slurm_job="7") for one in site.gpus}
    site.look(owners=owners)
    site.look(*(xid(109, one, site.clock.now_ms() + 30 * SECOND) for one in site.gpus[:hung]), owners=owners)
    if joined:
        assert site.places == [Place(PlaceKind.JOB, "slurm 7")]
    else:
        assert site.places == [Place(PlaceKind.GPU, one.uuid) for one in site.gpus[:hung]]


def test_a_node_whose_telemetry_breaks_is_told_once_and_not_by_gpu(make_site: MakeSite) -> None:
    site = make_site([gpu(n, host="node-1" if n < 8 else "node-2") for n in range(16)])
    frozen = moving(site.gpus[0], T0)
    del frozen["utilization_ratio"]

    def show(one: Gpu, now_ms: int) -> dict[str, float]:
        return frozen if one.host == "node-1" and now_ms > T0 + 5 * MINUTE else moving(one, now_ms)

    for _ in range(80):
        site.look(show=show)
    rules = {member.rule for one in site.running.brain.incidents for member in one.members}
    assert {"metric_family_lost", "telemetry_frozen"} <= rules
    assert site.places == [Place(PlaceKind.HOST, "node-1")]
    told = [one.decision.alert_level for one in site.notices()]
    assert told == [AlertLevel.PAGE, AlertLevel.WARNING], "the lost family first, then that nothing moves any more"


def test_one_gpu_with_stale_values_is_no_fault_of_its_host(make_site: MakeSite) -> None:
    site = make_site([gpu(n) for n in range(8)])
    frozen = moving(site.gpus[0], T0)
    for _ in range(70):
        site.look(show=lambda one, now_ms: frozen if one.index < 3 else moving(one, now_ms))
    assert site.places == [Place(PlaceKind.GPU, one.uuid) for one in site.gpus[:3]]


def test_effects_of_a_cause_that_has_cleared_stay_one_incident_with_one_page_and_one_decision(
    make_site: MakeSite,
) -> None:
    site = make_site([gpu(n, host=f"node-{n // 2}", labels={NVLINK_DOMAIN: "u.1"}) for n in range(8)])
    failed, *others = site.gpus
    site.look()
    now = site.clock.now_ms() + 30 * SECOND
    site.look(xid(149, failed, now), *(xid(145, one, now + SECOND) for one in others))
    (before,) = site.running.brain.incidents
    assert (before.root.subject.name, before.subjects) == (failed.uuid, 8)
    asked = site.asked()
    assert [one.split("|")[1:3] for one in asked] == [[f"gpu:{failed.uuid}", action] for action in ("drain", "notify")]
    for _ in range(12):
        site.look()
    # The GPU is back after a reset, while its peers report once more, which counts for a day.
    back = site.clock.now_ms() + SECOND
    again = [xid(145, one, back + SECOND) for one in others]
    site.look(Event(EventKind.GPU_FOUND, failed.uuid, failed.host, back), *again)
    for _ in range(2):
        (now_open,) = site.running.brain.incidents
        assert (now_open.id, now_open.place, now_open.subjects) == (before.id, before.place, 8)
        assert now_open.cleared == (before.root.id,)
        assert now_open.sentence.endswith("It has cleared; 7 of what it explains have not.")
        site.look()
        site.restart()
        site.look()
    assert site.asked() == asked, "no second page, no second decision"
    site.look(xid(79, others[3], site.clock.now_ms() + SECOND))
    assert {one.root.value for one in site.running.brain.incidents} == {149, 79}
    new = [one for one in site.asked() if one not in asked]
    assert [one.split("|")[1:3] for one in new] == [
        [f"gpu:{others[3].uuid}", "drain"],
        [f"gpu:{others[3].uuid}", "notify"],
    ]
    at_ms = site.clock.now_ms() + SECOND
    site.look(*(Event(EventKind.DRIVER_RELOAD, "", host, at_ms) for host in {one.host for one in site.gpus}))
    assert site.running.brain.incidents == []
    closed = [one.payload["id"] for one in site.running.brain.journal.entries(kinds=[EntryKind.INCIDENT_CLOSED])]
    assert closed.count(before.id) == 1
