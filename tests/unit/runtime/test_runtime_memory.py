"""The newest state of the fleet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.batch import Batch
from tocsin.domain.reading import UNKNOWN_GPU, Gpu, Missing, Reading
from tocsin.runtime.brain.fleet_memory import FleetMemory
from tocsin_testing.builders import T0, gpu, reading, xid


@given(st.permutations([reading(at_ms=T0 + n, power_watts=100 + n) for n in range(5)]))
def test_the_newest_reading_wins_in_any_order(order: list) -> None:  # type: ignore[type-arg]
    memory = FleetMemory()
    for one in order:
        memory.put(Batch(readings=[one]))
    assert [r.values["gpu_power_watts"] for r in memory.latest()] == [104.0]
    assert memory.count == 5


def test_two_parts_of_one_instant_are_one_reading() -> None:
    memory = FleetMemory()
    memory.put(Batch(readings=[reading(power_watts=1, missing={"gpu_fan_speed_ratio": Missing.NOT_DUE})]))
    memory.put(Batch(readings=[reading(fan_speed_ratio=0.5)]))
    (one,) = memory.latest()
    assert dict(one.values) == {"gpu_power_watts": 1.0, "gpu_fan_speed_ratio": 0.5}
    assert dict(one.missing) == {}


def test_a_bare_identity_does_not_wipe_out_attributes() -> None:
    memory = FleetMemory()
    memory.put(Batch(readings=[reading(gpu(1, pool="training"), power_watts=1)]))
    bare = Gpu("GPU-00000001", "node-1")
    memory.put(Batch(readings=[reading(bare, T0 + 1, power_watts=2)]))
    (one,) = memory.latest()
    assert (one.gpu.pool, one.gpu.model) == ("training", "NVIDIA A100-SXM4-80GB")


def test_events_are_taken_once_in_order_and_a_doubled_one_is_one() -> None:
    memory = FleetMemory()
    memory.put(Batch(events=[xid(79, at_ms=T0 + 5), xid(48, at_ms=T0)]))
    memory.put(Batch(events=[xid(79, at_ms=T0 + 5)]))
    assert [event.code for event in memory.take().events] == [48, 79]
    assert memory.take().events == ()


def test_a_gpu_that_left_is_forgotten() -> None:
    memory = FleetMemory()
    old, new = reading(gpu(1)), reading(gpu(2), T0 + 10)
    memory.put(Batch(readings=[old, new]))
    assert memory.forget(T0 + 1) == [old.gpu]
    assert memory.latest() == (new,)
    assert memory.reading(old.gpu.uuid) is None


def test_a_value_outranks_a_reason_of_the_same_instant() -> None:
    memory = FleetMemory()
    memory.put(Batch(readings=[reading(power_watts=1)]))
    late = replace(reading(), missing={"gpu_power_watts": Missing.TIMED_OUT})
    memory.put(Batch(readings=[late]))
    (one,) = memory.latest()
    assert (dict(one.values), dict(one.missing)) == ({"gpu_power_watts": 1.0}, {})


def test_gpus_that_nobody_could_name_go_once_their_host_names_its_own() -> None:
    memory = FleetMemory()
    unknown = [Gpu(f"{UNKNOWN_GPU}h-{n}", "h") for n in range(2)]
    memory.put(Batch(readings=[Reading(gpu, T0, {}) for gpu in unknown]))
    assert len(memory.latest()) == 2
    memory.put(Batch(readings=[Reading(Gpu("GPU-other", "elsewhere"), T0, {})]))
    assert len(memory.latest()) == 3
    memory.put(Batch(readings=[Reading(Gpu("GPU-real", "h"), T0, {}), Reading(unknown[1], T0 + 1, {})]))
    assert {one.gpu.uuid for one in memory.latest()} == {"GPU-other", "GPU-real", unknown[1].uuid}


ASKED = [*(f"GPU-{n}" for n in range(4)), f"{UNKNOWN_GPU}a", f"{UNKNOWN_GPU}b"]
_told = st.tuples(st.sampled_from(ASKED), st.sampled_from("ab"), st.integers(0, 6))


@given(st.lists(st.lists(_told, max_size=3) | st.integers(0, 6), max_size=12))
def test_all_readings_are_each_gpus_own_whatever_came_went_or_moved(
    steps: list[list[tuple[str, str, int]] | int],
) -> None:
    memory = FleetMemory()
    for step in steps:
        if isinstance(step, int):
            memory.forget(step)
            memory.let_go(ASKED[:2], step + 2)
        else:
            memory.put(Batch(readings=[Reading(Gpu(uuid, host), at_ms, {}) for uuid, host, at_ms in step]))
        each = [memory.reading(uuid) for uuid in sorted(ASKED)]
        assert memory.latest() == memory.take().readings == tuple(one for one in each if one is not None)
