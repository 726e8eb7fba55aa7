"""Companions: opened by settings, watched over, never at the cost of a reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from structlog.testing import capture_logs

from tocsin.collector.network.companion import Network
from tocsin.collector.redfish.companion import Redfish
from tocsin.config.redfish import RedfishSettings
from tocsin.config.settings import AgentSettings, Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import Unavailable
from tocsin.domain.reading import Owner
from tocsin.runtime.agent.companions import RETRY_SECONDS, Companions, Context, every_companion, find_companion
from tocsin.runtime.agent.process import Agent
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.sysfs_tree import SysfsTree


class Helper:
    """A companion that does what `work` does."""

    name = "helper"

    def __init__(self, work: Callable[[Batch], Batch]) -> None:
        self.work = work
        self.closed = 0

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        return self.work(batch)

    def close(self) -> None:
        self.closed += 1


def fail(_: Batch) -> Batch:
    raise ZeroDivisionError("bug")


def owned(batch: Batch) -> Batch:
    return replace(batch, readings=[replace(r, owners=(Owner(7),)) for r in batch.readings])


BATCH = Batch(readings=(reading(gpu(0), temperature_celsius=50), reading(gpu(1), temperature_celsius=51)))


def around(clock: ManualClock | None = None) -> Context:
    return Context(Settings(), clock if clock is not None else ManualClock(T0), OwnMetrics())


def test_they_are_asked_in_order() -> None:
    where = around()
    order: list[str] = []

    def noting(name: str) -> Callable[[Batch], Batch]:
        return lambda batch: order.append(name) or batch

    companions = Companions(where, [(n, lambda _, n=n: Helper(noting(n))) for n in ("a", "b", "c")])
    assert companions.enrich(BATCH, T0) is BATCH
    assert order == companions.names == ["a", "b", "c"]


@pytest.mark.parametrize("work", [fail, lambda batch: replace(batch, readings=batch.readings[:1])])
def test_one_that_fails_or_takes_readings_away_costs_nothing_but_itself(work: Callable[[Batch], Batch]) -> None:
    where = around()
    broken = Helper(work)
    companions = Companions(where, [("broken", lambda _: broken), ("sound", lambda _: Helper(owned))])
    with capture_logs() as logs:
        for _ in range(3):
            made = companions.enrich(BATCH, T0)
            assert [r.values for r in made.readings] == [r.values for r in BATCH.readings]
            assert all(r.owners for r in made.readings)
    assert where.own.value("tocsin_companion_failures_total", companion="broken") == 3
    assert where.own.value("tocsin_companion_failures_total", companion="sound") == 0
    assert [log["log_level"] for log in logs] == ["error", "debug", "debug"], "said once"
    broken.work = lambda batch: batch
    companions.enrich(BATCH, T0)
    broken.work = work
    with capture_logs() as logs:
        companions.enrich(BATCH, T0)
    assert [log["log_level"] for log in logs] == ["error"], "said again after it had worked"


def test_one_that_cannot_be_opened_is_said_once_and_tried_again() -> None:
    clock = ManualClock(T0)
    where = around(clock)
    reason = "no permission to read /dev/kmsg; give the agent CAP_SYSLOG"
    found: list[Helper] = []

    def opener(_: Context) -> Helper:
        if not found:
            raise Unavailable(reason)
        return found[0]

    with capture_logs() as logs:
        companions = Companions(where, [("helper", opener)])
        for _ in range(100):
            clock.advance(10 * SECOND)
            assert companions.enrich(BATCH, T0) is BATCH
    assert [log["problem"] for log in logs if log["log_level"] == "warning"] == [reason]
    assert where.own.value("tocsin_companion_up", companion="helper") == 0
    found.append(Helper(owned))
    clock.advance(round(RETRY_SECONDS) * SECOND)
    assert companions.enrich(BATCH, T0).readings[0].owners
    assert where.own.value("tocsin_companion_up", companion="helper") == 1
    companions.close()
    assert found[0].closed == 1


def test_one_that_nobody_wants_is_not_shown() -> None:
    where = around()
    companions = Companions(where, [("helper", lambda _: None)])
    assert companions.names == []
    assert where.own.registry.get_sample_value("tocsin_companion_up", {"companion": "helper"}) is None


def test_all_are_closed_even_if_one_fails_at_it_and_stay_closed() -> None:
    class Sticky(Helper):
        def close(self) -> None:
            super().close()
            raise RuntimeError("no")

    helpers = [Sticky(owned), Helper(owned)]
    companions = Companions(around(), [(str(n), lambda _, n=n: helpers[n]) for n in range(2)])
    companions.close()
    companions.close()
    assert [helper.closed for helper in helpers] == [1, 1]
    assert companions.enrich(BATCH, T0) is BATCH


def test_the_agent_applies_them_before_it_cleans_and_closes_them(tmp_path: Path) -> None:
    class Source:
        name = "list"

        def gpus(self):
            return [r.gpu for r in BATCH.readings]

        def read(self, now_ms: int) -> Batch:
            return BATCH

        def close(self) -> None:
            pass

    def garbage(batch: Batch) -> Batch:
        first = replace(batch.readings[0], values={**batch.readings[0].values, "nonsense": 1.0})
        return replace(batch, readings=[first, *batch.readings[1:]], events=[xid(79)])

    helper = Helper(garbage)
    settings = Settings(agent=AgentSettings(spool=tmp_path / "spool.db"))
    agent = Agent(settings, Source(), ManualClock(T0), companions=[("helper", lambda _: helper)])
    batch = agent.tick()
    assert set(batch.readings[0].values) == {"gpu_temperature_celsius"}
    assert agent.own.value("tocsin_events_total", source="list", kind="xid") == 1
    assert agent.own.value("tocsin_dropped_total", what="value", reason="implausible") == 1
    agent.close()
    assert helper.closed == 1


def test_the_time_they_take_is_counted() -> None:
    clock = ManualClock(T0)
    where = around(clock)

    def slow(batch: Batch) -> Batch:
        clock.advance(250)
        return batch

    companions = Companions(where, [("slow", lambda _: Helper(slow))])
    companions.enrich(BATCH, T0)
    assert where.own.value("tocsin_companion_seconds_total", companion="slow") == 0.25


def test_the_registry_has_the_source_marked_first_and_owners_last() -> None:
    assert every_companion()[0][0] == "frozen"
    assert every_companion()[-1][0] == "attribution"


def test_what_stands_around_the_gpus_is_opened_by_settings(tmp_path: Path, httpserver: HTTPServer) -> None:
    tree = SysfsTree(tmp_path / "sys")
    tree.pci("pci0000:15", "0000:18:00.0")
    tree.card("mlx5_0", "pci0000:15", "0000:19:00.0")
    httpserver.expect_request("/redfish/v1/").respond_with_json({"Name": "root"})
    agent = AgentSettings(sys=tree.root, spool=tmp_path / "spool.db", network_rails={"mlx5_0": "rail-1"})
    redfish = RedfishSettings(urls=[httpserver.url_for("").rstrip("/")])
    context = replace(around(), settings=Settings(agent=agent, redfish=redfish))
    names = ["network", "host_errors", "redfish"]
    made = Companions(context, [(name, find_companion(name)) for name in names])
    try:
        assert made.names == names
        network, controllers = made.find("network"), made.find("redfish")
        assert isinstance(network, Network)
        assert isinstance(controllers, Redfish)
        network.look()
        controllers.ask()
        one = gpu(0, pci_bus_id="00000000:18:00.0")
        (found,) = made.enrich(Batch(readings=[reading(one, T0, power_watts=9.0)]), T0).readings
        assert found.values['network_port_up{port="mlx5_0:1"}'] == 1.0
        assert found.gpu.labels["topology.kubernetes.io/rail"] == "rail-1"
    finally:
        made.close()
    none = Companions(replace(context, settings=Settings()), [("redfish", find_companion("redfish"))])
    assert none.names == []
