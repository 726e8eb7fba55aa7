"""Auto Scaling groups in memory, and the executor over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.actions.cloud.auto_scaling import AwsProblem, Group, GroupInstance, ScalingActivity
from tocsin.domain.clock import ManualClock

SHORTAGE = "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested."


class FakeAsg:
    """`log` has what was asked for. Instances come with `launch`; a group in `empty` gets none, as EC2 says it."""

    def __init__(self, clock: ManualClock, *groups: Group) -> None:
        self.clock = clock
        self.known = {group.name: group for group in groups}
        self.log: list[str] = []
        self.empty: set[str] = set()
        self.fails: list[str] = []
        self.hosts = {"node-0": "i-00000000"}
        self._failed: dict[str, list[ScalingActivity]] = {}

    def groups(self, names: Sequence[str]) -> dict[str, Group]:
        return {name: self.known[name] for name in names if name in self.known}

    def activities(self, group: str) -> list[ScalingActivity]:
        return self._failed.get(group, [])

    def mark(self, group: str, key: str, value: str) -> None:
        self._put(group, tags={**self.known[group].tags, key: value})

    def unmark(self, group: str, keys: Sequence[str]) -> None:
        self._put(group, tags={key: value for key, value in self.known[group].tags.items() if key not in keys})

    def set_desired(self, group: str, count: int) -> None:
        self._fail()
        self.log.append(f"set {group} {count}")
        self._put(group, desired=count)

    def terminate(self, instance: str) -> None:
        self._fail()
        self.log.append(f"terminate {instance}")
        for group in self.known.values():
            ends = [replace(i, lifecycle="Terminating") if i.id == instance else i for i in group.instances]
            if tuple(ends) != group.instances:
                self._put(group.name, instances=tuple(ends), desired=group.desired - 1)

    def instance_on(self, host: str) -> str:
        return self.hosts.get(host, "")

    def launch(self) -> None:
        """Every group gets what it asks for, or says that there is none; what ends is gone."""
        for group in list(self.known.values()):
            stays = tuple(i for i in group.instances if i.lifecycle != "Terminating")
            lack = group.desired - len(stays)
            if group.name in self.empty and lack > 0:
                self._failed[group.name] = [ScalingActivity(self.clock.now_ms(), "Failed", SHORTAGE)]
                lack = 0
            new = tuple(GroupInstance(f"i-{len(stays) + n:08x}", "InService") for n in range(lack))
            self._put(group.name, instances=stays + new)

    def launch_some(self, name: str, count: int) -> None:
        """Group `name` gets `count` of what it asks for, and then EC2 has no more."""
        group = self.known[name]
        new = tuple(GroupInstance(f"i-9{n:07x}", "InService") for n in range(count))
        self._put(name, instances=group.instances + new)
        self._failed[name] = [ScalingActivity(self.clock.now_ms(), "Failed", SHORTAGE)]

    def _put(self, name: str, **fields: object) -> None:
        self.known[name] = replace(self.known[name], **fields)  # type: ignore[arg-type]

    def _fail(self) -> None:
        if self.fails:
            raise AwsProblem(self.fails.pop(), "call", "no")


def group(name: str, desired: int = 1, most: int = 4, least: int = 0) -> Group:
    """A group whose instances all run."""
    running = tuple(GroupInstance(f"i-{n:08x}", "InService") for n in range(desired))
    return Group(name, least, most, desired, running)
