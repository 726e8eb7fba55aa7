"""Nodes of Slurm: drained and given back, rebooted, and cloud nodes powered up and down.

Only what nobody else took out of service is taken, and only what Tocsin took is given back. What was begun for a
decision is marked in the node's comment and stays marked once it has ended, so that a restart finds it there, and a
brain whose journal was restored too: nothing is done twice for one decision.
"""

from __future__ import annotations

import re
from typing import Final

from tocsin.actions.model.executor import ExecutionResult, went
from tocsin.actions.model.scope import nodes_wanted, scale_parameters
from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import Slurm
from tocsin.actions.slurm.state import SlurmNode, SlurmSnapshot, expand
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import Decision
from tocsin.domain.errors import InputError
from tocsin.domain.phrase import say

UP: Final = "power_up"
DOWN: Final = "power_down"
TURNING_MS = 30 * SECOND
"""Slurm shows a node as powered down for a moment after it took the request to power it up (own choice)."""
DRAIN: Final = "drain"
REBOOT: Final = "reboot"
DRAINED: Final = "drained"
"""A drain that was given back."""
RESUMED: Final = "resumed"
ASKED: Final = "reboot_asked"
"""Slurm took the reboot. `REBOOT` alone may be all that a process that was killed came to."""
_LACK = (
    r"Low (RealMemory|TmpDisk)( \(reported:\d+ < [\d.]+% of configured:\d+\))?"
    r"|Low (socket\*core\*thread|socket\*core) count|Low CPUs"
    r"|gres/\w+ count (too low|reported lower than configured) \(\d+ < \d+\)"
)
_SLURMS_OWN = re.compile(rf"Not responding|Node unexpectedly rebooted|(?:{_LACK})(?:, (?:{_LACK}))*")
"""Reasons that Slurm itself writes, whole (slurmctld, node_mgr.c and ping_nodes.c); they are nobody's decision."""
_SLURM_ITSELF = frozenset({"", "slurm", "root"})
"""As whom it writes them."""
_REBOOTING = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})


def foreign(node: SlurmNode) -> str:
    """Who took a node out of service and why, where that was not Tocsin; empty where nobody else did."""
    if not node.out or not node.reason or comments.is_own(node.reason) or _is_slurms_own(node):
        return ""
    return f"{node.name} was taken out of service by {node.reason_user or 'someone'}: {node.reason!r}; left as is"


def _is_slurms_own(node: SlurmNode) -> bool:
    return node.reason_user in _SLURM_ITSELF and _SLURMS_OWN.fullmatch(node.reason.strip()) is not None


def is_ours(node: SlurmNode) -> bool:
    """Whether Tocsin has it out of service."""
    return (node.drained or node.base == "DOWN") and comments.is_own(node.reason)


def take_out(slurm: Slurm, node: SlurmNode, decision: Decision, now_ms: int) -> ExecutionResult | None:
    """Drain it unless it is drained already; a result where that cannot be, None where it takes no new work."""
    other = foreign(node)
    if other:
        return ExecutionResult(False, other, lasting=False)
    if node.drained:
        return None
    if comments.find(node.comment, DRAIN, decision.id) is not None:
        return went(
            False, say("{node} was drained for this and someone resumed it; left as is", node=node.name), lasting=False
        )
    if comments.find(node.comment, DRAINED, decision.id) is not None:
        return went(False, say("{node} was drained for this and given back; left as is", node=node.name), lasting=False)
    comment = comments.put(node.comment, comments.CommentTag(DRAIN, decision.id, now_ms))
    slurm.drain(node.name, comments.reason(decision.sentence, decision.id), comment)
    return None


def drain_seconds(node: SlurmNode, now_ms: int) -> dict[str, float]:
    """How long its drain has lasted; empty where it was not Tocsin's."""
    mark = comments.find(node.comment, DRAIN)
    return {} if mark is None else {"drain_seconds": max(0, now_ms - mark.at_ms) / SECOND}


