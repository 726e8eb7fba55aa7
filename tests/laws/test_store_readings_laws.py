"""Laws of every store: readings come back as they were, whatever the order, the number and the parts of the writes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin_testing.builders import gpu, reading, xid
from tocsin_testing.law_words import CRC, FULL, MIG, POWER, TEMPERATURE, T, attributes, everything, put, times
from tocsin_testing.stores import Harness

# ---------------------------------------------------------------------- one reading


def test_a_reading_comes_back_as_it_was(h: Harness) -> None:
    one = reading(
        at_ms=T,
        temperature_celsius=61.25,
        ecc_corrected_volatile_total=0.0,
        pcie_transmit_bytes_total=float(2**53),
        missing={"gpu_fan_speed_ratio": Missing.UNSUPPORTED, "gpu_memory_temperature_celsius": Missing.TIMED_OUT},
    )
    put(h, one)
    assert everything(h) == [one]
    assert list(h.store.latest(T)) == [one]


@pytest.mark.parametrize("reason", Missing)
def test_every_reason_survives_in_a_reading_without_values(h: Harness, reason: Missing) -> None:
    lost = Reading(gpu(0), T, {}, {TEMPERATURE: reason, POWER: reason})
    put(h, lost)
    assert everything(h) == [lost]
    assert list(h.store.latest(T)) == [lost]


def test_variants_keep_their_labels(h: Harness) -> None:
    odd = 'a b,c=d"e'
    values = {variant(CRC, "link", str(n)): float(n) for n in range(3)} | {variant(CRC, "link", odd): 7.0}
    reasons = {
        variant(CRC, "link", "9"): Missing.LOST,
        variant("gpu_process_memory_used_bytes", "pid", "12"): Missing.DENIED,
    }
    put(h, Reading(gpu(0), T, {**values, TEMPERATURE: 40.0}, reasons))
    (found,) = everything(h)
    assert dict(found.values) == {**values, TEMPERATURE: 40.0}
    assert dict(found.missing) == reasons


def test_a_mig_instance_is_not_its_parent(h: Harness) -> None:
    put(h, reading(gpu(0), T, power_watts=300), reading(MIG, T, memory_used_bytes=5))
    found = {r.gpu.uuid: (r.gpu.parent, dict(r.values)) for r in everything(h)}
    assert found == {"GPU-00000000": ("", {POWER: 300.0}), "MIG-1": ("GPU-00000000", {"gpu_memory_used_bytes": 5.0})}


def test_numbers_come_back(h: Harness) -> None:
    whole = [0.0, 2.0**53, 2.0**53 - 1, 123_456_789_012_345.0, 61.25, 312.456]
    others = [1 / 3, 1e-9, 0.1 + 0.2, 1.8446744073709552e19, math.pi * 1e9]
    put(h, *(reading(gpu(n), T, energy_joules_total=value) for n, value in enumerate([*whole, *others])))
    found = [r.values["gpu_energy_joules_total"] for r in everything(h)]
    assert found[: len(whole)] == whole
    assert found[len(whole) :] == (others if h.exact else pytest.approx(others, rel=1e-11))


def test_owners_come_back(h: Harness) -> None:
    train = Owner(4242, "python", container="c" * 64, pod="train-0", namespace="ml", pod_uid="u-1")
    job = Owner(17, "a=b, c", slurm_job="12.0", user='says "hi"\\')
    put(h, replace(reading(gpu(0), T, power_watts=1), owners=(job, train)), reading(gpu(1), T, power_watts=2))
    put(
        h,
        replace(reading(gpu(0), T + 1, {POWER: Missing.LOST}), owners=(train,)),
        reading(gpu(0), T + 2, power_watts=3),
    )
    expected = [("0", 0, (job, train)), ("1", 0, ()), ("0", 1, (train,)), ("0", 2, ())]
    assert [(r.gpu.uuid[-1], r.at_ms - T, r.owners) for r in everything(h)] == expected
    assert [r.owners for r in h.store.latest(0)] == [(), ()]
    assert [r.owners for r in h.store.readings(T + 1, T + 2)] == [(train,)]
    put(h, replace(reading(gpu(1), T + 9, power_watts=2), owners=(job,)))
    assert [r.owners for r in h.store.latest(0)] == [(), (job,)]


def test_a_write_without_owners_takes_none_away(h: Harness) -> None:
    first = Owner(1, "python")
    put(h, replace(reading(gpu(0), T, power_watts=1), owners=(first,)))
    put(h, reading(gpu(0), T, temperature_celsius=40))
    assert [r.owners for r in everything(h)] == [(first,)]


# ---------------------------------------------------------------------- many writes


def test_writing_twice_changes_nothing(h: Harness) -> None:
    readings = [reading(gpu(n), T, power_watts=100 + n) for n in range(3)]
    for _ in range(2):
        put(h, *readings, events=[xid(79, at_ms=T), xid(48, at_ms=T)])
        assert everything(h) == readings
        assert len(h.store.events(T, T + 1)) == 2


def test_two_writes_to_one_instant_merge_fields(h: Harness) -> None:
    put(h, reading(gpu(0), T, {TEMPERATURE: Missing.NOT_DUE}, power_watts=100))
    put(h, reading(gpu(0), T, temperature_celsius=50))
    (one,) = everything(h)
    assert (dict(one.values), dict(one.missing)) == ({POWER: 100.0, TEMPERATURE: 50.0}, {})


def test_one_batch_may_hold_an_instant_twice(h: Harness) -> None:
    put(h, reading(gpu(0), T, temperature_celsius=40), reading(gpu(0), T, power_watts=300))
    (found,) = everything(h)
    assert dict(found.values) == {TEMPERATURE: 40.0, POWER: 300.0}


def test_variants_of_two_writes_merge(h: Harness) -> None:
    put(h, Reading(gpu(0), T, {variant(CRC, "link", "0"): 1.0}))
    put(h, Reading(gpu(0), T, {variant(CRC, "link", "1"): 2.0}, {variant(CRC, "link", "0"): Missing.LOST}))
    (found,) = everything(h)
    assert dict(found.values) == {variant(CRC, "link", "0"): 1.0, variant(CRC, "link", "1"): 2.0}
    assert dict(found.missing) == {}


def test_the_last_value_of_a_field_wins(h: Harness) -> None:
    if not h.rewrites:
        pytest.skip("VictoriaMetrics itself chooses between two values of one instant, as docs/store.md says")
    for value in (100, 90, 95):
        put(h, reading(gpu(0), T, power_watts=value))
    assert [dict(r.values) for r in everything(h)] == [{POWER: 95.0}]


@pytest.mark.parametrize("value_first", [True, False])
def test_a_value_outranks_a_reason_whatever_came_first(h: Harness, value_first: bool) -> None:
    both = [reading(gpu(0), T, temperature_celsius=40), Reading(gpu(0), T, {}, {TEMPERATURE: Missing.TIMED_OUT})]
    for one in both if value_first else reversed(both):
        put(h, one)
    (found,) = everything(h)
    assert (dict(found.values), dict(found.missing)) == ({TEMPERATURE: 40.0}, {})


def test_order_of_writing_does_not_matter(h: Harness) -> None:
    for step in (3, 1, 2, 0):
        put(h, *(reading(gpu(n), T + step * 1000, power_watts=step) for n in (1, 0)))
    assert times(h) == [(step * 1000, f"GPU-{n:08d}") for step in range(4) for n in (0, 1)]
    assert [(r.at_ms - T, r.values[POWER]) for r in h.store.latest(0)] == [(3000, 3.0)] * 2


def test_an_empty_batch_is_nothing(h: Harness) -> None:
    h.store.write(Batch())
    h.settle()
    assert (h.store.gpus(), everything(h), list(h.store.latest(0))) == ([], [], [])


# ---------------------------------------------------------------------- which readings


def test_ranges_have_their_start_and_not_their_end(h: Harness) -> None:
    put(h, *(reading(at_ms=T + step, power_watts=1) for step in range(3)))
    assert [at for at, _ in times(h, T, T + 2)] == [0, 1]
    assert times(h, T + 1, T + 1) == []
    assert [r.at_ms for r in h.store.latest(T + 2)] == [T + 2]
    assert list(h.store.latest(T + 3)) == []


def test_readings_of_chosen_gpus(h: Harness) -> None:
    put(h, *(reading(gpu(n), T, power_watts=n) for n in range(4)), reading(MIG, T, power_watts=9))
    chosen = h.store.readings(T, T + 1, gpus={"GPU-00000001", "GPU-00000003", "GPU-none"})
    assert [r.gpu.uuid for r in chosen] == ["GPU-00000001", "GPU-00000003"]
    assert [r.gpu.uuid for r in h.store.readings(T, T + 1, gpus={"GPU-00000000"})] == ["GPU-00000000"]
    assert [r.gpu.uuid for r in h.store.readings(T, T + 1, gpus={"MIG-1"})] == ["MIG-1"]
    assert list(h.store.readings(T, T + 1, gpus=set())) == []


def test_more_chosen_gpus_than_a_query_names(h: Harness) -> None:
    put(h, *(reading(gpu(n), T, power_watts=n) for n in range(150)))
    chosen = [f"GPU-{n:08d}" for n in range(120)]
    assert [r.gpu.uuid for r in h.store.readings(T, T + 1, gpus=chosen)] == chosen
    assert h.store.columns([POWER], T, T + 1, chosen).gpus == tuple(chosen)


def test_latest_is_the_newest_of_each_gpu_however_old(h: Harness) -> None:
    put(h, reading(gpu(0), T, power_watts=1), reading(gpu(0), T + HOUR // 2, temperature_celsius=41))
    put(h, reading(gpu(2), T - HOUR, temperature_celsius=20), reading(gpu(1), T + 5, temperature_celsius=30))
    assert [(r.gpu.uuid[-1], r.at_ms - T, dict(r.values)) for r in h.store.latest(T - 2 * HOUR)] == [
        ("0", HOUR // 2, {TEMPERATURE: 41.0}),
        ("1", 5, {TEMPERATURE: 30.0}),
        ("2", -HOUR, {TEMPERATURE: 20.0}),
    ]
    assert [r.gpu.uuid[-1] for r in h.store.latest(T + 5)] == ["0", "1"]
    assert [r.gpu.uuid[-1] for r in h.store.latest(T + 6)] == ["0"]


# ---------------------------------------------------------------------- identity


def test_attributes_come_back_with_every_reading(h: Harness) -> None:
    simulated = replace(gpu(2), simulated=True)
    put(h, reading(FULL, T, temperature_celsius=40), reading(simulated, T, temperature_celsius=40))
    put(h, reading(MIG, T, temperature_celsius=40))
    expected = [attributes(simulated), attributes(FULL), attributes(MIG)]
    assert [attributes(g) for g in h.store.gpus()] == expected
    assert [attributes(r.gpu) for r in everything(h)] == expected
    assert [attributes(r.gpu) for r in h.store.latest(T)] == expected


def test_a_bare_reading_takes_no_attribute_away(h: Harness) -> None:
    put(h, reading(FULL, T, power_watts=1))
    put(h, reading(Gpu(FULL.uuid, FULL.host), T + 1, power_watts=2))
    assert [attributes(g) for g in h.store.gpus()] == [attributes(FULL)]
    assert [attributes(r.gpu) for r in everything(h)] == [attributes(FULL)] * 2


def test_changed_attributes_hold_from_the_newest_reading(h: Harness) -> None:
    moved = replace(FULL, pool="serve", index=4)
    put(h, reading(FULL, T, temperature_celsius=40))
    put(h, reading(moved, T + 2, temperature_celsius=40))
    assert [attributes(g) for g in h.store.gpus()] == [attributes(moved)]
    put(h, reading(FULL, T + 1, temperature_celsius=40))
    assert [attributes(g) for g in h.store.gpus()] == [attributes(moved)]
