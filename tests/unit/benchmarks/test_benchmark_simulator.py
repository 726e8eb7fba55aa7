"""The simulated benchmark: who is judged, what a threshold may know, and that the same seed says the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.forecaster.capacity.filling import MEMORY, OUT_OF_MEMORY, PAST, outlook
from tocsin.forecaster.capacity.leak import MEMORY_LEAK
from tocsin.forecaster.evaluation.result import ReportSection, Request, Result
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.live import recalibration
from tocsin.forecaster.live.recalibration import KindPrior
from tocsin.sim.faults import fault_kinds
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.scenario import default_scenario
from tocsin.sim.spec import FleetSpec
from tocsin_benchmarks.simulator import filling as simulator_filling
from tocsin_benchmarks.simulator.fleet import OF_DAYS_MS, START_MS, Recipe, Simulated, lasts_days, sicker, simulate
from tocsin_benchmarks.simulator.heard import hear
from tocsin_benchmarks.simulator.models import HORIZON_MS, best_threshold, lessons
from tocsin_benchmarks.simulator.protocol import HEADLINE, SINGLE, Fleets, days_section, every_section, judge, run
from tocsin_benchmarks.simulator.single import balanced_accuracy, single_thresholds

RECIPE = Recipe(64, 15.0, 5, 1000.0, default_scenario())


@pytest.fixture(scope="module")
def fleet() -> Simulated:
    return simulate(RECIPE)


def test_rates_of_hardware_alone_are_raised() -> None:
    plain, sick = fault_kinds(), fault_kinds(sicker(default_scenario(), 10.0))
    for name, kind in plain.items():
        times = 10.0 if kind.fault_class == "hardware" else 1.0
        assert sick[name].per_gpu_year == pytest.approx(times * kind.per_gpu_year)


def test_labels_are_the_faults_that_struck(fleet: Simulated) -> None:
    struck = {(fault.gpu, fault.onset_ms) for fault in fleet.faults if fault.onset_ms is not None}
    examples = fleet.examples
    known = examples.event_ms != NEVER
    assert known.sum() > 100
    for device, event_ms in zip(examples.device[known], examples.event_ms[known], strict=True):
        assert (examples.devices[device], event_ms) in struck
    assert (examples.seen_ms <= examples.at_ms).all()


def test_faults_of_days_are_warned_of_for_days(fleet: Simulated) -> None:
    assert fleet.of_days.any()
    assert (fleet.warned | ~fleet.of_days).all()
    for fault in fleet.faults:
        if lasts_days(fault):
            assert not fault.abrupt
            assert fault.onset_ms is not None
            assert fault.onset_ms - fault.started_ms >= OF_DAYS_MS >= HORIZON_MS + DAY


def test_the_judged_rows_are_health_and_the_last_days_before_slow_faults(fleet: Simulated) -> None:
    judged = fleet.judged(HORIZON_MS)
    label, known = judged.label(HORIZON_MS)
    assert known.all()
    assert 0 < label.sum() < label.size
    slow = {(fault.gpu, fault.onset_ms) for fault in fleet.faults if lasts_days(fault)}
    for device, event_ms in zip(judged.device[label], judged.event_ms[label], strict=True):
        assert (judged.devices[device], event_ms) in slow
    positive, of_all = fleet.examples.label(HORIZON_MS)
    assert len(judged) == (of_all & (~positive | fleet.of_days)).sum()


def test_rows_before_abrupt_faults_are_not_learned_from(fleet: Simulated) -> None:
    label, known = fleet.examples.label(HORIZON_MS)
    rows = lessons(fleet, 0, quiet_rows=200)
    assert rows.label(HORIZON_MS)[0].sum() == (label & fleet.warned).sum() < label.sum()
    assert rows.weight.sum() == pytest.approx((label & fleet.warned).sum() + (known & ~label).sum())


def test_the_best_threshold_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    score = np.round(rng.normal(size=300), 1)
    score[::17] = np.nan
    label = rng.random(300) < 0.2 + 0.2 * (np.nan_to_num(score) > 0)
    threshold, balanced = best_threshold(score, label)
    every = {
        one: balanced_accuracy(np.nan_to_num(score, nan=-9.0) >= one, label)
        for one in np.unique(score[~np.isnan(score)])
    }
    assert balanced == pytest.approx(max(every.values())) == pytest.approx(every[threshold])


def test_a_threshold_without_any_hit_never_alarms() -> None:
    threshold, balanced = best_threshold(np.full(5, np.nan), np.array([True, False, True, False, False]))
    assert (threshold, balanced) == (float("inf"), 0.5)


def test_one_feature_that_tells_is_found_in_either_direction(fleet: Simulated) -> None:
    judged = fleet.judged(HORIZON_MS)
    label = judged.label(HORIZON_MS)[0]
    judged.features[:, 3] = np.where(label, -1.0, 1.0)
    best = single_thresholds(judged, judged, 0)[0]
    assert (best.feature, best.falling, best.balanced) == (judged.names[3], True, 1.0)
    np.testing.assert_array_equal(best.score(judged) > 0, label)


@pytest.fixture(scope="module")
def fleets(fleet: Simulated) -> Fleets:
    return Fleets(fleet, simulate(replace(RECIPE, seed=6)), simulate(replace(RECIPE, seed=7)))


class Null(Scorer):
    """A score that knows nothing: drawn by chance, stuck high from a day on, always at its lowest or highest, or at
    the share of the rows that a fault follows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def score(self, examples: Examples) -> Floats:
        at_ms, (label, known) = examples.at_ms, examples.label(HORIZON_MS)
        made = {
            "silent": np.zeros(at_ms.size),
            "base rate": np.full(at_ms.size, label[known].mean()),
            "always on": np.ones(at_ms.size),
            "random": np.random.default_rng(3).random(at_ms.size),
            "stuck": np.where(at_ms >= at_ms.min() + 3 * DAY, 0.9, 0.1),
        }[self.kind]
        return np.column_stack([made, made])


