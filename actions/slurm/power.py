"""Cloud nodes: powered up for more capacity, powered down when idle."""

from __future__ import annotations

from typing import Final

from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.scaling import nodes_wanted, scale_parameters
from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import Slurm
from tocsin.actions.slurm.comments import CommentTag
from tocsin.actions.slurm.hostlist import expand
from tocsin.actions.slurm.state import SlurmNode, Snapshot
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import Decision
from tocsin.domain.errors import InputError

UP: Final = "power_up"
DOWN: Final = "power_down"
TURNING_MS = 30 * SECOND
"""Slurm shows a node as powered down for a moment after it took the request to power it up (own choice)."""


class Power:
    """What was powered for a decision carries its mark in the node's comment, so that nothing is powered twice."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._settings = slurm.settings
        self._hidden = {pool: _hidden(pool, text) for pool, text in self._settings.cloud_nodes.items()}

    def partition(self, pool: str) -> str:
        """The partition of `pool`; empty where it is not to be scaled."""
        return self._settings.partitions.get(pool, "")

    def asleep(self, pool: str, seen: Snapshot) -> list[str]:
        """Cloud nodes of the pool that can be powered up, by name; those that Slurm hides count as powered down."""
        listed = [
            node.name
            for node in self._members(pool, seen)
            if "POWERED_DOWN" in node.flags and not (node.drained or node.base in ("DOWN", "ERROR"))
        ]
        return sorted(listed + [name for name in self._hidden.get(pool, ()) if name not in seen.nodes])

    def idle(self, pool: str, seen: Snapshot, only: str = "") -> list[str]:
        """Cloud nodes of the pool without work, the longest idle first; none but `only` where that names one."""
        nodes = [
            node
            for node in self._members(pool, seen)
            if only in ("", node.name) and node.cloud and _is_idle(node, seen)
        ]
        return [node.name for node in sorted(nodes, key=lambda node: (node.busy_s, node.name))]

    def out(self, decision: Decision, pool: str, seen: Snapshot, now_ms: int) -> ExecutionResult:
        """Power up what lacks; pending until all of it has reported."""
        mine = _marked(seen, UP, decision.id)
        sleeping = self.asleep(pool, seen)
        # The world shows what a lost answer did: only what is neither marked nor up already is asked for.
        wanted = min(self._wanted(decision, pool, seen), self._settings.max_power_up)
        fresh = [name for name in sleeping if name not in mine][: max(0, wanted - len(mine))]
        for name in fresh:
            self._ask(name, seen, CommentTag(UP, decision.id, now_ms), up=True)
        if fresh:
            return ExecutionResult(True, f"powering up {', '.join([*mine, *fresh])}", pending=True)
        if not mine:
            where = self.partition(pool)
            return ExecutionResult(False, f"partition {where} has no powered-down cloud node left", lasting=False)
        return _arrival(list(mine.values()), wanted, now_ms)

    def back(self, decision: Decision, pool: str, seen: Snapshot, now_ms: int, only: str = "") -> ExecutionResult:
        """Power down idle nodes, none but `only` where that names one."""
        mine = _marked(seen, DOWN, decision.id)
        wanted = self._wanted(decision, pool, seen)
        fresh = self.idle(pool, seen, only)[: max(0, wanted - len(mine))]
        for name in fresh:
            self._ask(name, seen, CommentTag(DOWN, decision.id, now_ms), up=False)
        names = [*mine, *fresh]
        if not names:
            return ExecutionResult(False, none_idle(self.partition(pool), only), lasting=False)
        return ExecutionResult(True, f"powering down {', '.join(names)}", effect={"nodes_down": float(len(names))})

    def seen(self, decision: Decision, what: str, seen: Snapshot) -> bool | None:
        """Whether what was powered for `decision` is where it should be; None where it shows no such node."""
        mine = _marked(seen, what, decision.id).values()
        if not mine:
            return None
        return all(node.off for node in mine) if what == DOWN else all(node.ready for node in mine)

    def _members(self, pool: str, seen: Snapshot) -> list[SlurmNode]:
        return [node for node in seen.nodes.values() if self.partition(pool) in node.partitions]

    def _ask(self, name: str, seen: Snapshot, mark: CommentTag, *, up: bool) -> None:
        known = seen.nodes.get(name)
        comment = comments.put("" if known is None else known.comment, mark)
        self._slurm.power(name, up=up, comment=comment)

    def _wanted(self, decision: Decision, pool: str, seen: Snapshot) -> int:
        """``nodes`` of the decision, or as many as hold its ``gpus``; else one."""
        each = max((node.gpus for node in self._members(pool, seen)), default=0)
        return nodes_wanted(scale_parameters(decision), each)


def none_idle(where: str, only: str) -> str:
    """Why nothing is powered down in `where`."""
    return f"{only} is no idle cloud node of {where}" if only else f"no cloud node of {where} is idle"


def _is_idle(node: SlurmNode, seen: Snapshot) -> bool:
    return node.base == "IDLE" and node.schedulable and not seen.on(node.name)


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


def _marked(seen: Snapshot, what: str, identity: str) -> dict[str, SlurmNode]:
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
