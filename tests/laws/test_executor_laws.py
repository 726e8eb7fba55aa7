"""Laws of every executor; the double that other tests use keeps them too.

Each is over a double of its manager, so that what it changes there is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from pytest_httpserver import HTTPServer

from tocsin.actions.executors.registry import Dependencies, build_executor, executors
from tocsin.actions.model.catalogue import ACTIONS, is_recovery
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult, Executor, SeesNodes
from tocsin.actions.model.view import FleetView
from tocsin.actions.notifications.webhook import WebhookSender
from tocsin.config.settings import Settings, WebhookSettings
from tocsin.domain.clock import HOUR, MINUTE, SECOND, ManualClock
from tocsin.domain.decision import Decision, DecisionState, Mode, OutcomeStatus, Ruling, Verdict, parameters_of
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin_testing.action_world import World, fleet, settings
from tocsin_testing.builders import T0
from tocsin_testing.law_executors import LawSite, law_site

NAMES = [*executors(), "fake", "slurm by slurmrestd"]


@pytest.fixture(params=NAMES)
def site(request: pytest.FixtureRequest, httpserver: HTTPServer, tmp_path: Path) -> Iterator[LawSite]:
    with law_site(request.param, tmp_path, httpserver) as made:
        yield made


@pytest.fixture(params=[name for name in NAMES if name != "fake"])
def dry(request: pytest.FixtureRequest, httpserver: HTTPServer, tmp_path: Path) -> Iterator[LawSite]:
    with law_site(request.param, tmp_path, httpserver, dry_run=True) as made:
        yield made


@pytest.fixture
def made(site: LawSite) -> Executor:
    return site.executor


def _decision(action: ActionKind = ActionKind.CORDON) -> Decision:
    return Decision(
        rule="hot",
        subject=Subject(SubjectKind.GPU, "GPU-0-0", "node-0", "default"),
        action=action,
        mode=Mode.ACT,
        severity=Severity.CRITICAL,
        category=Category.THERMAL,
        at_ms=T0,
        expires_ms=T0 + HOUR,
        key=f"hot|gpu:GPU-0-0|{action}|{T0}",
        sentence="It is too hot.",
        findings=("f1",),
        parameters=parameters_of(action, {"pods": "default/train-0", "mig_config": "all-1g.10gb"}),
    )


def _supported(executor: Executor) -> list[Decision]:
    return [_decision(action) for action in ActionKind if executor.supports(action)]


def test_it_has_a_name_and_supports_something(made: Executor) -> None:
    assert made.name in NAMES
    assert _supported(made)


def test_the_pre_check_is_a_named_verdict_and_changes_nothing(site: LawSite) -> None:
    for decision in _supported(site.executor):
        first = site.executor.check(decision, site.view)
        assert first == site.executor.check(decision, site.view)
        assert first.guard == PRE_CHECK
        assert first.ruling is Ruling.ALLOW or first.reason
    assert site.writes() == []


def test_the_pre_check_parts_what_is_simulated_from_what_is_real(made: Executor) -> None:
    for decision in _supported(made):
        rulings = [made.check(replace(decision, simulated=simulated), World().view()).ruling for simulated in (0, 1)]
        if made.name in ("journal_only", "fake"):
            assert rulings == [Ruling.ALLOW] * 2
        else:
            assert rulings.index(Ruling.DENY) == (0 if made.name == "simulated" else 1)
            assert rulings.count(Ruling.DENY) == 1


def test_execution_ends_and_says_what_it_did(site: LawSite) -> None:
    for decision in _supported(site.executor):
        result = site.run(decision)
        assert result.ok, result.detail
        assert result.detail
        assert result.attempts >= 1
    assert bool(site.writes()) is site.acts


def test_one_key_asks_for_one_effect_however_often(site: LawSite) -> None:
    for decision in _supported(site.executor):
        site.run(decision)
        before = site.writes()
        again = site.run(decision)
        assert site.writes() == before, decision.action
        assert again.detail


def test_the_post_check_changes_nothing(site: LawSite) -> None:
    for decision in _supported(site.executor):
        for _ in range(2):
            before = site.writes()
            assert site.executor.verify(decision, site.view) is site.executor.verify(decision, site.view)
            assert site.writes() == before
            site.run(decision)


def test_a_dry_run_goes_through_it_and_changes_nothing(dry: LawSite) -> None:
    for decision in _supported(dry.executor):
        result = dry.run(decision)
        assert result.detail.startswith("dry run") or dry.executor.name == "journal_only", result.detail
        assert (result.lasting, result.certain) == (False, True)
    assert dry.writes() == []


def test_the_inverse_is_the_tables_or_none(made: Executor) -> None:
    for decision in _supported(made):
        inverse = made.inverse(decision)
        wanted = ACTIONS[decision.action].inverse
        assert (None if inverse is None else inverse.action) == wanted
        if inverse is not None:
            assert is_recovery(inverse.action)
            assert inverse.subject == decision.subject
            assert inverse.findings == decision.findings
            assert inverse.key != decision.key
            assert made.inverse(inverse) is None
            assert inverse == made.inverse(decision)


def test_dry_run_is_one_setting_for_all(httpserver: HTTPServer) -> None:
    told = Settings.model_validate({"actions": {"dry_run": True}})
    sender = WebhookSender(WebhookSettings(url=SecretStr(httpserver.url_for("/hook"))), ManualClock(T0))
    result = build_executor("webhook", Dependencies(sender, told)).execute(_decision())
    sender.close()
    assert result.detail.startswith("dry run: would post ")
    assert httpserver.log == []


def test_an_expected_failure_is_a_result(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data(status=500)
    settings = WebhookSettings(url=SecretStr(httpserver.url_for("/hook")), attempts=2)
    sender = WebhookSender(settings, ManualClock(T0), rest=lambda _: None)
    result = build_executor("webhook", Dependencies(sender)).execute(_decision())
    sender.close()
    assert (result.ok, result.attempts, result.certain) == (False, 2, False)


def test_journal_only_leaves_nothing_behind() -> None:
    executor = build_executor("journal_only", Dependencies())
    result = executor.execute(_decision())
    assert (result.ok, result.lasting) == (True, False)
    assert executor.verify(_decision(), World().view()) is None


class Watched:
    """Passes everything on, and notes what was called and when."""

    def __init__(self, executor: Executor, world: World) -> None:
        self._executor = executor
        self._world = world
        self.name = executor.name
        self.resumable = executor.resumable
        self.executed: list[tuple[str, int]] = []
        self.verified_ms: list[int] = []

    def supports(self, action: ActionKind) -> bool:
        return self._executor.supports(action)

    def serves(self, decision: Decision) -> bool:
        return self._executor.serves(decision)

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        return self._executor.check(decision, view)

    def execute(self, decision: Decision) -> ExecutionResult:
        started = [entry.payload["key"] for entry in self._world.journal.of(EntryKind.EXECUTION_STARTED)]
        assert started.count(decision.key) == 1, "the start is on record once, and before"
        self.executed.append((decision.key, self._world.clock.now_ms()))
        return self._executor.execute(decision)

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        self.verified_ms.append(self._world.clock.now_ms())
        return self._executor.verify(decision, view)

    def inverse(self, decision: Decision) -> Decision | None:
        return self._executor.inverse(decision)


_TRIED = {
    "aws_asg": ActionKind.SCALE_OUT,
    "scale_webhook": ActionKind.SCALE_OUT,
    "node": ActionKind.THROTTLE,
    "webhook": ActionKind.DRAIN,
}
"""The action by which each executor is put under the loop; a drain for the others."""


def _world(site: LawSite, **more: float) -> tuple[World, Watched, ActionKind]:
    """The site's executor under the loop, with a fault that asks for an action."""
    action = _TRIED.get(site.executor.name, ActionKind.DRAIN)
    simulated = site.executor.name == "simulated"
    world = World(settings(settle_seconds=60.0, **more), fleet(simulated=simulated))
    watched = Watched(site.executor, world)
    world.executor = watched  # type: ignore[assignment]
    world.restart()
    world.break_gpu("GPU-0-0", action=action, simulated=simulated)
    return world, watched, action


