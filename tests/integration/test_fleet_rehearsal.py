"""A rehearsal is the service itself over a simulated fleet: judged whole, the same for a seed, kept once finished."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.client.models_pager import (
    DecidedCount,
    EarlyWarnings,
    PagerReport,
    PagerScore,
    StatedBin,
    StatementScore,
    UnjudgedAlerts,
    WarningPolicy,
    WrongStatement,
)
from tocsin.config.settings import Settings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError, Unavailable
from tocsin.queries.pager_score import BREAKER, FAULTS, QUIET, SOFTWARE, passes
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.forecasts import QUIET_TURNS
from tocsin.runtime.fleet_rehearsal import START_MS, FleetRehearsal, RehearsalPlan, rehearse_fleet
from tocsin.runtime.rehearsal_set import FullSet, KeptReport, file_of, kept, page, plan_of, plans_of, run_set
from tocsin_testing.docs_words import ROOT

DAYS = 1 / 16
PLAN = RehearsalPlan(gpus=16, days=DAYS, seed=5, fault_scale=300.0)


@pytest.fixture(scope="module")
def reports() -> tuple[PagerReport, PagerReport]:
    return rehearse_fleet(PLAN, Settings()), rehearse_fleet(PLAN, Settings())


def test_two_runs_of_a_seed_give_the_same_report(reports: tuple[PagerReport, PagerReport]) -> None:
    first, second = reports
    assert first.model_dump_json() == second.model_dump_json()
    assert first.simulated
    assert first.days == DAYS


def test_the_same_scorer_judges_ways_that_know_nothing(reports: tuple[PagerReport, PagerReport]) -> None:
    report = reports[0]
    assert set(report.nulls) == {"page every finding", "page nothing", "page at random as often"}
    assert report.nulls["page at random as often"].pages == report.pages
    assert report.nulls["page every finding"].pages > report.pages
    for name in report.nulls:
        assert not passes(report.nulls[name], FAULTS, report.days), name
    for life in (QUIET, SOFTWARE):
        assert not passes(report.nulls["page every finding"], life, report.days)


@pytest.mark.parametrize(
    ("pages", "warnings", "missed"),
    [(0, 0, []), (2, 1, ["missed: pages: 2 (0)", "missed: warnings a day: 16 (at most 3)"])],
)
def test_a_missed_bar_fails_the_command(
    reports: tuple[PagerReport, PagerReport],
    monkeypatch: pytest.MonkeyPatch,
    pages: int,
    warnings: int,
    missed: list[str],
) -> None:
    quiet = reports[0].model_copy(update={"pages": pages, "warnings": warnings, "notes": 0})
    monkeypatch.setattr("tocsin.runtime.fleet_rehearsal.rehearse_fleet", lambda *_: quiet)
    call = ["rehearse", "fleet", "--fault-scale", "0", "--days", str(DAYS)]
    told = CliRunner().invoke(cli, [*call, "--bars"], standalone_mode=False)
    assert (told.return_value, told.stderr.splitlines()) == (1 if missed else 0, missed)
    assert CliRunner().invoke(cli, call, standalone_mode=False).return_value == 0, "without the flag nothing fails"


@pytest.fixture
def rehearsal(tmp_path: Path) -> FleetRehearsal:
    return FleetRehearsal(RehearsalPlan(gpus=16, days=1.0, seed=2, fault_scale=0.0), Settings(), tmp_path)


def test_an_injected_fault_is_paged_in_time_and_counted(rehearsal: FleetRehearsal) -> None:
    for _ in range(10):
        rehearsal.step()
    rehearsal.fleet.inject("sram_error", "3")
    for _ in range(20):
        rehearsal.step()
    report = rehearsal.report()
    # The same from journal and store alone, as a real fleet has it.
    told = BrainService(rehearsal.brain).pager_report()
    rehearsal.running.stop()
    assert (told.hard_faults, told.recall, told.pages, told.decisions) == (1, 1.0, report.pages, report.decisions)
    assert told.precision is None
    assert told.unknown["precision"]
    assert [(one.kind, one.faults, one.paged) for one in report.faults] == [("sram_error", 1, 1)]
    assert (report.hard_faults, report.recall, report.prompt_recall) == (1, 1.0, 1.0)
    pages = [alert for alert in rehearsal.log.alerts if alert.level is AlertLevel.PAGE]
    assert pages
    assert pages[0].at_ms <= START_MS + 13 * MINUTE
    assert report.nulls["page nothing"].recall == 0.0


def test_a_link_that_fails_is_the_fault_of_one_gpu(rehearsal: FleetRehearsal) -> None:
    rehearsal.fleet.inject("nvlink_recovery", "3")
    for _ in range(30):
        rehearsal.step()
    (cause,) = rehearsal.truth().causes
    rehearsal.running.stop()
    assert cause.own == {rehearsal.fleet.gpus[3].uuid}
    assert cause.own < cause.places


def test_forecasts_keep_step_with_the_fleet(rehearsal: FleetRehearsal) -> None:
    for _ in range(45):
        rehearsal.step()
    rehearsal.running.stop()
    # Of these few hosts nothing may be expected: then one of them has each turn at most.
    most_ms = QUIET_TURNS * 5 * MINUTE
    turns = {one.at_ms for one in rehearsal.brain.forecasts.current(rehearsal.clock.now_ms()) if one.metric}
    assert turns
    assert rehearsal.clock.now_ms() - max(turns) < most_ms + MINUTE


def test_a_part_of_the_service_that_fails_ends_the_rehearsal(
    rehearsal: FleetRehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("planner")

    plans = next(thread for thread in rehearsal.running.threads if thread.name == "plans")
    monkeypatch.setattr(plans, "_work", fail)
    with pytest.raises(Unavailable, match="plans"):
        rehearsal.step()
    rehearsal.running.stop()


def test_a_quiet_life_has_no_fault_and_software_life_has_software() -> None:
    assert RehearsalPlan(8, 1.0, 1, 0.0).life == QUIET
    software = RehearsalPlan(8, 1.0, 1, 0.0, software=True)
    assert software.life == SOFTWARE
    assert (software.spec().scales.hard, software.spec().scales.software, software.spec().scales.benign) == (0, 1, 30)
    assert RehearsalPlan(8, 1.0, 1, 30.0).spec().scales.benign == 30.0


def counted(plan: RehearsalPlan, _settings: Settings) -> PagerReport:
    """A run that takes no time."""
    nulls = {"page nothing": PagerScore()}
    told = {"hard_faults": 0, "pages": plan.seed, "nulls": nulls}
    return PagerReport(simulated=True, under_way=True, days=plan.days, gpus=plan.gpus, **told)  # type: ignore[arg-type]


def test_the_set_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plans = plans_of(("quiet", "faults"), (1, 2), 16, 1.0)
    ran = run_set(tmp_path, plans, Settings(), counted)
    first = [next(ran), next(ran)]
    ran.close()
    assert first == [file_of(tmp_path, plan_of("quiet", 1, 16, 1.0)), file_of(tmp_path, plan_of("faults", 1, 16, 1.0))]
    rest = list(run_set(tmp_path, plans, Settings(), counted))
    assert [path.name for path in rest] == ["quiet-2-16x1.json", "faults-2-16x1.json"]
    assert not list(run_set(tmp_path, plans, Settings(), counted))
    assert {(one.life, one.seed) for one in kept(tmp_path)} == {(p.life, p.seed) for p in plans}


def test_a_fleet_that_began_without_precursors_is_listed_left_out_and_made_anew(tmp_path: Path) -> None:
    def new(plan: RehearsalPlan, settings: Settings) -> PagerReport:
        return counted(plan, settings).model_copy(update={"under_way": False})

    plans = plans_of(("quiet", "faults"), (7,), 16, 1.0)
    list(run_set(tmp_path, plans, Settings(), new, commit="0123456789ab"))
    text = page(kept(tmp_path), SMALL)
    assert "| 7 | 01234567 | 16 GPUs, 1 days, new |" in text.split("## Faults")[1]
    assert ", new |" not in text.split("## Faults")[0], "where nothing fails there are no precursors"
    assert "1 other run: listed, left out" in text
    assert [path.name for path in run_set(tmp_path, plans, Settings(), counted)] == ["faults-7-16x1.json"]
    assert "1 other run" not in page(kept(tmp_path), SMALL)


def test_the_full_set_has_more_seeds_with_faults() -> None:
    plans = plans_of(("quiet", "software", "faults"), (), 256, 14.0)
    assert Counter(plan.life for plan in plans) == {"quiet": 5, "software": 5, "faults": 7}
    assert [(plan.life, plan.seed) for plan in plans[:4]] == [
        ("quiet", 101), ("software", 101), ("faults", 101), ("quiet", 102)
    ]  # fmt: skip
    assert all(plan.spec().under_way for plan in plans)


SMALL = FullSet(gpus=16, days=1.0)


def test_the_page_is_made_of_finished_reports_alone(tmp_path: Path) -> None:
    assert "No rehearsal is finished yet" in page(kept(tmp_path))
    plans = plans_of(("quiet",), (3,), 16, 1.0)
    list(run_set(tmp_path, plans, Settings(), counted, commit="0123456789ab", cpu=lambda: 5.0))
    text = page(kept(tmp_path), SMALL)
    assert "| 3 | 01234567 | 16 GPUs, 1 days | 0 (at most 0.268) | 0 | 0 | 0, 0 | 3 | 3 **missed** |" in text
    assert "## Software" not in text
    assert "Of that size: quiet 3. The reports stem from 1 commit." in text
    assert "Figures below are of 1 of 5 seeds: 3." in text
    assert "*page nothing* reaches all bars in 1 of 1 runs" in text


def test_a_short_run_is_listed_and_left_out_of_the_bars(tmp_path: Path) -> None:
    list(run_set(tmp_path, plans_of(("quiet",), (3,), 16, 1.0), Settings(), counted, commit="0123456789ab"))
    whole = page(kept(tmp_path), SMALL)
    list(run_set(tmp_path, plans_of(("quiet",), (4,), 16, 0.5), Settings(), counted, "ba9876543210", lambda: 5.0))
    text = page(kept(tmp_path), SMALL)
    row = "| 4 | ba987654 | 16 GPUs, 0.5 days, short | 0 (at most 0.134) | 0 | 0 | 0, 0 | 4 | 4 | 0 | 0 |"
    assert row in text, "no verdict on it"
    assert "1 other run: listed, left out of all figures below the lists. The reports stem from 2 commits." in text
    figures = "Figures below are of 1 of 5 seeds"
    assert text.split(figures)[1] == whole.split(figures)[1]
    alone = page([one for one in kept(tmp_path) if one.seed == 4], SMALL)
    assert "No run of the full set's size is finished: there are no bars." in alone
    assert "reaches all bars" not in alone


def test_the_cpu_time_of_a_run_is_kept_beside_its_report_and_held_to_a_bar(tmp_path: Path) -> None:
    used = iter([100.0, 100.0 + 42 * 60, 5_000.0, 5_000.0 + 61 * 60, 0.0, 31 * 60])
    plans = [*plans_of(("quiet",), (1, 2), 256, 14.0), *plans_of(("quiet",), (3,), 256, 7.0)]
    paths = list(run_set(tmp_path, plans, Settings(), counted, cpu=lambda: next(used)))
    first = json.loads(paths[0].read_text())
    assert first["cpu_seconds"] == 42 * 60
    assert "cpu_seconds" not in first["report"], "a report is alike each time"
    text = page(kept(tmp_path))
    assert "| fleet | CPU minutes (256 GPUs x 7 days: at most 30) |" in text
    assert "| 256 GPUs, 14 days | 42 (at most 60) |" in text
    assert "| 256 GPUs, 14 days | 61 (at most 60) **missed** |" in text
    assert "| 256 GPUs, 7 days, short | 31 (at most 30) |" in text, "no verdict on it"
    del first["cpu_seconds"]
    paths[0].write_text(json.dumps(first))
    assert "| 256 GPUs, 14 days | - |" in page(kept(tmp_path)), "of before it was kept"
    burnt = next(run_set(tmp_path / "real", plans[:1], Settings(), busy))
    assert json.loads(burnt.read_text())["cpu_seconds"] > 0


def busy(plan: RehearsalPlan, settings: Settings) -> PagerReport:
    assert sum(n * n for n in range(100_000))
    return counted(plan, settings)


def way(name: str, warnings: int, right: int, faults: int, warned: int) -> WarningPolicy:
    return WarningPolicy(name=name, warnings=warnings, right=right, faults=faults, warned=warned)


def test_the_page_says_whether_the_service_is_above_each_way_of_warning() -> None:
    early = EarlyWarnings(
        family="memory leaks",
        service=way("the service", 50, 48, 50, 45),
        policies=[
            way("worse in both", 50, 10, 50, 10),
            way("as precise", 50, 48, 50, 10),
            way("warns as often", 50, 10, 50, 45),
            way("better in both", 500, 500, 500, 500),
            way("says nothing", 0, 0, 50, 0),
        ],
    )
    text = page([run_of(FAULTS, 1, early=[early])], SMALL)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| memory leaks |" in line
    ]
    assert "precision | warned | the service is |" in text
    assert {row[1]: row[-1] for row in rows} == {
        "the service": "-",
        "worse in both": "above",
        "as precise": "not above",
        "warns as often": "not above",
        "better in both": "not above",
        "says nothing": "-",
    }
    for row in rows:
        low = [float(ends.split(" to ")[0]) for ends in row[6:8] if ends != "-"]
        assert (row[-1] == "above") == (len(low) == 2 and min(low) > 0), row
    assert "the service is above a way of warning where both begin above 0." in text


def run_of(life: str, seed: int, **told: object) -> KeptReport:
    report = PagerReport(simulated=True, under_way=True, days=1.0, gpus=16, hard_faults=0, **told)  # type: ignore[arg-type]
    return KeptReport(life, seed, report, f"commit-{seed}")


def test_one_figure_is_pooled_alike_in_every_table() -> None:
    def said(cases: int, observed: float, brier: float) -> StatementScore:
        bins = [StatedBin(low=0.4, high=0.6, cases=cases, stated=0.5, observed=observed)]
        return StatementScore(kind="k", stated=0.5, observed=observed, brier=brier, brier_skill=-9.0, bins=bins)

    runs = [
        run_of(FAULTS, 1, statements=[said(10, 1.0, 0.25)]),
        run_of(FAULTS, 2, statements=[said(30, 0.2, 0.2)]),
    ]
    text = page(runs, SMALL)
    assert "| Brier skill of k | above 0 | 0.115 | holds |" in text
    assert "| k | 0 | 0 | 0.5 | 0.4 | 0.115 | - |" in text
    assert "Forecasts and early warnings, 2 of 7 seeds together:" in text


def test_the_page_tells_the_most_frequent_decisions_and_all_trips() -> None:
    told = [DecidedCount(rule=f"r{n}", action="cordon", end="proposed", count=20 - n) for n in range(12)]
    runs = [
        run_of(QUIET, 1, decisions=174, decided=told, breaker_trips=5, breaker_trips_by_forecast=2),
        run_of(QUIET, 2, decisions=20, decided=told[:1]),
        run_of(QUIET, 3, decisions=330),  # of before they were counted by rule
    ]
    text = page(runs, SMALL)
    assert "| 1 | commit-1 | 16 GPUs, 1 days | - | 0 | 174 | 5, 2 |" in text
    assert "| 3 | commit-3 | 16 GPUs, 1 days | - | 0 | 330 | 0, 0 |" in text
    assert "Decisions on actions, the most frequent, of 2 of these 3 runs:" in text
    rows = [line for line in text.splitlines() if line.endswith("| `cordon` | proposed |")]
    assert rows[0] == "| 20 | `r0` | `cordon` | proposed |"
    assert rows[1] == "| 9.5 | `r1` | `cordon` | proposed |"
    assert len(rows) == 10
    assert "Decisions on actions" not in page(runs[2:], SMALL)


def test_what_is_not_judged_stands_apart_also_of_older_reports() -> None:
    wrong = [
        WrongStatement(level="warning", rule=rule, reason="nothing was wrong there", count=8)
        for rule in (BREAKER, "memory_full")
    ]
    scores = [StatementScore(kind=f"rule {BREAKER}", settled=8)]
    older = page([run_of(FAULTS, 1, wrong=wrong, statements=scores)], SMALL)
    assert f"Not judged: 8 `{BREAKER}`." in older
    assert f"| 8 | warning | `{BREAKER}` |" not in older
    assert "| 8 | warning | `memory_full` |" in older
    assert f"rule {BREAKER}" not in older
    apart = [UnjudgedAlerts(rule="fleet_fragmented", count=2)]
    newer = page([run_of(FAULTS, 1, wrong=wrong, statements=scores, not_judged=apart)], SMALL)
    assert "Not judged: 2 `fleet_fragmented`." in newer
    assert f"| 8 | warning | `{BREAKER}` |" in newer, "a newer report has judged it"
    assert f"| rule {BREAKER} | 8 | 0 |" in newer


def test_the_page_in_the_docs_is_what_the_kept_reports_say() -> None:
    found = kept(ROOT / "benchmarks" / "rehearsals")
    assert (ROOT / "docs" / "rehearsals.md").read_text() == page(found)
    assert all(one.commit for one in found)


def test_a_file_that_is_no_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "quiet-1-16x1.json").write_text(json.dumps({"pages": "many"}))
    with pytest.raises(InputError, match="is no report"):
        kept(tmp_path)


def test_full_and_sound_memory_trips_no_breaker_and_pages_nobody(tmp_path: Path) -> None:
    quiet = FleetRehearsal(RehearsalPlan(gpus=32, days=1.0, seed=7, fault_scale=0.0), Settings(), tmp_path)
    for _ in range(40):
        quiet.step()
    report = quiet.report()
    quiet.running.stop()
    # Some of it has stood above the rule's level for long enough to be decided about.
    assert any(note.rule == "memory_full" for note in quiet.notes.values())
    assert (report.breaker_trips, report.pages) == (0, 0)


def test_a_breaker_that_three_real_faults_trip_is_right(tmp_path: Path) -> None:
    quiet = FleetRehearsal(RehearsalPlan(gpus=32, days=1.0, seed=2, fault_scale=0.0), Settings(), tmp_path)
    for _ in range(10):
        quiet.step()
    for gpu in ("3", "11", "19"):
        quiet.fleet.inject("sram_error", gpu)
    for _ in range(20):
        quiet.step()
    report = quiet.report()
    quiet.running.stop()
    (score,) = (one for one in report.statements if one.kind == f"rule {BREAKER}")
    assert (report.breaker_trips, score.pending) == (1, 1), "a day must pass before a warning is settled"
    assert not [one for one in report.wrong if one.rule == BREAKER]
    assert report.not_judged == []
    assert sum(one.count for one in report.decided) == report.decisions
