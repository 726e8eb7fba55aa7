"""Growing and shrinking Auto Scaling groups, step by step, by what their tags and activities show."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.actions.cloud.aws import AutoScaling, AwsProblem, Group, Order, order_of
from tocsin.actions.executors.protocol import ExecutionResult
from tocsin.domain.clock import SECOND

_ENDING = ("Terminating", "Terminated")


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
        """Instances that may be added."""
        return sum(max(0, group.most - group.desired) for group in self.groups)

    def out(self, identity: str, count: int, now_ms: int) -> ExecutionResult:
        """Add up to `count` instances; pending until they run.

        A group for which EC2 has no machines is put back to what it was, and the next of the list is asked.
        """
        refused: list[str] = []
        for group in self.groups:
            order = order_of(group, identity)
            if order is None:
                if group.desired >= group.most:
                    refused.append(f"{group.name} is at its maximum of {group.most}")
                    continue
                return self._ask(group, identity, min(count, group.most - group.desired), now_ms, refused)
            if self._is_short(group, order):
                if group.desired > order.before:
                    self._aws.set_desired(group.name, order.before)
                refused.append(f"EC2 has no capacity for {group.name}")
                continue
            return self._progress(group, order, now_ms, refused)
        said = "; ".join([*refused, *(f"there is no group {name}" for name in self.missing)])
        return ExecutionResult(False, said or "no group is set", lasting=False)

    def back(self, identity: str, instance: str, now_ms: int) -> ExecutionResult:
        """End one instance, and with it the place that it had; pending until it is gone."""
        for group in self.groups:
            order = order_of(group, identity)
            here = next((each for each in group.instances if each.id == (order.target if order else instance)), None)
            if order is not None and (here is None or here.lifecycle.startswith(_ENDING)):
                gone = here is None or here.lifecycle.startswith("Terminated")
                seconds = (now_ms - order.at_ms) / SECOND
                effect = {"nodes_down": 1.0, "scale_in_seconds": seconds} if gone else {}
                return ExecutionResult(True, f"{order.target} of {group.name} ends", pending=not gone, effect=effect)
            if here is not None:
                return self._end(group, identity, here.id, protected=here.protected, now_ms=now_ms)
        known = ", ".join(group.name for group in self.groups) or "no group"
        return ExecutionResult(False, f"{instance or 'no instance'} is not in {known}", lasting=False)

    def seen(self, identity: str) -> bool | None:
        """Whether what was ordered for the decision has come about; None where no group shows an order."""
        for group in reversed(self.groups):
            order = order_of(group, identity)
            if order is not None and order.target.isdecimal():
                return group.in_service >= int(order.target)
            if order is not None:
                return not any(i.id == order.target and not i.lifecycle.startswith(_ENDING) for i in group.instances)
        return None

    def _ask(self, group: Group, identity: str, count: int, now_ms: int, refused: list[str]) -> ExecutionResult:
        """The tag first: it makes a second call know the first; `before` undoes it."""
        target = group.desired + count
        order = Order(identity, str(target), group.desired, now_ms)
        self._aws.mark(group.name, str(order))
        return self._set(group, order, refused)

    def _set(self, group: Group, order: Order, refused: list[str]) -> ExecutionResult:
        said = _after(refused)
        if (order.id, group.name) in self._accepted:
            said = f"somebody put {group.name} back to {group.desired} instances: it is left alone{said}"
            return ExecutionResult(False, said, lasting=False)
        try:
            self._aws.set_desired(group.name, int(order.target))
        except AwsProblem as problem:
            if not problem.busy:
                raise
            return ExecutionResult(True, f"{group.name} is busy or cooling down{said}", pending=True)
        self._accepted.add((order.id, group.name))
        return ExecutionResult(True, f"asked {group.name} for {order.target} instances{said}", pending=True)

    def _progress(self, group: Group, order: Order, now_ms: int, refused: list[str]) -> ExecutionResult:
        target = int(order.target) if order.target.isdecimal() else order.before
        if group.desired < target:
            return self._set(group, order, refused)
        if group.in_service < target:
            said = f"{group.name}: {group.in_service} of {target} instances run{_after(refused)}"
            return ExecutionResult(True, said, pending=True)
        effect = {"nodes_up": float(target - order.before), "scale_out_seconds": (now_ms - order.at_ms) / SECOND}
        return ExecutionResult(True, f"{group.name} runs {target} instances{_after(refused)}", effect=effect)

    def _is_short(self, group: Group, order: Order) -> bool:
        """Whether the newest activity since the order failed for want of machines."""
        if order.target.isdecimal() and group.in_service >= int(order.target):
            return False
        since = [activity for activity in self._aws.activities(group.name) if activity.at_ms >= order.at_ms]
        return bool(since) and since[0].shortage

    def _end(self, group: Group, identity: str, instance: str, *, protected: bool, now_ms: int) -> ExecutionResult:
        if protected:
            return ExecutionResult(False, f"{instance} is protected from scale-in", lasting=False)
        if group.desired <= group.least:
            return ExecutionResult(False, f"{group.name} is at its minimum of {group.least}", lasting=False)
        self._aws.mark(group.name, str(Order(identity, instance, group.desired, now_ms)))
        try:
            self._aws.terminate(instance)
        except AwsProblem as problem:
            if not problem.busy:
                raise
            return ExecutionResult(True, f"{group.name} is busy", pending=True)
        return ExecutionResult(True, f"ending {instance} of {group.name}", pending=True)


def _after(refused: list[str]) -> str:
    return f"; {'; '.join(refused)}" if refused else ""