REQUEST = Request(Path(), seed=3, draws=2)
BALANCE, CALIBRATION = (HEADLINE, "balanced_accuracy"), (HEADLINE, "calibration_error")


def failed(sections: Iterable[ReportSection]) -> set[tuple[str, str]]:
    """Model and figure of each bar that is missed."""
    return {
        (model, name)
        for section in sections
        for model, figures in section.models.items()
        for name, figure in figures.items()
        if figure.holds is False
    }


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("stuck", {BALANCE, CALIBRATION}),
        ("random", {BALANCE, CALIBRATION}),
        ("always on", {BALANCE, CALIBRATION}),
        ("silent", {BALANCE, CALIBRATION}),
        # The best that a constant can be: well calibrated, and it finds nothing.
        ("base rate", {BALANCE}),
    ],
)
def test_a_score_that_knows_nothing_misses_the_bars_of_the_ensemble(
    fleets: Fleets, kind: str, names: set[tuple[str, str]]
) -> None:
    told = judge({HEADLINE: Null(kind)}, fleets)
    assert failed([days_section(fleets, told, REQUEST), every_section(fleets, told, REQUEST)]) == names


def test_faults_that_one_threshold_tells_miss_the_bar_of_the_single_threshold(fleets: Fleets) -> None:
    told = judge({HEADLINE: Null("random")}, fleets)
    plain = days_section(fleets, told, REQUEST)
    assert (SINGLE, "balanced_accuracy") not in failed([plain])
    easy = replace(fleets, train=telling(fleets.train), test=telling(fleets.test))
    assert failed([days_section(easy, told, REQUEST)]) == {BALANCE, (SINGLE, "balanced_accuracy")}


def telling(simulated: Simulated) -> Simulated:
    """The same fleet with a feature that is high right before a fault."""
    examples = simulated.examples
    features = examples.features.copy()
    features[:, 3] = examples.label(HORIZON_MS)[0]
    return replace(simulated, examples=replace(examples, features=features))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(Request(tmp_path_factory.mktemp("none"), seed=3, draws=20, quick=True))


