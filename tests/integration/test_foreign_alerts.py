"""Alerts of an Alertmanager, as a real one (0.25) posted them, on the cards of a brain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.queries.foreign_alerts import KEPT_MS, MAX_KEPT, MOST_OF_HOST, ForeignAlerts
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0

DATA = Path(__file__).parents[1] / "data" / "alertmanager"
GPUS = [Gpu(f"GPU-{n}", f"node-{1 + n // 2}", index=n % 2) for n in range(4)]


def webhook(status: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"webhook_{status}.json").read_text())
    return found


class Site:
    """Two nodes of two GPUs; GPU 1 of node-1 has an XID 79, and so a card."""

    def __init__(self, folder: Path) -> None:
        wanted = {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
        }
        self.clock = ManualClock(T0)
        self.running = open_brain(Settings.model_validate(wanted), self.clock)
        self.brain, self.service = self.running.brain, BrainService(self.running.brain)
        tokens = [
            Token(name=name, role=Role.AGENT, secret=SecretStr(f"{name}-secret-of-sixteen"), host=host)
            for name, host in (("am", ""), ("node-2", "node-2"))
        ]
        tokens.append(Token(name="eve", role=Role.VIEWER, secret=SecretStr("eve-secret-of-sixteen")))
        app = create_app(self.service, ApiSettings(tokens=tokens), self.clock)
        self.http = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))
        readings = [Reading(gpu, T0, {"gpu_temperature_celsius": 50.0}) for gpu in GPUS]
        self.brain.accept(Batch(readings, [Event(EventKind.XID, "GPU-1", "node-1", T0, 79, "fallen")]))
        self.clock.advance(SECOND)
        self.brain.tick()

    def post(self, body: object, who: str = "am") -> httpx2.Response:
        headers = {"Authorization": f"Bearer {who}-secret-of-sixteen"}
        return self.http.post("/v1/alertmanager", json=body, headers=headers)  # type: ignore[return-value]

    def alerts(self) -> list[tuple[str, str]]:
        """What stands on any open card; an hour later the silence of the GPUs has cards too."""
        cards = self.service.cards(10).items
        return sorted({(one.name, one.text) for card in cards for one in card.evidence if one.kind == "alert"})

    def count(self, outcome: str) -> float:
        return self.brain.metrics.value("tocsin_received_alerts_total", outcome=outcome)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.running.stop()


def test_an_alert_is_evidence_on_the_card_of_its_gpu_until_it_is_resolved(site: Site) -> None:
    assert site.post(webhook("firing")).status_code == 204
    assert site.alerts() == [("GPUHot", "node-1/1 97C")]
    assert site.post(webhook("firing")).status_code == 204
    assert len(site.alerts()) == 1
    assert site.post(webhook("resolved")).status_code == 204
    assert site.alerts() == []
    assert (site.count("firing"), site.count("resolved")) == (2, 1)


def test_it_opens_no_card_and_starts_nothing(site: Site) -> None:
    body = webhook("firing")
    body["alerts"][0]["labels"] |= {"node": "node-2"}
    before = [one.decision.id for one in site.brain.statuses()]
    assert site.post(body).status_code == 204
    site.brain.tick()
    assert site.service.cards(10).total == 1
    assert site.alerts() == []
    assert [one.decision.id for one in site.brain.statuses()] == before


def test_one_that_is_not_told_again_is_over(site: Site) -> None:
    site.post(webhook("firing"))
    site.clock.advance(HOUR)
    assert site.alerts() == [("GPUHot", "node-1/1 97C")]
    site.clock.advance(KEPT_MS - HOUR)
    assert site.service.cards(10).items
    assert site.alerts() == []


def test_who_may_say_what(site: Site) -> None:
    assert site.post(webhook("firing"), "eve").status_code == 403
    assert site.post(webhook("firing"), "node-2").status_code == 204
    assert (site.alerts(), site.count("refused")) == ([], 1)


def test_a_bad_alert_costs_no_good_one(site: Site) -> None:
    body = webhook("firing")
    good = body["alerts"][0]
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    body["alerts"] = [None, 5, {}, {**good, "labels": {"a": "b" * 5_000}}, {**good, "labels": deep}, good]
    body["alerts"].append({**good, "fingerprint": "f", "labels": {"alertname": "A", "node": "nowhere"}})
    assert site.post(body).status_code == 204
    assert len(site.alerts()) == 1
    assert (site.count("malformed"), site.count("unknown_place")) == (5, 1)
    assert site.post({"version": "3", "alerts": []}).status_code == 422
    assert site.post(["x"]).status_code == 422


def test_memory_is_bounded() -> None:
    hosts = [f"node-{n}" for n in range(MAX_KEPT // MOST_OF_HOST + 1)]
    alerts = ForeignAlerts(lambda: [Reading(Gpu(f"GPU-{host}", host, index=1), T0, {}) for host in hosts])
    good = webhook("firing")["alerts"][0]

    def told(first: int, count: int, status: str) -> list[dict[str, Any]]:
        return [
            {
                **good,
                "status": status,
                "fingerprint": str(n),
                "labels": {"alertname": "A", "node": hosts[n % len(hosts)]},
            }
            for n in range(first, first + count)
        ]

    def take(first: int, count: int, status: str = "firing") -> dict[str, int]:
        return alerts.take(told(first, count, status), lambda _h, _g: "", T0)

    assert take(0, MAX_KEPT + 3) == {"firing": MAX_KEPT, "full": 3}
    assert take(0, 3) == {"firing": 3}, "they are there already"
    assert take(5, 2, status="resolved") == {"resolved": 2}
    assert take(MAX_KEPT, 3) == {"firing": 2, "full": 1}
