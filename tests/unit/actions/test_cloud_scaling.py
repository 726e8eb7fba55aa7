"""Scaling groups and pools: within bounds, once, with what is short reported and the next group asked."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tocsin.actions.cloud.auto_scaling import TAG, Group, GroupInstance
from tocsin.actions.executors.aws_asg import AwsAsg
from tocsin.actions.executors.registry import Dependencies, build_executor
from tocsin.actions.model.scope import gpus_wanted, nodes_wanted
from tocsin.actions.model.view import FleetView
from tocsin.actions.notifications.delivery import SIGNATURE_HEADER
from tocsin.config.cloud import AwsSettings
from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.decision import Decision, Mode, Ruling, ScaleInParameters, ScaleOutParameters, parameters_of
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.parameters import decode
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.fake_asg import FakeAsg, group

POOL = Subject(SubjectKind.POOL, "default", pool="default")


def decision(action: ActionKind, **parameters: str) -> Decision:
    return Decision(
        rule="pool_overloaded",
        subject=POOL,
        action=action,
        mode=Mode.ACT,
        severity=Severity.WARNING,
        category=Category.CAPACITY,
        at_ms=T0,
        expires_ms=T0 + HOUR,
        key=f"pool|{action}",
        sentence="The pool is full.",
        parameters=parameters_of(action, parameters),
    )


OUT, IN = decision(ActionKind.SCALE_OUT), decision(ActionKind.SCALE_IN)


class Site:
    """An AWS account of some groups; the first is asked first."""

    def __init__(self, *groups: Group, **settings: Any) -> None:
        self.clock = ManualClock(T0)
        self.aws = FakeAsg(self.clock, *groups)
        names = [each.name for each in groups]
        self.settings = AwsSettings.model_validate({"groups": {"default": names}, **settings})
        self.restart()

    def restart(self) -> None:
        self.executor = AwsAsg(self.settings, self.aws, self.clock)


def view(processes: dict[str, float] | None = None) -> FleetView:
    """The fleet, with the number of processes on each GPU of a host."""
    world = World()
    made = world.view()
    told = processes or {}
    gpus = {
        uuid: replace(each, values={"gpu_processes": told[each.gpu.host]} if each.gpu.host in told else {})
        for uuid, each in made.gpus.items()
    }
    return replace(made, gpus=gpus)


def test_a_group_grows_once_and_is_waited_for() -> None:
    site = Site(group("spot"), group("demand"))
    for _ in range(3):
        site.restart()
        assert site.executor.execute(OUT).pending
    assert site.aws.log == ["set spot 2"]
    site.clock.advance(90 * SECOND)
    site.aws.launch()
    done = site.executor.execute(OUT)
    assert (done.ok, done.pending) == (True, False)
    assert done.effect == {"nodes_up": 1.0, "scale_out_seconds": 90.0}
    assert site.executor.verify(OUT, view()) is True


def test_where_ec2_has_no_machines_the_next_group_is_asked_and_the_first_put_back() -> None:
    site = Site(group("spot"), group("demand", desired=2))
    site.aws.empty = {"spot"}
    site.executor.execute(OUT)
    site.clock.advance(SECOND)
    site.aws.launch()
    result = site.executor.execute(OUT)
    assert result.pending
    assert "EC2 has no capacity for spot" in result.detail
    assert site.aws.log == ["set spot 2", "set spot 1", "set demand 3"]
    site.aws.launch()
    done = site.executor.execute(OUT)
    assert (done.ok, done.pending, site.aws.known["spot"].desired) == (True, False, 1)
    assert site.executor.verify(OUT, view()) is True


def test_where_no_group_has_machines_that_is_said() -> None:
    site = Site(group("spot"), group("demand", desired=4))
    site.aws.empty = {"spot"}
    site.executor.execute(OUT)
    site.clock.advance(SECOND)
    site.aws.launch()
    result = site.executor.execute(OUT)
    assert (result.ok, result.pending, result.certain) == (False, False, True)
    assert result.detail == "EC2 has no capacity for spot; demand is at its maximum of 4"
    assert site.aws.known["spot"].desired == 1


def test_bounds_hold() -> None:
    site = Site(group("spot", desired=3, most=4))
    site.executor.execute(decision(ActionKind.SCALE_OUT, nodes="9"))
    assert site.aws.log == ["set spot 4"]
    assert not Site(group("spot", desired=4)).executor.execute(OUT).ok
    few = Site(group("spot", most=99), max_nodes=2)
    few.executor.execute(decision(ActionKind.SCALE_OUT, gpus="800"))
    assert few.aws.log == ["set spot 3"]


@pytest.mark.parametrize("code", ["ScalingActivityInProgress", "Throttling", ""])
def test_a_busy_group_is_asked_again(code: str) -> None:
    site = Site(group("spot"))
    site.aws.fails = [code]
    assert site.executor.execute(OUT).pending
    assert site.executor.execute(OUT).pending
    assert site.aws.log == ["set spot 2"]


def test_a_refusal_is_final() -> None:
    site = Site(group("spot"))
    site.aws.fails = ["AccessDenied"]
    result = site.executor.execute(OUT)
    assert (result.ok, result.pending) == (False, False)
    assert "AccessDenied" in result.detail


def test_what_somebody_lowered_is_not_raised_again() -> None:
    site = Site(group("spot"))
    site.executor.execute(OUT)
    site.aws.known["spot"] = replace(site.aws.known["spot"], desired=1)
    result = site.executor.execute(OUT)
    assert not result.ok
    assert "someone set spot back to 1" in result.detail


def test_a_host_that_the_plan_names_goes_and_no_other() -> None:
    site = Site(group("spot", desired=2))
    site.aws.hosts = {"node-0": "i-00000000", "node-1": "i-00000001"}
    named = decision(ActionKind.SCALE_IN, node="node-1")
    verdict = site.executor.check(named, view({"node-0": 0.0, "node-1": 1.0}))
    assert (verdict.ruling, verdict.reason) == (Ruling.HOLD, "node-1 is not known to be idle")
    assert site.executor.check(named, view({"node-0": 0.0, "node-1": 0.0})).ruling is Ruling.ALLOW
    assert site.executor.execute(named).pending
    assert site.aws.log == ["terminate i-00000001"]


def test_only_an_idle_host_is_given_back() -> None:
    site = Site(group("spot", desired=2))
    site.aws.hosts = {"node-1": "i-00000001"}
    assert site.executor.check(IN, view()).ruling is Ruling.HOLD, "nothing is known of its processes"
    assert site.executor.check(IN, view({"node-0": 1.0, "node-1": 2.0})).ruling is Ruling.HOLD
    assert site.executor.check(IN, view({"node-0": 1.0, "node-1": 0.0})).ruling is Ruling.ALLOW
    assert site.executor.execute(IN).pending
    site.restart()
    assert site.executor.execute(IN).pending
    assert site.aws.log == ["terminate i-00000001"]
    site.clock.advance(30 * SECOND)
    site.aws.launch()
    done = site.executor.execute(IN)
    assert (done.pending, done.effect) == (False, {"nodes_down": 1.0, "scale_in_seconds": 30.0})
    assert site.aws.known["spot"].desired == 1


def test_minimum_protection_and_strangers_are_respected() -> None:
    one = decision(ActionKind.SCALE_IN, instance="i-00000000")
    least = Site(group("spot", desired=1, least=1))
    assert "minimum" in least.executor.execute(one).detail
    kept = replace(group("spot"), instances=(GroupInstance("i-00000000", "InService", protected=True),))
    assert "protected" in Site(kept).executor.execute(one).detail
    assert (
        "is not in spot"
        in Site(group("spot")).executor.execute(decision(ActionKind.SCALE_IN, instance="i-ffffffff")).detail
    )
    assert least.aws.log == []


def test_a_dry_run_asks_for_nothing() -> None:
    site = Site(group("spot"), dry_run=True)
    result = site.executor.execute(OUT)
    assert (result.ok, result.lasting, result.pending) == (True, False, False)
    assert "SetDesiredCapacity spot 2" in result.detail
    assert (site.aws.log, site.aws.known["spot"].tags) == ([], {})


def test_other_pools_and_simulated_decisions_are_not_its_own() -> None:
    site = Site(group("spot"))
    assert not site.executor.serves(replace(OUT, subject=Subject(SubjectKind.POOL, "other", pool="other")))
    assert site.executor.check(replace(OUT, simulated=True), view()).ruling is Ruling.DENY


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith(("boto3", "botocore")):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InputError, match=r"with the extra aws"):
        build_executor(
            "aws_asg", Dependencies(settings=Settings.model_validate({"aws": {"groups": {"default": ["g"]}}}))
        )


def scaled(**texts: str) -> ScaleOutParameters:
    return decode(ScaleOutParameters, texts)


def test_how_many_a_decision_asks_for() -> None:
    assert (nodes_wanted(scaled(), 8), gpus_wanted(scaled(), 8)) == (1, 8)
    assert (nodes_wanted(scaled(gpus="9"), 8), gpus_wanted(scaled(gpus="9"), 8)) == (2, 9)
    assert (nodes_wanted(scaled(nodes="3"), 8), gpus_wanted(scaled(nodes="3"), 8)) == (3, 24)
    for wrong in ("nan", "inf", "-3", "many", ""):
        assert nodes_wanted(scaled(nodes=wrong), 8) == 1


def webhook(url: str = "", **bounds: int) -> tuple[Any, OwnMetrics]:
    own = OwnMetrics()
    section = {"url": url, "attempts": 1, "secret": "s" * 16, "pools": {"default": {"step_gpus": 2, **bounds}}}
    settings = Settings.model_validate({"scale_webhook": section})
    return build_executor("scale_webhook", Dependencies(settings=settings, clock=ManualClock(T0), own=own)), own


def test_an_autoscaler_is_told_an_absolute_number_of_gpus_and_the_key(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/scale").respond_with_data(status=202)
    made, own = webhook(httpserver.url_for("/scale"))
    assert made.check(OUT, view()).ruling is Ruling.ALLOW
    for _ in range(2):
        result = made.execute(OUT)
        assert (result.ok, result.effect) == (True, {"gpus_wanted": 10.0, "gpus_before": 8.0})
    bodies = [request.get_json() for request, _ in httpserver.log]
    assert bodies[0] == bodies[1], "a receiver can tell a repetition"
    assert (bodies[0]["type"], bodies[0]["id"]) == ("io.tocsin.scale.requested", OUT.key)
    told = bodies[0]["data"]["parameters"]
    assert {name: told[name] for name in ("pool", "gpus_now", "gpus_wanted")} == {
        "pool": "default",
        "gpus_now": "8",
        "gpus_wanted": "10",
    }
    assert SIGNATURE_HEADER in httpserver.log[0][0].headers
    assert own.value("tocsin_pool_gpus_wanted", pool="default") == 10


def test_without_a_receiver_the_metric_says_it_for_keda() -> None:
    made, own = webhook()
    made.check(IN, view())
    assert made.execute(decision(ActionKind.SCALE_IN, gpus="3")).ok
    assert own.value("tocsin_pool_gpus_wanted", pool="default") == 5


def test_a_pool_stays_within_its_bounds(httpserver: HTTPServer) -> None:
    made, _ = webhook(max_gpus=8, min_gpus=8)
    for each in (OUT, IN):
        verdict = made.check(each, view())
        assert verdict.ruling is Ruling.HOLD
        assert "between 8 and 8" in verdict.reason
    assert not webhook()[0].execute(OUT).ok, "how large the pool is, is not known"


def test_a_receiver_that_fails_is_a_result(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/scale").respond_with_data(status=500)
    made, _ = webhook(httpserver.url_for("/scale"))
    made.check(OUT, view())
    result = made.execute(OUT)
    assert (result.ok, result.certain) == (False, False)


def test_what_ec2_did_give_is_kept_and_only_the_rest_is_asked_of_the_next_group() -> None:
    site = Site(group("spot", desired=2, most=8), group("demand", desired=0, most=8))
    four = decision(ActionKind.SCALE_OUT, nodes="4")
    site.executor.execute(four)
    site.clock.advance(SECOND)
    site.aws.launch_some("spot", 3)
    for _ in range(3):
        site.restart()
        result = site.executor.execute(four)
        assert result.pending
    assert "EC2 has no capacity for spot beyond 5 instances" in result.detail
    assert site.aws.log == ["set spot 6", "set spot 5", "set demand 1"]
    site.aws.launch()
    assert site.executor.execute(four).effect["nodes_up"] == 4.0


def test_a_number_that_somebody_else_set_is_not_put_back() -> None:
    site = Site(group("spot", desired=2, most=8), group("demand"))
    site.executor.execute(OUT)
    site.aws.known["spot"] = replace(site.aws.known["spot"], desired=6)
    site.clock.advance(SECOND)
    site.aws.launch_some("spot", 0)
    assert site.executor.execute(OUT).pending
    assert site.aws.log == ["set spot 3", "set demand 2"]
    assert site.aws.known["spot"].desired == 6


def test_two_decisions_on_one_group_go_one_after_the_other() -> None:
    site = Site(group("spot", desired=1, most=8))
    other = replace(OUT, key="other")
    for _ in range(4):
        site.restart()
        assert site.executor.execute(OUT).pending
        result = site.executor.execute(other)
        assert result.pending
    assert "is being scaled for another decision" in result.detail
    assert site.aws.log == ["set spot 2"]
    site.aws.launch()
    assert not site.executor.execute(OUT).pending
    assert not site.executor.execute(OUT).pending, "what has ended is not begun again"
    assert site.executor.execute(other).pending
    assert site.executor.execute(replace(IN, parameters=ScaleInParameters(instance="i-00000000"))).pending
    assert site.aws.log == ["set spot 2", "set spot 3"]
    site.clock.advance(2 * HOUR)
    assert site.executor.execute(replace(OUT, key="third")).pending
    assert site.aws.log[-1] == "set spot 4", "an order that nobody ended holds up nothing for ever"


def test_one_that_comes_back_after_another_finds_its_own_order() -> None:
    """A brain that was away for hours knows what it had asked for, though others have scaled the group since."""
    site = Site(group("spot", desired=1, most=8))
    assert site.executor.execute(OUT).pending
    site.aws.launch()
    site.clock.advance(2 * HOUR)
    other = replace(OUT, key="other")
    site.restart()
    assert site.executor.execute(other).pending
    site.aws.launch()
    assert not site.executor.execute(other).pending
    site.restart()
    done = site.executor.execute(OUT)
    assert (done.ok, done.pending) == (True, False)
    assert site.aws.log == ["set spot 2", "set spot 3"]


def test_tags_of_what_has_ended_make_room_and_those_of_others_stay() -> None:
    site = Site(replace(group("spot", desired=1, most=100), tags={"team": "blue", f"{TAG}odd": "nonsense"}))
    for number in range(30):
        one = replace(OUT, key=f"k{number}")
        assert site.executor.execute(one).pending
        site.aws.launch()
        assert not site.executor.execute(one).pending
        site.clock.advance(SECOND)
    tags = site.aws.known["spot"].tags
    own = [key for key, value in tags.items() if key.startswith(TAG) and value != "nonsense"]
    assert own == [f"{TAG}{replace(OUT, key=f'k{number}').id}" for number in range(20, 30)]
    assert tags["team"] == "blue"


def test_an_order_that_aws_refuses_holds_up_no_other() -> None:
    site = Site(group("spot", most=8))
    site.aws.fails = ["AccessDenied"]
    assert not site.executor.execute(OUT).ok
    site.executor.execute(replace(OUT, key="other"))
    assert site.aws.log == ["set spot 2"]
