"""Taking nodes out of service and giving them back: only what nobody else took, only what Tocsin took."""

from __future__ import annotations

import re
from typing import Final

from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import Slurm
from tocsin.actions.slurm.comments import CommentTag
from tocsin.actions.slurm.state import SlurmNode
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import Decision

DRAIN: Final = "drain"
REBOOT: Final = "reboot"
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
    out = node.drained or "FAIL" in node.flags or node.base == "DOWN"
    if not out or not node.reason or comments.is_own(node.reason) or _is_slurms_own(node):
        return ""
    return f"{node.name} was taken out by {node.reason_user or 'someone'}: {node.reason!r}; it is left alone"


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
        said = f"{node.name} was drained for this and somebody gave it back: it is left alone"
        return ExecutionResult(False, said, lasting=False)
    comment = comments.put(node.comment, CommentTag(DRAIN, decision.id, now_ms))
    slurm.drain(node.name, comments.reason(decision.sentence, decision.id), comment)
    return None


def drain_seconds(node: SlurmNode, now_ms: int) -> dict[str, float]:
    """How long its drain has lasted; empty where it was not Tocsin's."""
    mark = comments.find(node.comment, DRAIN)
    return {} if mark is None else {"drain_seconds": max(0, now_ms - mark.at_ms) / SECOND}


def give_back(slurm: Slurm, node: SlurmNode, now_ms: int) -> ExecutionResult:
    """Resume what Tocsin drained."""
    if is_ours(node):
        effect = {f"out_of_service_{name}": value for name, value in drain_seconds(node, now_ms).items()}
        slurm.resume(node.name, comments.drop(node.comment, DRAIN))
        return ExecutionResult(True, f"{node.name} is given back", effect=effect)
    if node.schedulable:
        if comments.find(node.comment, DRAIN) is not None:
            slurm.mark_node(node.name, comments.drop(node.comment, DRAIN))
        return ExecutionResult(True, f"{node.name} was in service already", lasting=False)
    said = foreign(node) or f"{node.name} is {node.base.lower()} ({', '.join(sorted(node.flags)) or 'no flag'})"
    return ExecutionResult(False, f"{said}; it was not Tocsin that took it out", lasting=False)


def reboot(slurm: Slurm, node: SlurmNode, decision: Decision, now_ms: int, *, begun: bool) -> ExecutionResult:
    """Reboot it once the work on it has ended; pending until it has come back with a later boot time.

    `begun` says that this process has asked for it already. What was drained stays out of service afterwards.
    """
    other = foreign(node)
    if other:
        return ExecutionResult(False, other, lasting=False)
    mine = comments.find(node.comment, REBOOT, decision.id)
    if mine is not None and node.boot_s * SECOND > mine.at_ms and _REBOOTING.isdisjoint(node.flags):
        if "NOT_RESPONDING" in node.flags:
            return ExecutionResult(True, f"{node.name} has booted and does not answer yet", pending=True)
        effect = {"reboot_seconds": max(0, now_ms - mine.at_ms) / SECOND}
        return ExecutionResult(True, f"{node.name} has rebooted", effect=effect)
    if not _REBOOTING.isdisjoint(node.flags):
        return ExecutionResult(True, f"{node.name} waits for its reboot", pending=True)
    if mine is not None and begun and node.ready:
        return ExecutionResult(False, f"somebody cancelled the reboot of {node.name}", lasting=False)
    if mine is None or not begun:
        slurm.mark_node(node.name, comments.put(node.comment, CommentTag(REBOOT, decision.id, now_ms)))
        why = comments.reason(decision.sentence, decision.id)
        slurm.reboot(node.name, why, give_back=not node.drained and node.base != "DOWN")
    return ExecutionResult(True, f"{node.name} is to reboot once its work has ended", pending=True)
