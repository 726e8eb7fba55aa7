"""What must not cost the others a reading: a call that hangs, a driver that is reloaded, a GPU that is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tocsin.domain.event import EventKind
from tocsin_testing.chaos import AgentProcess, agent, check, until
from tocsin_testing.mock_nvml import MockFleet

pytestmark = pytest.mark.server

ILL = 2


def powered(running: AgentProcess) -> set[str]:
    """GPUs that have a power reading on the page."""
    return {sample.labels["gpu_uuid"] for sample in running.samples("gpu_power_watts")}


def kinds(running: AgentProcess) -> list[str]:
    """Events that the agent saw, in order."""
    return [str(entry["kind"]) for entry in running.entries("event")]


def ended(running: AgentProcess, store: str, uuids: list[str]) -> None:
    """Empty the spool, end the agent, and look into the store: each GPU has each instant, with values or reasons."""
    until(lambda: running.metric("tocsin_spool_batches") == 0, "an empty spool")
    running.stop()
    check(store, running.spool, running.acknowledged(), uuids, further=0)


def test_a_call_that_hangs_costs_its_gpu_alone(tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str) -> None:
    with agent(tmp_path, fleet, store) as running:
        until(lambda: powered(running) == set(uuids), f"all GPUs: {running.tail()}")
        fleet.gpus[ILL].hang()
        fleet.apply()
        until(lambda: powered(running) == set(uuids) - {uuids[ILL]}, f"the others alone: {running.tail()}")
        assert running.metric("tocsin_missing_readings", reason="timed_out") > 0
        assert running.metric("tocsin_stuck_readers", source="nvml") == 1
        count = len(running.entries("spooled"))
        running.wait_for_spooled(count + 10)
        fleet.heal()
        until(lambda: powered(running) == set(uuids), f"all GPUs again: {running.tail()}")
        until(lambda: running.metric("tocsin_stuck_readers", source="nvml") == 0, "no reader stuck")
        ended(running, store, uuids)


def test_an_agent_with_a_hanging_call_still_ends(tmp_path: Path, fleet: MockFleet, store: str) -> None:
    with agent(tmp_path, fleet, store) as running:
        running.wait_for_spooled(3)
        fleet.gpus[ILL].hang()
        fleet.apply()
        until(lambda: running.metric("tocsin_stuck_readers", source="nvml") == 1, f"a stuck reader: {running.tail()}")
        running.stop()


def test_a_driver_that_is_reloaded(tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str) -> None:
    with agent(tmp_path, fleet, store) as running:
        until(lambda: powered(running) == set(uuids), f"all GPUs: {running.tail()}")
        fleet.reload()
        until(lambda: EventKind.DRIVER_RELOAD.value in kinds(running), f"the event: {running.tail()}")
        until(lambda: powered(running) == set(uuids), "all GPUs again")
        assert fleet.stale_handles == 0
        ended(running, store, uuids)


def test_a_driver_that_is_away_for_a_while(tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str) -> None:
    with agent(tmp_path, fleet, store) as running:
        until(lambda: powered(running) == set(uuids), f"all GPUs: {running.tail()}")
        fleet.system.fail("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
        fleet.reload()
        until(lambda: not powered(running), "no values")
        assert running.metric("tocsin_missing_readings", reason="lost") > 0
        fleet.heal()
        until(lambda: powered(running) == set(uuids), f"all GPUs again: {running.tail()}", 60)
        ended(running, store, uuids)


def test_a_driver_that_was_replaced_ends_the_agent_for_its_supervisor(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str
) -> None:
    with agent(tmp_path, fleet, store) as running:
        running.wait_for_spooled(3)
        fleet.system.fail("*", "LIB_RM_VERSION_MISMATCH")
        fleet.apply()
        assert running.process.wait(30) == 3, running.tail()
    assert "restart the agent" in running.tail()
    fleet.system.heal()
    fleet.apply()
    with agent(tmp_path, fleet, store) as again:
        again.wait_for_spooled(3)
        until(lambda: again.metric("tocsin_spool_batches") == 0, "an empty spool")
        again.stop()
        check(
            store,
            again.spool,
            running.acknowledged() | again.acknowledged(),
            uuids,
            further=0,
        )


def test_a_gpu_that_is_lost(tmp_path: Path, fleet: MockFleet, uuids: list[str], store: str) -> None:
    with agent(tmp_path, fleet, store) as running:
        until(lambda: powered(running) == set(uuids), f"all GPUs: {running.tail()}")
        fleet.event(gpu=ILL, data=79)
        fleet.gpus[ILL].lose()
        fleet.apply()
        until(lambda: EventKind.GPU_LOST.value in kinds(running), f"the event: {running.tail()}")
        assert powered(running) == set(uuids) - {uuids[ILL]}
        count = len(running.entries("spooled"))
        running.wait_for_spooled(count + 10)
        fleet.heal()
        until(lambda: EventKind.GPU_FOUND.value in kinds(running), f"the GPU found: {running.tail()}", 60)
        until(lambda: powered(running) == set(uuids), "all GPUs again")
        assert kinds(running).count(EventKind.GPU_LOST.value) == 1
        assert (79, uuids[ILL]) in {(e["code"], e["gpu"]) for e in running.entries("event") if e["kind"] == "xid"}
        ended(running, store, uuids)


FIRST_READING_SECONDS = 10.0
END_SECONDS = 5.0
SLOW = {"TOCSIN_AGENT__INTERVAL_SECONDS": "10"}
"""An interval as in production, so that every deadline is the one in use."""


def first_reading(running: AgentProcess, begun: float) -> None:
    """Wait for the first reading in the spool, and see that it came in time."""
    until(lambda: running.entries("spooled"), f"the first reading: {running.tail()}", FIRST_READING_SECONDS)
    assert time.monotonic() - begun < FIRST_READING_SECONDS


def ends_in_time(running: AgentProcess) -> None:
    """End the agent as systemd does, and see how long that takes."""
    begun = time.monotonic()
    running.stop()
    assert time.monotonic() - begun < END_SECONDS, running.tail()


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceRegisterEvents", "*"])
def test_a_gpu_that_hangs_while_it_is_opened_costs_itself_alone(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], function: str
) -> None:
    fleet.gpus[ILL].hang(function)
    fleet.apply()
    begun = time.monotonic()
    with agent(tmp_path, fleet, "http://127.0.0.1:9", **SLOW) as running:
        first_reading(running, begun)
        assert powered(running) == set(uuids) - {uuids[ILL]}
        assert running.metric("tocsin_missing_readings", reason="timed_out") > 0
        assert running.metric("tocsin_gpus", source="nvml") == len(uuids), "it has a reading of reasons"
        assert running.metric("tocsin_stuck_readers", source="nvml") == 1
        ends_in_time(running)


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"])
def test_a_library_that_hangs_while_it_is_opened_leaves_the_agent_heard_and_ended(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], function: str
) -> None:
    fleet.system.hang(function)
    fleet.apply()
    begun = time.monotonic()
    with agent(tmp_path, fleet, "http://127.0.0.1:9", TOCSIN_AGENT__INTERVAL_SECONDS="1") as running:
        first_reading(running, begun)
        assert running.metric("tocsin_missing_readings", reason="timed_out") > 0
        assert running.metric("tocsin_stuck_readers", source="nvml") == 1
        fleet.heal()
        until(lambda: powered(running) == set(uuids), f"all GPUs, once the driver comes: {running.tail()}")
        assert not {"gpu_lost", "gpu_found", "driver_reload"} & set(kinds(running)), "nothing happened to any GPU"
        ends_in_time(running)


def test_an_agent_ends_in_time_while_its_driver_is_being_opened(tmp_path: Path, fleet: MockFleet) -> None:
    fleet.system.hang("nvmlInitWithFlags")
    fleet.apply()
    with agent(tmp_path, fleet, "http://127.0.0.1:9", **SLOW) as running:
        until(lambda: fleet.waiting, f"a call that hangs: {running.tail()}")
        ends_in_time(running)


def test_an_agent_ends_in_time_in_the_middle_of_a_reading_that_hangs(tmp_path: Path, fleet: MockFleet) -> None:
    with agent(tmp_path, fleet, "http://127.0.0.1:9", TOCSIN_AGENT__INTERVAL_SECONDS="5") as running:
        running.wait_for_spooled(1)
        for gpu in fleet.gpus.values():
            gpu.hang()
        fleet.apply()
        until(lambda: fleet.waiting, f"a call that hangs: {running.tail()}")
        ends_in_time(running)


def test_an_agent_whose_library_does_not_close_ends_in_time(tmp_path: Path, fleet: MockFleet) -> None:
    with agent(tmp_path, fleet, "http://127.0.0.1:9", **SLOW) as running:
        running.wait_for_spooled(1)
        fleet.system.hang("nvmlShutdown")
        fleet.apply()
        ends_in_time(running)


@pytest.mark.parametrize("count", [-1, 1 << 31, 65])
def test_a_count_of_gpus_that_cannot_be_is_not_believed(
    tmp_path: Path, fleet: MockFleet, uuids: list[str], count: int
) -> None:
    fleet.system.set("nvmlDeviceGetCount_v2", to=count)
    fleet.apply()
    begun = time.monotonic()
    with agent(tmp_path, fleet, "http://127.0.0.1:9") as running:
        first_reading(running, begun)
        running.wait_for_spooled(5)
        assert powered(running) == set(uuids)
        assert running.metric("tocsin_gpus", source="nvml") == len(uuids), "nor are GPUs made of it"
        assert running.metric("tocsin_nvml_implausible_counts_total", what="gpu") >= 5
        assert running.log.read_text().count("a count that cannot be") == 1
        ends_in_time(running)


def test_troubles_of_all_kinds_at_once_hold_up_neither_the_first_reading_nor_the_end(
    tmp_path: Path, fleet: MockFleet, uuids: list[str]
) -> None:
    fleet.gpus[0].hang("nvmlDeviceGetHandleByIndex_v2")
    fleet.gpus[1].hang("nvmlDeviceGetFieldValues")
    fleet.gpus[2].delay("nvmlDeviceGetUUID", 1_000_000)
    fleet.system.hang("nvmlEventSetWait_v2")
    fleet.system.hang("nvmlShutdown")
    fleet.apply()
    begun = time.monotonic()
    with agent(tmp_path, fleet, "http://127.0.0.1:9", **SLOW) as running:
        first_reading(running, begun)
        assert powered(running) == set(uuids[2:])
        ends_in_time(running)