def give_back(slurm: Slurm, node: SlurmNode, decision: Decision, now_ms: int) -> ExecutionResult:
    """Resume what Tocsin drained, once for each decision."""
    ended = comments.turn(node.comment, DRAIN, DRAINED)
    if is_ours(node):
        if comments.find(node.comment, RESUMED, decision.id) is not None:
            again = f"{node.name} was given back for this and drained again since; left as is"
            return ExecutionResult(False, again, lasting=False)
        effect = {f"out_of_service_{name}": value for name, value in drain_seconds(node, now_ms).items()}
        slurm.resume(node.name, comments.put(ended, comments.CommentTag(RESUMED, decision.id, now_ms)))
        return went(True, say("{node} is given back", node=node.name), effect=effect)
    if node.schedulable:
        if ended != node.comment:
            slurm.mark_node(node.name, ended)
        return went(True, say("{node} was in service already", node=node.name), lasting=False)
    said = foreign(node) or f"{node.name} is {node.base.lower()} ({', '.join(sorted(node.flags)) or 'no flag'})"
    return went(False, say("{said}; it was not Tocsin that took it out", said=said), lasting=False)


def reboot(slurm: Slurm, node: SlurmNode, decision: Decision, now_ms: int) -> ExecutionResult:
    """Reboot it once the work on it has ended; pending until it has come back with a later boot time.

    What was drained stays out of service afterwards.
    """
    other = foreign(node)
    if other:
        return ExecutionResult(False, other, lasting=False)
    mine = comments.find(node.comment, REBOOT, decision.id)
    asked = comments.find(node.comment, ASKED, decision.id) is not None
    if mine is not None and node.boot_s * SECOND > mine.at_ms and _REBOOTING.isdisjoint(node.flags):
        if "NOT_RESPONDING" in node.flags:
            return went(True, say("{node} has booted and does not answer yet", node=node.name), pending=True)
        return went(
            True,
            say("{node} has rebooted", node=node.name),
            effect={"reboot_seconds": max(0, now_ms - mine.at_ms) / SECOND},
        )
    if not _REBOOTING.isdisjoint(node.flags):
        return went(True, say("{node} waits for its reboot", node=node.name), pending=True)
    if mine is not None and asked and node.ready:
        return went(False, say("someone cancelled the reboot of {node}", node=node.name), lasting=False)
    if not asked:
        marked = comments.put(node.comment, comments.CommentTag(REBOOT, decision.id, now_ms))
        slurm.mark_node(node.name, marked)
        why = comments.reason(decision.sentence, decision.id)
        slurm.reboot(node.name, why, give_back=not node.drained and node.base != "DOWN")
        slurm.mark_node(node.name, comments.put(marked, comments.CommentTag(ASKED, decision.id, now_ms)))
    return went(True, say("{node} is to reboot once its work has ended", node=node.name), pending=True)


