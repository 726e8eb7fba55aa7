"""A rehearsal is the service itself over a simulated fleet: judged whole, the same for a seed, kept once finished."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.client.models_pager import PagerReport, PagerScore
from tocsin.config.settings import Settings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError, Unavailable
from tocsin.queries.pager_score import FAULTS, QUIET, SOFTWARE, passes
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.forecasts import QUIET_TURNS
from tocsin.runtime.fleet_rehearsal import START_MS, FleetRehearsal, RehearsalPlan, rehearse_fleet
from tocsin.runtime.rehearsal_set import file_of, kept, page, plan_of, plans_of, run_set
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
    return PagerReport(simulated=True, days=plan.days, gpus=plan.gpus, hard_faults=0, pages=plan.seed, nulls=nulls)


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


def test_the_page_is_made_of_finished_reports_alone(tmp_path: Path) -> None:
    assert "No rehearsal is finished yet" in page(kept(tmp_path))
    list(run_set(tmp_path, plans_of(("quiet",), (3,), 16, 1.0), Settings(), counted, commit="0123456789ab"))
    text = page(kept(tmp_path))
    assert "| 3 | 01234567 | 16 GPUs, 1 days | 0 | 3 | 3 **missed** |" in text
    assert "## Software" not in text
    assert "Runs that this page stands on: 1 (1 of 16 GPUs for 1 days); of the full set: 0." in text
    assert "*page nothing* reaches all bars in 1 of 1 runs" in text


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
