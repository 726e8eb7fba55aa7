"""Laws of every executor; the double that other tests use keeps them too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tocsin.actions.catalogue import ACTIONS, is_recovery
from tocsin.actions.executors.protocol import PRE_CHECK, Executor
from tocsin.actions.executors.registry import Means, build_executor, executors
from tocsin.actions.sender import WebhookSender
from tocsin.config.settings import WebhookSettings
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.decision import Decision, Mode, Ruling
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.domain.subject import Subject, SubjectKind
from tocsin_testing.action_world import FakeExecutor, World
from tocsin_testing.builders import T0
from tocsin_testing.kube_site import double_site, law_executor
from tocsin_testing.law_executors import with_double

NAMES = [*executors(), "fake"]


@pytest.fixture(params=NAMES)
def made(request: pytest.FixtureRequest, httpserver: HTTPServer, tmp_path: Path) -> Iterator[Executor]:
    if request.param == "kubernetes":
        with double_site(tmp_path) as site:
            yield law_executor(site)
        return
    httpserver.expect_request("/hook").respond_with_data(status=202)
    settings = WebhookSettings(url=httpserver.url_for("/hook"), attempts=2)
    sender = WebhookSender(settings, ManualClock(T0), rest=lambda _: None)
    yield (
        FakeExecutor()
        if request.param == "fake"
        else with_double(request.param, Means(sender, clock=ManualClock(T0)), httpserver.url_for("/hook"))
    )
    sender.close()


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
        parameters={"pods": "default/train-0", "mig_config": "all-1g.10gb"},
    )


def _supported(executor: Executor) -> list[Decision]:
    return [_decision(action) for action in ActionKind if executor.supports(action)]


def test_it_has_a_name_and_supports_something(made: Executor) -> None:
    assert made.name in NAMES
    assert _supported(made)


def test_the_pre_check_is_a_named_verdict_and_changes_nothing(made: Executor, httpserver: HTTPServer) -> None:
    view = World().view()
    for decision in _supported(made):
        first = made.check(decision, view)
        assert first == made.check(decision, view)
        assert first.guard == PRE_CHECK
        assert first.ruling is Ruling.ALLOW or first.reason
    assert httpserver.log == []


def test_execution_says_what_it_did(made: Executor) -> None:
    view = World().view()
    for decision in _supported(made):
        made.check(decision, view)  # as the loop does at the last moment
        result = made.execute(decision)
        assert result.ok
        assert result.detail
        assert result.attempts >= 1


def test_one_key_asks_for_one_effect_however_often(made: Executor, httpserver: HTTPServer) -> None:
    decision = _supported(made)[0]
    made.execute(decision)
    made.execute(decision)
    assert len({request.get_json()["id"] for request, _ in httpserver.log}) <= 1


def test_the_post_check_changes_nothing(made: Executor, httpserver: HTTPServer) -> None:
    view = World().view()
    for decision in _supported(made):
        assert made.verify(decision, view) is made.verify(decision, view)
    assert httpserver.log == []


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


def test_an_expected_failure_is_a_result(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data(status=500)
    settings = WebhookSettings(url=httpserver.url_for("/hook"), attempts=2)
    sender = WebhookSender(settings, ManualClock(T0), rest=lambda _: None)
    result = build_executor("webhook", Means(sender)).execute(_decision())
    sender.close()
    assert (result.ok, result.attempts, result.certain) == (False, 2, False)


def test_journal_only_leaves_nothing_behind() -> None:
    executor = build_executor("journal_only", Means())
    result = executor.execute(_decision())
    assert (result.ok, result.lasting) == (True, False)
    assert executor.verify(_decision(), World().view()) is None
