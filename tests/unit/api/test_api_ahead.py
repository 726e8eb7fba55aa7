"""The endpoints on what lies ahead: bounds, bad questions, and that a running brain answers them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tocsin.actions.planning.state import GpuMode
from tocsin.api.app import create_app
from tocsin.client.client import Client
from tocsin.config.access import ApiSettings
from tocsin.config.settings import PriceSettings, Settings
from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin.domain.errors import Unavailable
from tocsin.domain.fragmentation import free_slices
from tocsin.queries.fleet_state import free_now, live_state
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService, serving


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    app = create_app(service, ApiSettings())
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False)


def test_lists_are_bounded_and_counts_are_of_all(http: TestClient) -> None:
    found = http.get("/v1/forecast?limit=3").json()
    assert len(found["risk"]["gpus"]) == len(found["risk"]["hosts"]) == 3
    assert sum(found["risk"]["statuses"].values()) == 64
    chances = [one["probability"] for one in found["risk"]["gpus"]]
    assert chances == sorted(chances, reverse=True)
    broken = http.get("/v1/fragmentation?limit=1").json()
    assert (len(broken["hosts"]), len(broken["mig"]), broken["mig_gpus"]) == (1, 1, 5)
    assert broken["hosts_total"] > 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/forecast?limit=0", 422),
        ("/v1/forecast?limt=5", 422),
        ("/v1/plan/nonsense", 422),
        ("/v1/cost?start=yesterday", 400),
        ("/v1/cost?start=2026-11-21T00:00:00Z&end=2026-11-20T00:00:00Z", 400),
        ("/v1/cost?start=2026-01-01T00:00:00Z&end=2026-11-20T00:00:00Z", 400),
    ],
)
def test_bad_questions_are_told(http: TestClient, path: str, status: int) -> None:
    assert http.get(path).status_code == status


def test_the_state_of_the_planners_is_no_planner(http: TestClient) -> None:
    assert http.get("/v1/plan/state").json() == {"nodes": [], "gpus": [], "works": []}
    assert http.get("/v1/plan/defragment").json()["planner"] == "defragment"


def test_the_client_gets_what_is_served(service: FakeService) -> None:
    with serving(service) as url, Client(url) as client:
        assert client.forecast(2).risk.gpus[0].host == "gpu-node-05"
        assert client.capacity().pools[0].pool == "training"
        assert client.fragmentation(5).fleet.gpus == 64
        assert client.plan("mig").plans[0].mig
        assert client.cost(fleet.NOW_MS - 2 * DAY, fleet.NOW_MS).hours_wanted == 49
        assert client.cost().hours_wanted == 24
        service.working = True
        with pytest.raises(Unavailable, match="being worked out"):
            client.plan("scale")


# ---------------------------------------------------------------------- a running brain


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder: Path = tmp_path_factory.mktemp("demo")
    wanted = Settings(
        prices=PriceSettings(currency="EUR", gpu_hour_default=1.0, kwh=0.2, pue=1.5),
    ).model_dump()
    wanted["simulation"] = {"gpus": 64, "interval_seconds": 300}
    wanted["forecast"] = {"worker": False, "models": folder / "models"}
    demo = Demo(demo_settings(Settings.model_validate(wanted), folder), T0)
    demo.step()
    demo.brain.forecast()
    yield demo
    demo.running.stop()


def test_a_brain_tells_risks_or_why_not(demo: Demo) -> None:
    found = demo.service.forecast(5)
    assert found.simulated
    assert len(found.risk.gpus) == 5
    assert sum(found.risk.statuses.values()) == 64
    assert [ahead for ahead, _ in found.risk.expected] == [3600.0, 21_600.0, 86_400.0, 172_800.0]
    sums = [chance for _, chance in found.risk.expected]
    assert sums == sorted(sums)
    assert found.risk.hosts[0].probability >= found.risk.gpus[0].probability


def test_a_brain_tells_capacity_or_how_much_past_it_needs(demo: Demo) -> None:
    found = demo.service.capacity()
    assert {one.pool for one in found.pools} == {"training", "inference", "batch"}
    assert sum(one.gpus for one in found.pools) == 64
    assert all("needed" in one.utilisation.reason for one in found.pools)
    assert "needed" in found.fragmented.reason
    assert any(value is not None for value in found.fragmented.known)


def test_a_brain_tells_fragmentation_by_the_measure_of_its_rules(demo: Demo) -> None:
    found, rules = demo.service.fragmentation(50), demo.brain.rules.engine.fleet
    assert rules is not None
    assert (found.fleet.free, found.fleet.fragmented) == (rules.free, pytest.approx(rules.fragmented))
    assert found.mig_gpus == 8
    assert found.mig_unknown == 0
    truth = dict(zip([gpu.uuid for gpu in demo.fleet.gpus], demo.fleet._state.layouts, strict=True))
    for one in found.mig:
        assert sorted(made.profile for made in one.instances) == sorted(name for name, _ in truth[one.gpu])
        assert one.free_slices == len(free_slices(truth[one.gpu])[0])


def test_a_brain_plans_without_taking_busy_gpus_for_free(demo: Demo) -> None:
    for planner in ("defragment", "mig", "place", "scale", "power"):
        found = demo.service.plan(planner)  # type: ignore[arg-type]
        assert found.planner == planner
        assert found.plans[0].simulated
    # GPUs in MIG mode have a plan of their own, and one that is failing gets nothing.
    gpus, readings = live_state(demo.brain, demo.service.now_ms()).gpus, demo.brain.memory.latest()
    free = [one.gpu.uuid for one, yes in zip(readings, free_now(readings).tolist(), strict=True) if yes]
    able = [uuid for uuid in free if gpus[uuid].healthy and gpus[uuid].mode is not GpuMode.MIG]
    before = demo.service.plan("defragment").plans[0].before
    assert 0 < before["free_gpus"] == len(able) < 64
    assert before["fragmented_gpus"] > 0


def test_a_brain_accounts_for_every_gpu_hour(demo: Demo) -> None:
    now = demo.service.now_ms()
    found = demo.service.cost(now - 12 * HOUR, now)
    assert found.hours_read == found.hours_wanted
    full = list(found.hours[1:-1])
    assert full
    assert [one.gpu_hours for one in full] == pytest.approx([64.0] * len(full))
    assert found.money.energy == pytest.approx(found.usage.kwh * 1.5 * 0.2)
    assert found.money.free == pytest.approx(found.usage.free)
    whole = demo.service.cost(now - 6 * HOUR, now)
    parts = [
        demo.service.cost(now - 6 * HOUR, (now - 3 * HOUR) // HOUR * HOUR),
        demo.service.cost((now - 3 * HOUR) // HOUR * HOUR, now),
    ]
    assert sum(one.usage.kwh for one in parts) == pytest.approx(whole.usage.kwh)
    assert sum(one.usage.busy for one in parts) == pytest.approx(whole.usage.busy)
    assert whole.start == to_iso((now - 6 * HOUR) // HOUR * HOUR)


def test_a_request_may_come_while_another_drops_what_is_old(demo: Demo) -> None:
    spans = range(1, 17)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda hours: demo.service.cost(T0 - hours * HOUR, T0), spans))
    assert [one.hours_wanted for one in found] == [hours + 1 for hours in spans]