def _turn(site: LawSite, world: World, advance: int) -> None:
    """Time passes for both, the manager is looked at as the brain does beside the loop, and the loop turns once."""
    site.clock.set(world.clock.now_ms() + advance)
    if isinstance(site.executor, SeesNodes):
        site.executor.nodes()
    world.step(advance=advance)


def test_under_the_loop_it_is_post_checked_once_after_the_settle_time_and_ends_once(site: LawSite) -> None:
    world, watched, action = _world(site)
    for _ in range(60):
        _turn(site, world, 5 * SECOND)
        site.turn()
        if world.only(action).state is DecisionState.VERIFYING:
            world.faults.clear()
        if world.only(action).outcome is not None:
            break
    status = world.only(action)
    assert status.outcome is not None, [v.reason for v in status.verdicts if v.reason]
    assert status.outcome.status is OutcomeStatus.SUCCEEDED
    assert len(world.journal.of(EntryKind.OUTCOME)) == 1
    assert len(watched.verified_ms) == 1
    called = max(at_ms for key, at_ms in watched.executed if key == status.decision.key)
    assert watched.verified_ms[0] - called >= 60 * SECOND


def test_what_does_not_end_is_ended_by_its_time_box(site: LawSite) -> None:
    world, watched, action = _world(site, execution_seconds=600.0)
    key = ""
    for _ in range(30):
        _turn(site, world, MINUTE)
        key = key or world.only(action).decision.key
    calls = [at_ms for called, at_ms in watched.executed if called == key]
    assert calls
    assert calls[-1] - calls[0] <= 10 * MINUTE
    ended = [entry.payload for entry in world.journal.of(EntryKind.OUTCOME) if entry.payload["key"] == key]
    assert len(ended) == 1
    if len(calls) > 1:
        assert ended[0]["outcome"]["status"] == "failed"  # type: ignore[index]