class CloudNodePower:
    """What was powered for a decision carries its mark in the node's comment, so that nothing is powered twice."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._settings = slurm.settings
        self._hidden = {pool: _hidden(pool, text) for pool, text in self._settings.cloud_nodes.items()}

    def partition(self, pool: str) -> str:
        """The partition of `pool`; empty where it is not to be scaled."""
        return self._settings.partitions.get(pool, "")

    def asleep(self, pool: str, seen: SlurmSnapshot) -> list[str]:
        """Cloud nodes of the pool that can be powered up, by name; those that Slurm hides count as powered down."""
        listed = [
            node.name
            for node in self._members(pool, seen)
            if "POWERED_DOWN" in node.flags and not (node.drained or node.base in ("DOWN", "ERROR"))
        ]
        return sorted(listed + [name for name in self._hidden.get(pool, ()) if name not in seen.nodes])

    def idle(self, pool: str, seen: SlurmSnapshot, only: str = "") -> list[str]:
        """Cloud nodes of the pool without work, the longest idle first; none but `only` where that names one."""
        nodes = [
            node
            for node in self._members(pool, seen)
            if only in ("", node.name)
            and node.cloud
            and node.base == "IDLE"
            and node.schedulable
            and not seen.on(node.name)
        ]
        return [node.name for node in sorted(nodes, key=lambda node: (node.busy_s, node.name))]

    def out(self, decision: Decision, pool: str, seen: SlurmSnapshot, now_ms: int) -> ExecutionResult:
        """Power up what lacks; pending until all of it has reported."""
        mine = _marked(seen, UP, decision.id)
        sleeping = self.asleep(pool, seen)
        # The world shows what a lost answer did: only what is neither marked nor up already is asked for.
        wanted = min(self._wanted(decision, pool, seen), self._settings.max_power_up)
        fresh = [name for name in sleeping if name not in mine][: max(0, wanted - len(mine))]
        for name in fresh:
            self._ask(name, seen, comments.CommentTag(UP, decision.id, now_ms), up=True)
        if fresh:
            return went(True, say("powering up {names}", names=", ".join([*mine, *fresh])), pending=True)
        if not mine:
            where = self.partition(pool)
            return went(False, say("partition {where} has no powered-down cloud node left", where=where), lasting=False)
        return _arrival(list(mine.values()), wanted, now_ms)

    def back(self, decision: Decision, pool: str, seen: SlurmSnapshot, now_ms: int, only: str = "") -> ExecutionResult:
        """Power down idle nodes, none but `only` where that names one."""
        mine = _marked(seen, DOWN, decision.id)
        wanted = self._wanted(decision, pool, seen)
        fresh = self.idle(pool, seen, only)[: max(0, wanted - len(mine))]
        for name in fresh:
            self._ask(name, seen, comments.CommentTag(DOWN, decision.id, now_ms), up=False)
        names = [*mine, *fresh]
        if not names:
            return ExecutionResult(False, none_idle(self.partition(pool), only), lasting=False)
        return went(
            True, say("powering down {names}", names=", ".join(names)), effect={"nodes_down": float(len(names))}
        )

    def seen(self, decision: Decision, what: str, seen: SlurmSnapshot) -> bool | None:
        """Whether what was powered for `decision` is where it should be; None where it shows no such node."""
        mine = _marked(seen, what, decision.id).values()
        if not mine:
            return None
        return all(node.off for node in mine) if what == DOWN else all(node.ready for node in mine)

    def _members(self, pool: str, seen: SlurmSnapshot) -> list[SlurmNode]:
        return [node for node in seen.nodes.values() if self.partition(pool) in node.partitions]

    def _ask(self, name: str, seen: SlurmSnapshot, mark: comments.CommentTag, *, up: bool) -> None:
        known = seen.nodes.get(name)
        self._slurm.power(name, up=up, comment=comments.put("" if known is None else known.comment, mark))

    def _wanted(self, decision: Decision, pool: str, seen: SlurmSnapshot) -> int:
        """``nodes`` of the decision, or as many as hold its ``gpus``; else one."""
        each = max((node.gpus for node in self._members(pool, seen)), default=0)
        return nodes_wanted(scale_parameters(decision), each)


def none_idle(where: str, only: str) -> str:
    """Why nothing is powered down in `where`."""
    return f"{only} is no idle cloud node of {where}" if only else f"no cloud node of {where} is idle"


def _arrival(nodes: list[SlurmNode], wanted: int, now_ms: int) -> ExecutionResult:
    """Once asked for, a node is up, coming, or lost: powered down again or down."""
    up = [node.name for node in nodes if node.ready]
    coming = [node.name for node in nodes if not node.ready and _comes(node, now_ms)]
    lost = [node.name for node in nodes if not (node.ready or _comes(node, now_ms))]
    said = "; ".join(
        f"{word} {', '.join(names)}" for word, names in (("up:", up), ("coming:", coming), ("lost:", lost)) if names
    )
    if coming:
        return ExecutionResult(True, said, pending=True)
    begun = min(mark.at_ms for node in nodes if (mark := comments.find(node.comment, UP)) is not None)
    effect = {"nodes_up": float(len(up)), "scale_out_seconds": (now_ms - begun) / SECOND}
    if len(up) < wanted:
        said = f"{said}; {len(up)} of {wanted} nodes came up"
    return ExecutionResult(bool(up), said, certain=bool(up), effect=effect)


def _comes(node: SlurmNode, now_ms: int) -> bool:
    mark = comments.find(node.comment, UP)
    turning = mark is not None and now_ms - mark.at_ms < TURNING_MS
    return node.coming_up or (node.base != "DOWN" and turning)


def _marked(seen: SlurmSnapshot, what: str, identity: str) -> dict[str, SlurmNode]:
    return {
        name: node
        for name, node in sorted(seen.nodes.items())
        if comments.find(node.comment, what, identity) is not None
    }


def _hidden(pool: str, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        raise InputError(f"slurm.cloud_nodes.{pool}", text, str(error), "write it as gpu-[1-8]") from None
