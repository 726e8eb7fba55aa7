"""EC2 Auto Scaling groups: how they grow and shrink step by step, by what their tags and activities show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from tocsin.actions.model.executor import ExecutionResult, ManagerUnavailable, went
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.phrase import say

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
class GroupInstance:
    """`lifecycle` is ``InService``, ``Pending``, ``Terminating`` and so on."""

    id: str
    lifecycle: str
    protected: bool = False

    @property
    def ending(self) -> bool:
        return self.lifecycle.startswith(("Terminating", "Terminated"))


@dataclass(frozen=True, slots=True)
class Group:
    """One Auto Scaling group."""

    name: str
    least: int
    most: int
    desired: int
    instances: tuple[GroupInstance, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_service(self) -> int:
        return sum(instance.lifecycle == "InService" for instance in self.instances)

    @property
    def existing(self) -> int:
        """Instances that run, or are on the way up."""
        return sum(not instance.ending for instance in self.instances)


@dataclass(frozen=True, slots=True)
class ScalingActivity:
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

    def activities(self, group: str) -> list[ScalingActivity]:
        """The latest activities, the newest first."""

    def mark(self, group: str, key: str, value: str) -> None:
        """Set a tag of a group; instances do not get it."""

    def unmark(self, group: str, keys: Sequence[str]) -> None:
        """Remove tags of a group."""

    def set_desired(self, group: str, count: int) -> None:
        """Ask for `count` instances."""

    def terminate(self, instance: str) -> None:
        """End one instance and lower the desired number by one."""

    def instance_on(self, host: str) -> str:
        """Id of the instance with private DNS name `host`; empty where there is none."""


class Ended(StrEnum):
    """How an order ended."""

    NOT_YET = ""
    DONE = "done"
    """All of it came about, or somebody else undid it."""
    SHORT = "short"
    """EC2 had no machines for the rest; `target` is what was kept."""


@dataclass(frozen=True, slots=True)
class ScalingOrder:
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
        return f"{TAG}{self.id}"

    def __str__(self) -> str:
        text = f"{self.id}/{self.target}/{self.before}/{self.at_ms}"
        return f"{text}/{self.ended}" if self.ended else text


def orders_on(group: Group) -> list[ScalingOrder]:
    """What was asked of `group`, for whichever decision, the oldest first; tags that cannot be read are passed over."""
    found = (_read(value) for key, value in group.tags.items() if key.startswith(TAG))
    return sorted((order for order in found if order is not None), key=lambda order: (order.at_ms, order.id))


def order_of(group: Group, identity: str) -> ScalingOrder | None:
    """What was begun on `group` for the decision with `identity`; None where nothing was."""
    return _read(group.tags.get(f"{TAG}{identity}", ""))


def _read(value: str) -> ScalingOrder | None:
    found = _ORDER.fullmatch(value)
    if found is None:
        return None
    identity, target, before, at_ms, ended = found.groups()
    return ScalingOrder(identity, target, int(before), int(at_ms), Ended(ended or ""))


STALE_MS = HOUR
"""Age beyond which an order that never ended holds up no other: whoever gave it has gone (own choice)."""


class Scaling:
    """The groups of one pool, in the order of the settings.

    `accepted` remembers across calls for which decisions and groups AWS has taken the desired number.
    """

    def __init__(self, aws: AutoScaling, names: Sequence[str], accepted: set[tuple[str, str]]) -> None:
        self._aws = aws
        self._accepted = accepted
        found = aws.groups(names)
        self.groups = [found[name] for name in names if name in found]
        self.missing = [name for name in names if name not in found]

    def room(self) -> int:
        return sum(max(0, group.most - group.desired) for group in self.groups)

    def out(self, identity: str, count: int, now_ms: int) -> ExecutionResult:
        """Add up to `count` instances; pending until they run.

        A group for which EC2 has no machines keeps what it got, and the next of the list is asked for the rest. Where
        another decision's order on a group has not ended, this one waits.
        """
        refused: list[str] = []
        given = 0
        orders = [order_of(group, identity) for group in self.groups]
        latest = max((place for place, order in enumerate(orders) if order is not None), default=0)
        for place, (group, order) in enumerate(zip(self.groups, orders, strict=True)):
            if order is None and place < latest:
                # It was asked before, and its tag has made room for others.
                continue
            if order is None and group.desired >= group.most:
                refused.append(f"{group.name} is at its maximum of {group.most}")
                continue
            if order is None:
                wanted = min(count - given, group.most - group.desired)
                return _waits(group, now_ms) or self._ask(group, identity, wanted, now_ms, refused)
            order = self._settled(group, order)
            if order.ended is not Ended.SHORT:
                return self._progress(group, order, now_ms, refused, given)
            got = int(order.target) - order.before
            given += got
            refused.append(
                f"EC2 has no capacity for {group.name}" + (f" beyond {order.target} instances" if got else "")
            )
        said = "; ".join([*refused, *(f"there is no group {name}" for name in self.missing)])
        effect = {"nodes_up": float(given)} if given else {}
        return ExecutionResult(False, said or "no group is set", lasting=bool(given), effect=effect)

    def back(self, identity: str, instance: str, now_ms: int) -> ExecutionResult:
        """End one instance, and with it the place that it had; pending until it is gone."""
        for group in self.groups:
            order = order_of(group, identity)
            here = next((each for each in group.instances if each.id == (order.target if order else instance)), None)
            if order is not None and (here is None or here.ending):
                gone = here is None or here.lifecycle.startswith("Terminated")
                if gone:
                    self._close(group, order)
                seconds = (now_ms - order.at_ms) / SECOND
                effect = {"nodes_down": 1.0, "scale_in_seconds": seconds} if gone else {}
                return went(
                    True,
                    say("{target} of {group} ends", target=order.target, group=group.name),
                    pending=not gone,
                    effect=effect,
                )
            if here is not None:
                return _waits(group, now_ms, identity) or self._end(
                    group, identity, here.id, protected=here.protected, now_ms=now_ms
                )
        known = ", ".join(group.name for group in self.groups) or "no group"
        return went(
            False, say("{instance} is not in {known}", instance=instance or "no instance", known=known), lasting=False
        )

    def seen(self, identity: str) -> bool | None:
        """Whether what was ordered for the decision has come about; None where no group shows an order."""
        for group in reversed(self.groups):
            order = order_of(group, identity)
            if order is not None and order.ended is Ended.SHORT:
                return False
            if order is not None and order.target.isdecimal():
                return group.in_service >= int(order.target)
            if order is not None:
                return not any(i.id == order.target and not i.ending for i in group.instances)
        return None

    def _ask(self, group: Group, identity: str, count: int, now_ms: int, refused: list[str]) -> ExecutionResult:
        """The tag first: it makes a second call know the first; `before` undoes it."""
        order = ScalingOrder(identity, str(group.desired + count), group.desired, now_ms)
        self._mark(group, order)
        return self._set(group, order, refused)

    def _mark(self, group: Group, order: ScalingOrder) -> None:
        """Begin `order` in the group's tags, and make room for it among them first."""
        others = orders_on(group)
        over = [
            other.key
            for other in others[: max(0, len(others) + 1 - MOST_TAGS)]
            if other.ended or order.at_ms - other.at_ms >= STALE_MS
        ]
        if over:
            self._aws.unmark(group.name, over)
        self._aws.mark(group.name, order.key, str(order))

    def _set(self, group: Group, order: ScalingOrder, refused: list[str]) -> ExecutionResult:
        said = _after(refused)
        if order.ended or (order.id, group.name) in self._accepted:
            self._close(group, order)
            said = f"someone set {group.name} back to {group.desired} instances; left as is{said}"
            return ExecutionResult(False, said, lasting=False)
        try:
            self._aws.set_desired(group.name, int(order.target))
        except AwsProblem as problem:
            self._let_go(group, order, problem)
            return went(True, say("{group} is busy or cooling down{said}", group=group.name, said=said), pending=True)
        self._accepted.add((order.id, group.name))
        return went(
            True,
            say("asked {group} for {target} instances{said}", group=group.name, target=order.target, said=said),
            pending=True,
        )

    def _let_go(self, group: Group, order: ScalingOrder, problem: AwsProblem) -> None:
        """Raise `problem` again unless the group is busy; what is refused for good must hold up no other order."""
        if problem.busy:
            return
        if not problem.passing:
            self._close(group, order)
        raise problem

    def _close(self, group: Group, order: ScalingOrder) -> None:
        """Let other decisions have the group."""
        if not order.ended:
            done = replace(order, ended=Ended.DONE)
            self._aws.mark(group.name, done.key, str(done))

    def _settled(self, group: Group, order: ScalingOrder) -> ScalingOrder:
        """The order; where EC2 has no machines for the rest of it, ended with what came.

        The desired number goes down to the instances that exist, so that none is ended, and only where nobody else has
        set it since.
        """
        if order.ended or not self._is_short(group, order):
            return order
        kept = max(order.before, min(group.existing, int(order.target)))
        if group.desired == int(order.target):
            self._aws.set_desired(group.name, kept)
        short = replace(order, target=str(kept), ended=Ended.SHORT)
        self._aws.mark(group.name, short.key, str(short))
        return short

    def _progress(
        self, group: Group, order: ScalingOrder, now_ms: int, refused: list[str], given: int = 0
    ) -> ExecutionResult:
        target = int(order.target) if order.target.isdecimal() else order.before
        if group.desired < target:
            return self._set(group, order, refused)
        if group.in_service < target and not order.ended:
            return went(
                True,
                say(
                    "{group}: {in_service} of {target} instances run{after}",
                    group=group.name,
                    in_service=group.in_service,
                    target=target,
                    after=_after(refused),
                ),
                pending=True,
            )
        self._close(group, order)
        effect = {
            "nodes_up": float(given + target - order.before),
            "scale_out_seconds": (now_ms - order.at_ms) / SECOND,
        }
        return went(
            True,
            say("{group} runs {target} instances{after}", group=group.name, target=target, after=_after(refused)),
            effect=effect,
        )

    def _is_short(self, group: Group, order: ScalingOrder) -> bool:
        """Whether the newest activity since the order failed for want of machines; any, once it was put back."""
        if not order.target.isdecimal() or group.existing >= int(order.target):
            return False
        since = [activity for activity in self._aws.activities(group.name) if activity.at_ms >= order.at_ms]
        asked = since[:1] if group.desired >= int(order.target) else since
        return any(activity.shortage for activity in asked)

    def _end(self, group: Group, identity: str, instance: str, *, protected: bool, now_ms: int) -> ExecutionResult:
        if protected:
            return went(False, say("{instance} is protected from scale-in", instance=instance), lasting=False)
        if group.desired <= group.least:
            return went(
                False, say("{group} is at its minimum of {least}", group=group.name, least=group.least), lasting=False
            )
        order = ScalingOrder(identity, instance, group.desired, now_ms)
        self._mark(group, order)
        try:
            self._aws.terminate(instance)
        except AwsProblem as problem:
            self._let_go(group, order, problem)
            return went(True, say("{group} is busy", group=group.name), pending=True)
        return went(True, say("ending {instance} of {group}", instance=instance, group=group.name), pending=True)


def _waits(group: Group, now_ms: int, identity: str = "") -> ExecutionResult | None:
    """The answer while another decision's order on the group has not ended; None where there is none."""
    for other in orders_on(group):
        if not other.ended and other.id != identity and now_ms - other.at_ms < STALE_MS:
            said = f"{group.name} is being scaled for another decision ({other.id}); this one waits"
            return ExecutionResult(True, said, pending=True, lasting=False)
    return None


def _after(refused: list[str]) -> str:
    return f"; {'; '.join(refused)}" if refused else ""
