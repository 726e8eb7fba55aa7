"""A brain that was put together from settings knows places, and its incidents name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import Severity
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import NVLINK_DOMAIN, Gpu, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0


def settings_in(folder: Path, site: str = "") -> Settings:
    (folder / "site.csv").write_text(site)
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "topology": {"file": folder / "site.csv"} if site else {},
        }
    )


def test_echoes_in_two_domains_are_two_incidents_with_a_place(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    running = open_brain(settings_in(tmp_path, "host,rack\nnode-0,r0\nnode-1,r0\n"), clock)
    brain = running.brain
    gpus = [Gpu(f"GPU-{n}", f"node-{n // 2}", index=n % 2, labels={NVLINK_DOMAIN: f"u.{n // 4}"}) for n in range(8)]
    events = [
        Event(EventKind.XID, one.uuid, one.host, T0 + n, 149 if n in (1, 6) else 145, severity=Severity.CRITICAL)
        for n, one in enumerate(gpus)
    ]
    brain.accept(Batch(readings=[Reading(one, T0, {"gpu_temperature_celsius": 50.0}) for one in gpus], events=events))
    clock.advance(SECOND)
    brain.tick()
    assert [one.place for one in brain.incidents] == [Place(PlaceKind.GPU, "GPU-1"), Place(PlaceKind.GPU, "GPU-6")]
    assert [one.subjects for one in brain.incidents] == [4, 4]
    assert [one.place for one in BrainService(brain).incidents()] == [one.place for one in brain.incidents]
    assert brain.topology.now(gpus, {}, {}).held(Place(PlaceKind.RACK, "r0")).hosts == {"node-0", "node-1"}
    opened = [one.payload["place"] for one in brain.journal.entries(kinds=[EntryKind.INCIDENT_OPENED])]
    assert sorted(opened) == ["gpu:GPU-1", "gpu:GPU-6"]
    running.stop()


def test_a_site_file_that_cannot_be_used_ends_the_start_with_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"site\.csv, line 3, host = 'n1': line 2 is about it already"):
        open_brain(settings_in(tmp_path, "host,rack\nn1,r1\nn1,r2\n"), ManualClock(T0))
