"""A brain that opens tickets: the evidence is a bundle that proves itself, the card names the ticket, a new brain knows
it, and the end resolves it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.journal.bundle import check
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0
from tocsin_testing.ticket_doubles import SECRET, ServiceNow

GPUS = [Gpu(f"GPU-{n}", "node-1", index=n) for n in range(2)]


class Site:
    """A node of two GPUs, a brain that tells by tickets, and the ticket system."""

    def __init__(self, folder: Path, server: HTTPServer) -> None:
        self.desk = ServiceNow()
        server.expect_request(re.compile(".*")).respond_with_handler(self.desk)
        channel = {"name": "repair", "kind": "ticket", "url": server.url_for(""), **self.desk.channel()}
        wanted: dict[str, Any] = {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "notify": {"channels": [channel]},
            "actions": {"boot_grace_seconds": 0},
        }
        self.settings = Settings.model_validate(wanted)
        self.clock = ManualClock(T0)
        self.running = self._opened()

    def _opened(self) -> RunningBrain:
        return open_brain(self.settings, self.clock)

    def restart(self) -> None:
        self.running.stop()
        self.running = self._opened()

    def fail(self) -> None:
        """An XID 79 on GPU-1."""
        now = self.clock.now_ms()
        self._read([Event(EventKind.XID, "GPU-1", "node-1", now, 79, "fallen")])

    def _read(self, events: list[Event]) -> None:
        readings = [Reading(gpu, self.clock.now_ms(), {"gpu_temperature_celsius": 50.0}) for gpu in GPUS]
        self.running.brain.accept(Batch(readings, events))

    def until(self, told: Callable[[], bool], advance: int = SECOND) -> None:
        """Turn the brain until `told`: the channel sends in a thread of its own, for which each step waits a while."""
        for _ in range(200):
            self.clock.advance(advance)
            self._read([])
            self.running.brain.tick()
            if told():
                return
        raise AssertionError(self.desk.asked)

    def on_cards(self) -> list[tuple[str, str]]:
        cards = BrainService(self.running.brain).cards(10).items
        return [(one.name, one.text) for card in cards for one in card.evidence if one.kind == "ticket"]


@pytest.fixture
def site(tmp_path: Path, httpserver: HTTPServer) -> Iterator[Site]:
    made = Site(tmp_path, httpserver)
    yield made
    made.running.stop()


def test_from_an_xid_to_a_resolved_ticket(site: Site, tmp_path: Path) -> None:
    site.fail()
    site.until(lambda: site.on_cards() != [])
    ticket = site.desk.only
    assert site.desk.asked == ["find", "open", "attach"]
    assert site.on_cards() == [("repair", "ticket INC0000001")]
    ((name, content),) = ticket.files.items()
    bundle = tmp_path / name
    bundle.write_bytes(content)
    found = check(bundle, b"")
    assert found.problem == ""
    assert found.entries > 0
    assert hashlib.sha256(content).hexdigest() in ticket.fields["description"]
    assert SECRET.encode() not in content
    (card,) = BrainService(site.running.brain).cards(10).items
    assert ticket.label == card.id

    site.restart()
    site.until(lambda: True)
    assert site.on_cards() == [("repair", "ticket INC0000001")]
    site.until(lambda: not ticket.open, advance=HOUR)
    assert site.desk.asked.count("open") == 1
    site.until(lambda: site.on_cards() == [])
    assert "RESOLVED" in ticket.fields["close_notes"]


def test_evidence_that_cannot_be_made_costs_no_ticket(site: Site) -> None:
    site.running.brain.memory.reading = lambda uuid: None  # type: ignore[method-assign,assignment]
    site.fail()
    site.until(lambda: bool(site.desk.tickets))
    assert "Evidence: none: no GPU GPU-1" in json.dumps(site.desk.only.fields)
