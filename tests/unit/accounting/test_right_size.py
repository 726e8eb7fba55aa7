"""Jobs that less would do for: by peaks, never by means, and what is not known of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.accounting.holders import Holder
from tocsin.accounting.meter import Meter
from tocsin.accounting.profile import SIZE, Profile
from tocsin.accounting.right_size import Fit, RightSize, Unfit, right_sizes
from tocsin.accounting.slices import slices_of
from tocsin.accounting.table import JobProfile, Place, UsageTable
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.reading import Owner, Reading
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec
from tocsin_testing.builders import T0

GIB = 1024**3
H100, L4, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4", "Tesla T4"
CARDS = {H100: 80 * GIB, L4: 22.5 * GIB, T4: 15 * GIB}
TOLD = {"memory": 9.0, "activity": 0.05, "link": 0.0}


def judged(*spans: tuple[float, dict[str, float | None]], gpus: int = 1, model: str = H100) -> RightSize:
    """The verdict on a job by (hours, values), memory in GiB."""
    profile = Profile()
    profile.hold(gpus)
    for hours, values in spans:
        told = {**TOLD, **values}
        memory = None if told["memory"] is None else told["memory"] * GIB
        profile.add(hours * HOUR / SECOND, memory, CARDS[model], told["activity"], told["link"])
    (found,) = right_sizes([JobProfile(Holder("slurm/1"), model, 0, 1, profile)], CARDS, 6.0)
    return found


def names(found: RightSize) -> dict[Fit, str]:
    return {one.fit: one.name for one in found.options}


def test_a_job_that_needs_nine_of_eighty_gib_is_found() -> None:
    found = judged((10, {}))
    assert names(found) == {Fit.CARD: T4, Fit.MIG: "1g.20gb", Fit.SHARE: "1/4"}
    assert [one.freed_hours for one in found.options] == pytest.approx([10, 10 * 6 / 7, 7.5])
    assert found.unfit is None


def test_a_minute_of_much_memory_in_ten_hours_is_enough_to_keep_the_card() -> None:
    assert judged((10, {}), (1 / 60, {"memory": 70.0})).unfit is Unfit.NEEDED


def test_a_minute_of_high_activity_rules_out_a_slice() -> None:
    assert Fit.MIG not in names(judged((10, {}), (1 / 60, {"activity": 0.9})))


@pytest.mark.parametrize(
    ("values", "unfit"),
    [
        ({"memory": None}, Unfit.UNTOLD),
        ({"activity": None}, Unfit.UNTOLD),
        ({"memory": 70.0, "activity": 0.9}, Unfit.NEEDED),
        ({"activity": 0.6}, Unfit.NEEDED),
        ({"link": 3e9}, Unfit.NEEDED),
    ],
)
def test_why_nothing_is_named(values: dict[str, float | None], unfit: Unfit) -> None:
    found = judged((10, values))
    assert (found.options, found.unfit) == ((), unfit)


def test_too_short_and_known_too_little() -> None:
    assert judged((5, {})).unfit is Unfit.SHORT
    assert judged((8, {}), (2, {"memory": None})).unfit is Unfit.UNTOLD


def test_of_several_gpus_it_must_be_known_that_they_do_not_talk() -> None:
    assert judged((10, {"link": None}), gpus=2).unfit is Unfit.UNTOLD
    assert judged((10, {"link": None}), gpus=1).options
    assert judged((10, {"link": 0.0}), gpus=2).options


def test_slices_are_those_of_the_card() -> None:
    assert slices_of("NVIDIA A100-SXM4-40GB", 40 * GIB)[0].profile == "1g.5gb"
    assert slices_of("NVIDIA A100-SXM4-80GB", 80 * GIB)[0].profile == "1g.10gb"
    assert [one.share for one in slices_of("NVIDIA A30", 24 * GIB)] == [0.25, 0.5]
    assert slices_of(L4, 22.5 * GIB) == slices_of("NVIDIA B200", 180 * GIB) == []


spans = st.lists(
    st.tuples(st.floats(1, 1e6), st.none() | st.floats(0, 100), st.just(100.0), st.none() | st.floats(0, 1), st.none()),
    max_size=8,
)


@given(spans, spans)
def test_profiles_add_up_and_quantiles_say_never_too_little(one: list[tuple], other: list[tuple]) -> None:  # type: ignore[type-arg]
    apart, together = [Profile(), Profile()], Profile()
    for place, part in enumerate((one, other)):
        for span in part:
            apart[place].add(*span)
            together.add(*span)
    apart[0].merge(apart[1])
    assert list(apart[0].data) == pytest.approx(list(together.data))
    again = Profile.from_bytes(together.to_bytes())
    assert list(again.data) == pytest.approx(list(together.data), rel=1e-6)
    told = sorted((span[3], span[0]) for span in one + other if span[3] is not None)
    quantile = together.activity_p99()
    assert (quantile is None) == (not told)
    if quantile is not None:
        below = sum(seconds for value, seconds in told if value <= quantile)
        assert below >= 0.99 * sum(seconds for _, seconds in told) - 1e-6


def test_bytes_that_are_no_profile_are_an_empty_one() -> None:
    assert Profile.from_bytes(b"xy").data.tolist() == [0.0] * SIZE


def test_on_a_simulated_fleet_the_job_that_needs_little_is_found_and_the_one_with_a_rare_peak_is_not() -> None:
    fleet = SimulatedFleet(FleetSpec(gpus=16, seed=11, start_ms=T0, interval_ms=5 * MINUTE, fault_rate_scale=0))
    meter, models = Meter(10 * MINUTE), {}
    for step in range(12 * 12):
        readings = list(fleet.step().readings)
        models = {one.gpu.uuid: one.gpu.model for one in readings}
        first, second, *_ = (place for place, one in enumerate(readings) if one.gpu.model == H100)
        readings[first] = with_job(readings[first], "900", 9.0)
        readings[second] = with_job(readings[second], "901", 60.0 if step == 70 else 9.0)
        meter.take(readings)
    rows, holders = meter.drain()
    table = UsageTable(None)
    table.add(rows, holders, {}, (), lambda key: Place(model=models[key.gpu]))
    found = {one.job.holder.job: one for one in right_sizes(table.profiles(0, 10**6), CARDS, 6.0)}
    assert [name for name, one in found.items() if one.options] == ["Slurm job 900"]
    assert found["Slurm job 901"].unfit is Unfit.NEEDED


def with_job(one: Reading, job: str, gib: float) -> Reading:
    """The reading with a job that needs `gib` of its card and hardly computes."""
    values = {
        **one.values,
        "gpu_memory_used_bytes": gib * GIB,
        "gpu_sm_active_ratio": 0.06,
        "gpu_utilization_ratio": 0.08,
        "gpu_nvlink_transmit_bytes_per_second": 0.0,
        "gpu_nvlink_receive_bytes_per_second": 0.0,
    }
    return replace(one, values=values, owners=(Owner(1, slurm_job=job),))
