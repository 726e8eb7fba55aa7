"""A node's own health check, as Slurm means it: the program that slurmd runs on each node drains that node itself.

It runs on all nodes at the same moment and knows no other's verdict. So it drains only while few are out of service,
looks once more afterwards, and takes its own drain back where too many did the same: a fault of the check must not
empty a cluster. What others drained it leaves alone, and it gives back nothing that it drained earlier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.actions.slurm.client import Slurm, SlurmProblem
from tocsin.actions.slurm.comments import MAX_REASON
from tocsin.actions.slurm.state import SlurmNode
from tocsin.config.slurm import SlurmHealthSettings

REASON_PREFIX = "gpu health: "
"""Start of the reason, as of the scripts beside it. No brain takes it for its own: to give back is a person's."""
_UNPRINTED = re.compile(r"[^A-Za-z0-9 .,:;%/_()\[\]+-]+")


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a scan came to: `bad` where the node should take no work, and a sentence that says why, or that all is well.

    `simulated` GPUs are never acted on.
    """

    bad: bool
    sentence: str
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What was done, in words; `drained` is True where the node is out of service by this run."""

    said: str
    drained: bool = False


class NodeCheck:
    """The check of one node. `may_act` is whether mode and settings allow to drain; else it says what it would do."""

    def __init__(self, slurm: Slurm, settings: SlurmHealthSettings, *, may_act: bool) -> None:
        self._slurm = slurm
        self._settings = settings
        self._may_act = may_act

    def run(self, name: str, verdict: NodeVerdict) -> CheckOutcome:
        """Do what follows from `verdict` for the node with this name in Slurm; never raises SlurmProblem."""
        if not verdict.bad:
            return CheckOutcome("nothing to do")
        if verdict.simulated:
            return CheckOutcome("not drained: its GPUs are simulated")
        try:
            return self._drain(name, verdict)
        except SlurmProblem as problem:
            return CheckOutcome(f"not known to be drained: {problem}")

    def _drain(self, name: str, verdict: NodeVerdict) -> CheckOutcome:
        self._slurm.ping()
        node = self._slurm.node(name)
        if node.out:
            return CheckOutcome(f"out of service already: {node.reason or 'no reason'} ({node.reason_user or 'slurm'})")
        peers = self._slurm.states(node.partitions)
        refused = self._too_many({**peers, name: SlurmNode(name, node.base, node.flags | {"DRAIN"})})
        if refused:
            return CheckOutcome(f"not drained: {refused}")
        if not self._may_act:
            return CheckOutcome('would be drained with actions.mode = "act" and slurm.health.drain')
        reason = reason_of(verdict.sentence)
        self._slurm.drain(name, reason)
        return self._look_again(name, node.partitions, reason)

    def _look_again(self, name: str, partitions: tuple[str, ...], reason: str) -> CheckOutcome:
        """Whether others drained at the same moment, and too many with this one."""
        refused = self._too_many(self._slurm.states(partitions))
        if not refused:
            return CheckOutcome("drained", True)
        if self._slurm.node(name).reason != reason:
            return CheckOutcome("drained, and left to whoever has taken it over", True)
        self._slurm.resume(name)
        return CheckOutcome(f"drained and given back at once: {refused}")

    def _too_many(self, nodes: Mapping[str, SlurmNode]) -> str:
        """Why no node more may be out of service; empty where it may."""
        counted = [node for node in nodes.values() if node.base != "FUTURE" and not node.off]
        out, most = sum(node.out for node in counted), max(1, int(self._settings.max_share * len(counted)))
        if out <= most:
            return ""
        return f"{out} of {len(counted)} nodes would be out of service, at most {most} may (slurm.health.max_share)"


def reason_of(sentence: str) -> str:
    """The reason of a drain: one line of plain characters, as Slurm keeps it whole."""
    plain = " ".join(_UNPRINTED.sub(" ", sentence).split())
    return f"{REASON_PREFIX}{plain}"[:MAX_REASON].rstrip()
