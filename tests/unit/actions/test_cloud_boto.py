"""The calls to AWS as botocore builds and checks them; runs where the extra ``aws`` is installed (`make aws-test`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

if os.environ.get("TOCSIN_TEST_AWS"):
    import boto3
else:
    boto3 = pytest.importorskip("boto3", reason="the extra aws is not installed here; `make aws-test` runs these")
from botocore.stub import ANY, Stubber

from tocsin.actions.cloud.auto_scaling import TAG, AwsProblem
from tocsin.actions.cloud.aws_client import Boto, open_boto
from tocsin.actions.executors.aws_asg import AwsAsg
from tocsin.config.cloud import AwsSettings
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.decision import Decision, Mode, parameters_of
from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind

T0 = 1_795_231_366_000
KEYS = {"region_name": "eu-central-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}


class Aws:
    """Clients whose answers are written down; an unexpected call or parameter is an error."""

    def __init__(self) -> None:
        self.autoscaling, self.ec2 = boto3.client("autoscaling", **KEYS), boto3.client("ec2", **KEYS)
        self.calls, self.hosts = Stubber(self.autoscaling), Stubber(self.ec2)
        self.door = Boto(self.autoscaling, self.ec2)

    def group(self, desired: int, running: int, tag: str = "") -> None:
        """One look at group g."""
        instances = [
            {
                "InstanceId": f"i-0000000{n}",
                "AvailabilityZone": "a",
                "LifecycleState": "InService",
                "HealthStatus": "Healthy",
                "ProtectedFromScaleIn": n == 1,
            }
            for n in range(running)
        ]
        key = f"{TAG}{tag.partition('/')[0]}"
        tags = [{"Key": key, "Value": tag, "ResourceId": "g", "ResourceType": "auto-scaling-group"}] if tag else []
        answer = {
            "AutoScalingGroupName": "g",
            "MinSize": 0,
            "MaxSize": 4,
            "DesiredCapacity": desired,
            "DefaultCooldown": 300,
            "AvailabilityZones": ["a"],
            "HealthCheckType": "EC2",
            "CreatedTime": datetime(2026, 1, 1, tzinfo=UTC),
            "Instances": instances,
            "Tags": tags,
        }
        expected = {"AutoScalingGroupNames": ["g"]}
        self.calls.add_response("describe_auto_scaling_groups", {"AutoScalingGroups": [answer]}, expected)


@pytest.fixture
def aws() -> Iterator[Aws]:
    made = Aws()
    with made.calls, made.hosts:
        yield made
        made.calls.assert_no_pending_responses()
        made.hosts.assert_no_pending_responses()


def decision(action: ActionKind, **parameters: str) -> Decision:
    pool = Subject(SubjectKind.POOL, "p", pool="p")
    kinds = (Mode.ACT, Severity.WARNING, Category.CAPACITY)
    return Decision(
        "r", pool, action, *kinds, T0, T0 + HOUR, f"k|{action}", "Full.", parameters=parameters_of(action, parameters)
    )


def executor(aws: Aws) -> AwsAsg:
    return AwsAsg(AwsSettings(groups={"p": ["g"]}), aws.door, ManualClock(T0))


def tag(value: str = "") -> dict[str, Any]:
    kind = {"ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
    key = f"{TAG}{value.partition('/')[0]}" if value else ANY
    return {"Tags": [{"ResourceId": "g", "Key": key, "Value": value or ANY, **kind}]}


def test_the_desired_capacity_is_set_with_the_cooldown_honoured(aws: Aws) -> None:
    grow = decision(ActionKind.SCALE_OUT)
    aws.group(1, 1)
    aws.calls.add_response("create_or_update_tags", {}, tag(f"{grow.id}/2/1/{T0}"))
    wanted = {"AutoScalingGroupName": "g", "DesiredCapacity": 2, "HonorCooldown": True}
    aws.calls.add_response("set_desired_capacity", {}, wanted)
    assert executor(aws).execute(grow).pending


def test_a_shortage_is_read_from_the_activities(aws: Aws) -> None:
    activity = {
        "ActivityId": "a",
        "AutoScalingGroupName": "g",
        "Cause": "a user request",
        "StartTime": datetime(2030, 1, 1, tzinfo=UTC),
        "StatusCode": "Failed",
        "StatusMessage": "We currently do not have sufficient p5.48xlarge capacity",
    }
    grow = decision(ActionKind.SCALE_OUT)
    aws.group(2, 1, f"{grow.id}/2/1/{T0}")
    expected = {"AutoScalingGroupName": "g", "MaxRecords": 20}
    aws.calls.add_response("describe_scaling_activities", {"Activities": [activity]}, expected)
    back = {"AutoScalingGroupName": "g", "DesiredCapacity": 1, "HonorCooldown": True}
    aws.calls.add_response("set_desired_capacity", {}, back)
    aws.calls.add_response("create_or_update_tags", {}, tag(f"{grow.id}/1/1/{T0}/short"))
    assert "EC2 has no capacity for g" in executor(aws).execute(grow).detail


def test_a_cooldown_is_waited_for(aws: Aws) -> None:
    grow = decision(ActionKind.SCALE_OUT)
    aws.group(1, 1)
    aws.calls.add_response("create_or_update_tags", {}, tag())
    aws.calls.add_client_error("set_desired_capacity", "ScalingActivityInProgress", "cooldown")
    result = executor(aws).execute(grow)
    assert (result.ok, result.pending) == (True, True)


def test_one_instance_ends_with_its_place(aws: Aws) -> None:
    shrink = decision(ActionKind.SCALE_IN, instance="ip-10-0-0-1.ec2.internal")
    aws.group(2, 2)
    found = {"Reservations": [{"Instances": [{"InstanceId": "i-00000000"}]}]}
    named = {"Filters": [{"Name": "private-dns-name", "Values": ["ip-10-0-0-1.ec2.internal"]}]}
    aws.hosts.add_response("describe_instances", found, named)
    aws.calls.add_response("create_or_update_tags", {}, tag(f"{shrink.id}/i-00000000/2/{T0}"))
    ended = {"InstanceId": "i-00000000", "ShouldDecrementDesiredCapacity": True}
    aws.calls.add_response("terminate_instance_in_auto_scaling_group", {}, ended)
    assert executor(aws).execute(shrink).pending


def test_a_protected_instance_stays(aws: Aws) -> None:
    aws.group(2, 2)
    assert "protected" in executor(aws).execute(decision(ActionKind.SCALE_IN, instance="i-00000001")).detail


def test_tags_are_removed_by_their_keys(aws: Aws) -> None:
    named = [{"ResourceId": "g", "ResourceType": "auto-scaling-group", "Key": f"{TAG}{n}"} for n in "ab"]
    aws.calls.add_response("delete_tags", {}, {"Tags": named})
    aws.door.unmark("g", [f"{TAG}a", f"{TAG}b"])


def test_a_refusal_keeps_its_code(aws: Aws) -> None:
    aws.calls.add_client_error("describe_auto_scaling_groups", "AccessDenied", "not allowed")
    with pytest.raises(AwsProblem, match="AccessDenied") as refused:
        aws.door.groups(["g"])
    assert not refused.value.passing


def test_a_region_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(InputError, match=r"aws\.region"):
        open_boto(AwsSettings())
    assert open_boto(AwsSettings(region="eu-central-1")) is not None
