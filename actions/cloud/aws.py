"""EC2 Auto Scaling as the executor needs it: what is read, what is asked for, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tocsin.actions.model.executor import ManagerUnavailable

TAG = "tocsin/decision/"
"""Begins the key of a group's tags with what Tocsin asked of it, one a decision: its id follows. An execution that was
broken off finds its place there."""
MOST_TAGS = 10
"""Tags that Tocsin leaves on one group, of the 50 that AWS allows; of what has ended the oldest go (own choice)."""
_ORDER = re.compile(r"([^/]+)/([^/]+)/([0-9]{1,9})/([0-9]{1,15})(?:/(done|short))?")
_BUSY = frozenset({"ScalingActivityInProgress", "ScalingActivityInProgressFault", "ResourceContention", "Throttling"})
_PASSING = frozenset({"RequestLimitExceeded", "ThrottlingException", "ServiceUnavailable", "InternalFailure", ""})
_SHORTAGE = ("insufficientinstancecapacity", "do not have sufficient", "insufficient capacity", "maxspotinstancecount")


class AwsProblem(ManagerUnavailable):
    """A call failed; `code` is AWS's, empty where no answer came."""

    def __init__(self, code: str, call: str, said: str) -> None:
        self.code = code
        super().__init__(f"AWS {call}: {code or 'no answer'}: {said[:200]}")

    @property
    def busy(self) -> bool:
        """Whether the group is scaling, or rests after it: the same call works later."""
        return self.code in _BUSY

    @property
    def passing(self) -> bool:
        """Whether it may work in a moment."""
        return self.busy or self.code in _PASSING


@dataclass(frozen=True, slots=True)
class Instance:
    """`lifecycle` is ``InService``, ``Pending``, ``Terminating`` and so on."""

    id: str
    lifecycle: str
    protected: bool = False

    @property
    def ending(self) -> bool:
        """Whether it is going, or gone."""
        return self.lifecycle.startswith(("Terminating", "Terminated"))


@dataclass(frozen=True, slots=True)
class Group:
    """One Auto Scaling group."""

    name: str
    least: int
    most: int
    desired: int
    instances: tuple[Instance, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_service(self) -> int:
        """Instances that run."""
        return sum(instance.lifecycle == "InService" for instance in self.instances)

    @property
    def existing(self) -> int:
        """Instances that run, or are on the way up."""
        return sum(not instance.ending for instance in self.instances)


@dataclass(frozen=True, slots=True)
class Activity:
    """One scaling activity; `status` is ``InProgress``, ``Successful``, ``Failed`` and so on."""

    at_ms: int
    status: str
    message: str = ""

    @property
    def shortage(self) -> bool:
        """Whether it failed for want of machines."""
        return self.status == "Failed" and any(word in self.message.lower() for word in _SHORTAGE)


class AutoScaling(Protocol):
    """The calls; each raises AwsProblem."""

    def groups(self, names: Sequence[str]) -> dict[str, Group]:
        """Those of `names` that exist, by name."""
        ...

    def activities(self, group: str) -> list[Activity]:
        """The latest activities, the newest first."""
        ...

    def mark(self, group: str, key: str, value: str) -> None:
        """Set a tag of a group; instances do not get it."""
        ...

    def unmark(self, group: str, keys: Sequence[str]) -> None:
        """Remove tags of a group."""
        ...

    def set_desired(self, group: str, count: int) -> None:
        """Ask for `count` instances."""
        ...

    def terminate(self, instance: str) -> None:
        """End one instance and lower the desired number by one."""
        ...

    def instance_on(self, host: str) -> str:
        """Id of the instance with private DNS name `host`; empty where there is none."""
        ...


class Ended(StrEnum):
    """How an order ended."""

    NOT_YET = ""
    DONE = "done"
    """All of it came about, or somebody else undid it."""
    SHORT = "short"
    """EC2 had no machines for the rest; `target` is what was kept."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a tag of a group says.

    `target` is the desired number, or the instance to end; `before` the number before.
    """

    id: str
    target: str
    before: int
    at_ms: int
    ended: Ended = Ended.NOT_YET

    @property
    def key(self) -> str:
        """Key of the tag."""
        return f"{TAG}{self.id}"

    def __str__(self) -> str:
        told = f"{self.id}/{self.target}/{self.before}/{self.at_ms}"
        return f"{told}/{self.ended}" if self.ended else told


def orders_on(group: Group) -> list[Order]:
    """What was asked of `group`, for whichever decision, the oldest first; tags that cannot be read are passed over."""
    found = (_read(value) for key, value in group.tags.items() if key.startswith(TAG))
    return sorted((order for order in found if order is not None), key=lambda order: (order.at_ms, order.id))


def order_of(group: Group, identity: str) -> Order | None:
    """What was begun on `group` for the decision with `identity`; None where nothing was."""
    return _read(group.tags.get(f"{TAG}{identity}", ""))


def _read(value: str) -> Order | None:
    found = _ORDER.fullmatch(value)
    if found is None:
        return None
    identity, target, before, at_ms, ended = found.groups()
    return Order(identity, target, int(before), int(at_ms), Ended(ended or ""))