def test_the_same_recipe_gives_the_same_rows(fleet: Simulated) -> None:
    again = simulate(RECIPE)
    np.testing.assert_array_equal(again.examples.features, fleet.examples.features)
    assert again.faults == fleet.faults
    other = simulate(replace(RECIPE, seed=6, days=8.0))
    assert not set(other.examples.devices) & set(fleet.examples.devices)


def test_the_report_has_the_figures_and_their_bars(small: Result) -> None:
    days, every, filling = small.sections
    assert days.models[HEADLINE]["balanced_accuracy"].bar == 0.92
    single = days.models[SINGLE]["balanced_accuracy"]
    assert (single.bar, single.least, single.holds) == (0.80, False, True)
    assert {"hazard", "boosting", "lstm", "always healthy"} < set(days.models)
    assert every.models[HEADLINE]["calibration_error"].bar == 0.03
    assert 0.5 < float(every.population["abrupt_share"]) < 0.9
    assert filling.models["memory leak"]["false_alarms_per_1000_gpu_hours"].bar == 1.0


def test_leaks_and_holes_are_warned_of_in_time() -> None:
    told = simulator_filling.watch(default_scenario(), 64, 12.0, 9, 900.0)
    leak, holes = told["memory leak"], told["allocator fragmentation"]
    assert len(leak.leads) >= 8
    # One of nine: a leak that never pauses from the first minute of its process is told late.
    assert leak.warned >= 0.85
    assert holes.warned >= 0.9
    assert leak.gpu_hours == 64 * 12.0
    assert max(leak.leads) * HOUR / 60 <= 3 * HOUR


def test_what_fills_up_from_its_start_on_is_no_alarm_as_the_service_says_nothing_of_it() -> None:
    heard = hear(_fleet(48, 0.0), 6 * 60)
    used = heard.values[MEMORY.metric]
    ends = range(20, used.shape[1])
    rising = [outlook(used[:, max(0, end - PAST) : end], MEMORY.limit, MEMORY.ahead_steps).steps for end in ends]
    assert (np.array(rising) <= MEMORY.ahead_steps).any(), "its growth alone is a warning"
    assert not heard.told[OUT_OF_MEMORY].any()
    assert not heard.told[MEMORY_LEAK].any()


def test_a_muted_kind_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = hear(_fleet(24, 4000.0), 8 * 60).told
    assert plain[MEMORY_LEAK].any()
    assert plain[OUT_OF_MEMORY].any()
    never = {"memory_leak by filling": KindPrior(claims=50.0, right=0.0)}
    monkeypatch.setattr(recalibration, "shipped_priors", lambda: never)
    muted = hear(_fleet(24, 4000.0), 8 * 60).told
    # Muted it is from the first look on that its record is judged.
    assert muted[MEMORY_LEAK].sum() < 0.1 * plain[MEMORY_LEAK].sum()
    np.testing.assert_array_equal(muted[OUT_OF_MEMORY], plain[OUT_OF_MEMORY])


def _fleet(gpus: int, scale: float) -> SimulatedFleet:
    scenario = simulator_filling.leaky(default_scenario(), scale)
    return SimulatedFleet(FleetSpec(gpus, 9, START_MS, MINUTE, 1.0, scenario))


def test_either_word_of_memory_warns_and_each_is_false_by_its_own_time() -> None:
    soon, leaking = (np.zeros((4, 24 * 60), np.bool_) for _ in range(2))
    soon[0, 580] = leaking[1, 500:580] = True  # an event at minute 600
    soon[2, 300] = leaking[3, 300] = True  # one five hours later: what is full soon was false
    told = simulator_filling.score_leaks(soon, leaking, [(0, 600), (1, 600), (2, 600), (3, 600)], 96.0)
    assert told.leads == (20.0, 100.0, 0.0, 0.0)
    assert told.false == 1
    none = simulator_filling.score_leaks(soon, leaking, [(0, 600), (1, 600)], 96.0)
    assert none.false == 2


def test_an_unknown_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        run(Request(tmp_path, scenario=tmp_path / "none.toml"))
