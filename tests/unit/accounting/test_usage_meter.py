"""What a second of a GPU is, and how instances and sharers divide it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.accounting.holders import MOST_SHARERS, NOBODY, UNKNOWN, holders_of
from tocsin.accounting.meter import Meter, Row, Use
from tocsin.domain.clock import SECOND
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin_testing.builders import T0, gpu, reading

JOB, POD = Owner(1, slurm_job="7.0", user="ann"), Owner(2, pod="web", namespace="x")
STEP = 60 * SECOND


def counted(*groups: list[Reading]) -> dict[tuple[str, str], Row]:
    """Rows by GPU and holder."""
    meter = Meter(120 * SECOND)
    for group in groups:
        meter.take(group)
    found: dict[tuple[str, str], Row] = {}
    for key, row in meter.drain()[0].items():
        found.setdefault((key.gpu, key.holder), Row()).merge(row)
    return found


def twice(*readings: Reading) -> dict[tuple[str, str], Row]:
    """Rows of one step that the readings begin."""
    return counted(list(readings), [replace(one, at_ms=one.at_ms + STEP) for one in readings])


def use_of(one: Reading) -> tuple[str, Use]:
    (key, row), *_ = twice(one).items()
    (use,) = [use for use in Use if row.seconds[use]]
    assert row.seconds[use] == 60
    return key[1], use


HELD = (JOB,)


@pytest.mark.parametrize(
    ("values", "owners", "holder", "use"),
    [
        ({"utilization_ratio": 0.9}, HELD, "slurm/7", Use.USED),
        ({"utilization_ratio": 0.04}, HELD, "slurm/7", Use.IDLE),
        ({"memory_used_ratio": 0.5}, HELD, "slurm/7", Use.UNTOLD),
        ({"graphics_engine_active_ratio": 0.5}, HELD, "slurm/7", Use.USED),
        ({"utilization_ratio": 0.9}, (), UNKNOWN, Use.USED),
        ({"utilization_ratio": 0.0, "processes": 1}, (), UNKNOWN, Use.IDLE),
        ({"utilization_ratio": 0.0, "memory_used_ratio": 0.4}, (), UNKNOWN, Use.IDLE),
        ({"utilization_ratio": 0.0, "processes": 0}, (), NOBODY, Use.FREE),
        ({"utilization_ratio": 0.0, "memory_used_ratio": 0.01}, (), NOBODY, Use.FREE),
        ({"processes": 0}, (), NOBODY, Use.FREE),
        ({"utilization_ratio": 0.0}, (), NOBODY, Use.UNTOLD),
        ({"processes": 2}, (), UNKNOWN, Use.UNTOLD),
        ({"temperature_celsius": 40}, (), NOBODY, Use.UNTOLD),
        ({}, HELD, NOBODY, Use.NOT_SEEN),
    ],
)
def test_what_a_reading_makes_of_the_time_that_follows(
    values: dict[str, float], owners: tuple[Owner, ...], holder: str, use: Use
) -> None:
    assert use_of(replace(reading(gpu(), T0, **values), owners=owners)) == (holder, use)


def test_a_lost_gpu_is_not_seen_though_it_is_read() -> None:
    lost = reading(gpu(), T0, {"gpu_utilization_ratio": Missing.LOST})
    assert use_of(lost) == (NOBODY, Use.NOT_SEEN)


def test_time_beyond_the_gap_is_not_seen_and_never_used() -> None:
    busy = replace(reading(gpu(), T0, utilization_ratio=0.9), owners=HELD)
    found = counted([busy], [replace(busy, at_ms=T0 + 121 * SECOND)])
    assert found[gpu().uuid, NOBODY].seconds[Use.NOT_SEEN] == 121
    assert (gpu().uuid, "slurm/7") not in found


def test_holders_of_one_gpu_share_it_alike_whatever_they_do() -> None:
    found = twice(replace(reading(gpu(), T0, utilization_ratio=0.9, power_watts=300), owners=(JOB, POD, POD)))
    assert {key[1]: row.seconds[Use.USED] for key, row in found.items()} == {"slurm/7": 30, "pod/x/web": 30}
    assert {row.joules for row in found.values()} == {9000}


def test_processes_of_one_job_are_one_holder() -> None:
    owners = tuple(Owner(pid, slurm_job=f"7.{pid}") for pid in range(9))
    assert [one.key for one in holders_of(owners)] == ["slurm/7"]


def test_of_many_holders_the_last_are_unknown() -> None:
    found = holders_of(tuple(Owner(pid, container=f"{pid:03d}") for pid in range(MOST_SHARERS + 5)))
    assert len(found) == MOST_SHARERS
    assert found[-1].key == UNKNOWN


def instance(number: int, profile: str) -> Gpu:
    return Gpu(f"MIG-{number}", "node-1", model=gpu().model, parent=gpu().uuid, mig_profile=profile)


def test_instances_have_their_slices_and_the_rest_is_free() -> None:
    whole = reading(gpu(), T0, mig_mode=1, power_watts=350)
    two = replace(reading(instance(1, "2g.20gb"), T0, graphics_engine_active_ratio=0.8), owners=HELD)
    three = replace(reading(instance(2, "3g.40gb"), T0), owners=(POD,), values={"gpu_processes": 1.0})
    found = twice(whole, two, three)
    uuid = gpu().uuid
    assert found[uuid, "slurm/7"].seconds[Use.USED] == pytest.approx(60 * 2 / 7)
    assert found[uuid, "pod/x/web"].seconds[Use.UNTOLD] == pytest.approx(60 * 3 / 7)
    assert found[uuid, NOBODY].seconds[Use.FREE] == pytest.approx(60 * 2 / 7)
    assert sum(row.joules for row in found.values()) == pytest.approx(350 * 60)
    assert found[uuid, "slurm/7"].joules == pytest.approx(350 * 60 * 2 / 7)


def test_shares_that_are_more_than_one_gpu_are_made_one() -> None:
    parts = [replace(reading(instance(n, "7g.80gb"), T0), owners=(Owner(1, container=str(n)),)) for n in range(4)]
    rows = twice(*[replace(one, values={"gpu_processes": 1.0}) for one in parts])
    assert sum(sum(row.seconds) for row in rows.values()) == pytest.approx(60)


def test_an_instance_that_comes_in_another_batch_is_part_of_its_gpu() -> None:
    whole, part = reading(gpu(), T0, mig_mode=1), replace(reading(instance(1, "1g.10gb"), T0), owners=HELD)
    meter = Meter(120 * SECOND)
    for at_ms in (T0, T0 + STEP):
        meter.take([replace(whole, at_ms=at_ms)])
        meter.take([replace(part, at_ms=at_ms, values={"gpu_processes": 1.0})])
    rows, _ = meter.drain()
    assert {key.holder: round(sum(row.seconds), 3) for key, row in rows.items()} == {"slurm/7": 8.571, NOBODY: 51.429}


def test_free_gpus_of_a_node_that_is_held_in_part_are_stranded() -> None:
    free = [reading(gpu(n), T0, utilization_ratio=0, processes=0) for n in range(3)]
    held = replace(reading(gpu(3), T0, utilization_ratio=0.9), owners=HELD)
    assert twice(*free)[gpu(0).uuid, NOBODY].seconds[Use.FREE] == 60
    assert twice(*free, held)[gpu(0).uuid, NOBODY].seconds[Use.STRANDED] == 60


def energy(*points: tuple[int, float | None, float | None]) -> Row:
    """Energy of one GPU by (seconds, joules, watts)."""
    groups = []
    for at_s, joules, watts in points:
        named = {"energy_joules_total": joules, "power_watts": watts, "utilization_ratio": 0.9}
        values = {name: value for name, value in named.items() if value is not None}
        groups.append([replace(reading(gpu(), T0 + at_s * SECOND, **values), owners=HELD)])
    whole = Row()
    for row in counted(*groups).values():
        whole.merge(row)
    return whole


def test_energy_is_the_counters_else_that_of_the_power_else_unmetered() -> None:
    assert energy((0, 100.0, 9.0), (60, 700.0, 9.0)).joules == 600
    assert energy((0, None, 100.0), (60, None, 300.0)).joules == 12_000
    assert energy((0, None, 100.0), (60, None, None)).joules == 6_000
    assert energy((0, None, None), (60, 5.0, None)).unmetered_s == 60


def test_a_counter_that_begins_anew_gives_way_to_the_power_of_that_time() -> None:
    assert energy((0, 5e6, 200.0), (60, 10.0, 200.0), (120, 610.0, 200.0)).joules == 12_000 + 600


def test_a_counter_that_jumps_is_no_energy() -> None:
    assert energy((0, 0.0, 200.0), (60, 1e12, 200.0)).joules == 12_000


def test_the_counter_tells_of_a_gap_and_the_power_does_not() -> None:
    assert energy((0, 0.0, 200.0), (600, 60_000.0, 200.0)).joules == 60_000
    assert energy((0, None, 200.0), (600, None, 200.0)).unmetered_s == 600
