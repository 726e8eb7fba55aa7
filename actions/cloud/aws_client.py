"""The one place that touches boto3 (extra ``aws``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tocsin.actions.cloud.auto_scaling import AwsProblem, Group, GroupInstance, ScalingActivity
from tocsin.config.cloud import AwsSettings
from tocsin.domain.clock import SECOND
from tocsin.domain.errors import InputError, install_extra

_RECENT = 20


class Boto:
    """EC2 Auto Scaling through boto3's clients."""

    def __init__(self, autoscaling: Any, ec2: Any, *, honor_cooldown: bool = True) -> None:
        self._autoscaling = autoscaling
        self._ec2 = ec2
        self._honor = honor_cooldown

    def groups(self, names: Sequence[str]) -> dict[str, Group]:
        answer = _call(self._autoscaling.describe_auto_scaling_groups, AutoScalingGroupNames=list(names))
        return {found.name: found for found in map(_group, answer.get("AutoScalingGroups", ()))}

    def activities(self, group: str) -> list[ScalingActivity]:
        answer = _call(self._autoscaling.describe_scaling_activities, AutoScalingGroupName=group, MaxRecords=_RECENT)
        return [
            ScalingActivity(
                round(item["StartTime"].timestamp() * SECOND),
                str(item.get("StatusCode", "")),
                f"{item.get('StatusMessage', '')} {item.get('Cause', '')}".strip(),
            )
            for item in answer.get("Activities", ())
        ]

    def mark(self, group: str, key: str, value: str) -> None:
        tag = _tag(group, key) | {"Value": value, "PropagateAtLaunch": False}
        _call(self._autoscaling.create_or_update_tags, Tags=[tag])

    def unmark(self, group: str, keys: Sequence[str]) -> None:
        _call(self._autoscaling.delete_tags, Tags=[_tag(group, key) for key in keys])

    def set_desired(self, group: str, count: int) -> None:
        _call(
            self._autoscaling.set_desired_capacity,
            AutoScalingGroupName=group,
            DesiredCapacity=count,
            HonorCooldown=self._honor,
        )

    def terminate(self, instance: str) -> None:
        _call(
            self._autoscaling.terminate_instance_in_auto_scaling_group,
            InstanceId=instance,
            ShouldDecrementDesiredCapacity=True,
        )

    def instance_on(self, host: str) -> str:
        answer = _call(self._ec2.describe_instances, Filters=[{"Name": "private-dns-name", "Values": [host]}])
        found = [item for part in answer.get("Reservations", ()) for item in part.get("Instances", ())]
        return str(found[0]["InstanceId"]) if found else ""


def open_boto(settings: AwsSettings) -> Boto:
    """The calls with the settings' region and deadlines; raises InputError where boto3 is missing or has no region."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise InputError("actions.executors", "aws_asg", "boto3 is not installed", install_extra("aws")) from None
    seconds = settings.timeout_seconds
    config = Config(
        connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 2, "mode": "standard"}
    )
    more: dict[str, Any] = {"config": config}
    if settings.region:
        more["region_name"] = settings.region
    if settings.endpoint_url:
        more["endpoint_url"] = settings.endpoint_url
    try:
        clients = [boto3.client(name, **more) for name in ("autoscaling", "ec2")]
    except (BotoCoreError, ValueError) as error:
        raise InputError("aws.region", settings.region, str(error), "set aws.region or AWS_REGION") from None
    return Boto(*clients, honor_cooldown=settings.honor_cooldown)


def _tag(group: str, key: str) -> dict[str, Any]:
    return {"ResourceId": group, "ResourceType": "auto-scaling-group", "Key": key}


def _call(call: Callable[..., Any], **arguments: Any) -> Mapping[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError

    name = getattr(call, "__name__", "call")
    try:
        answer: Mapping[str, Any] = call(**arguments)
    except ClientError as error:
        error_body = error.response.get("Error", {})
        raise AwsProblem(str(error_body.get("Code", "Unknown")), name, str(error_body.get("Message", ""))) from None
    except BotoCoreError as error:
        raise AwsProblem("", name, str(error)) from None
    return answer


def _group(item: Mapping[str, Any]) -> Group:
    instances: Iterable[Mapping[str, Any]] = item.get("Instances", ())
    return Group(
        item["AutoScalingGroupName"],
        int(item["MinSize"]),
        int(item["MaxSize"]),
        int(item["DesiredCapacity"]),
        tuple(
            GroupInstance(each["InstanceId"], each["LifecycleState"], bool(each.get("ProtectedFromScaleIn")))
            for each in instances
        ),
        {tag["Key"]: tag.get("Value", "") for tag in item.get("Tags", ())},
    )
