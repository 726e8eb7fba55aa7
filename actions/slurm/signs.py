"""Open faults of GPUs in the comment of their nodes: ``[tocsin: GPU 3 fell off the bus. (card 0123456789abcdef)]``.

The words of others before it stay, and are all that is left once the fault is over. Nothing in Slurm acts on a comment,
so that it is written in mode `observe` too. What is shown is read from the cluster: a restart goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import Slurm, SlurmProblem, Trouble
from tocsin.config.slurm import SlurmSettings

MOST_WRITES = 20
"""Writes in one look; the rest waits for the next one, so that a fault of the whole fleet is no flood (own choice)."""


@dataclass(frozen=True, slots=True)
class ShownFaults:
    """What a node's comment is to say: the ids of its faults, and the sentence for people.

    The sentence's readings move at every look: only other ids are news.
    """

    ids: tuple[str, ...]
    sentence: str

    @property
    def card(self) -> str:
        """The end of the note, by which one is told from another."""
        more = f" and {len(self.ids) - 1} more" if len(self.ids) > 1 else ""
        return f"(card {self.ids[0]}{more})"

    @property
    def note(self) -> str:
        """The text in the comment."""
        return f"{self.sentence[: comments.MAX_NOTE - len(self.card) - 1].rstrip()} {self.card}"


@dataclass(slots=True)
class CommentCount:
    """What one look wrote, and refusals with the last one's words."""

    written: int = 0
    refused: int = 0
    problem: str = ""


class NodeComments:
    """Keeps the comments as the faults are. For one thread."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def show(self, faults: Mapping[str, ShownFaults], seen: Mapping[str, bool]) -> CommentCount:
        """Show `faults` by host; `seen` has each host with GPUs, and whether its readings are fresh.

        A host whose readings are not fresh keeps what it shows: nothing proves that it is over. Nodes of the cluster
        that are no such hosts are left alone. Raises SlurmProblem where the cluster does not answer.
        """
        count = CommentCount()
        settings = self._slurm.settings
        hosts = {node_of(settings, host): host for host in seen.keys() | faults.keys()}
        nodes = self._slurm.snapshot(settings.snapshot_seconds).nodes
        for name in sorted(hosts.keys() & nodes.keys()):
            fault = faults.get(hosts[name])
            if fault is None and not seen.get(hosts[name], False):
                continue
            if _stands(comments.note_of(nodes[name].comment), fault):
                continue
            if count.written + count.refused >= MOST_WRITES:
                break
            self._write(name, partial(comments.with_note, note=fault.note if fault else ""), count)
        return count

    def _write(self, name: str, change: Callable[[str], str], count: CommentCount) -> None:
        try:
            count.written += self._slurm.change_comment(name, change)
        except SlurmProblem as problem:
            if problem.trouble.passing or problem.trouble is Trouble.NO_LOGIN:
                raise
            count.refused += 1
            count.problem = str(problem)


def _stands(there: str, fault: ShownFaults | None) -> bool:
    """Whether a node's comment is about these faults already."""
    return not there if fault is None else there.endswith(fault.card)


def node_of(settings: SlurmSettings, host: str) -> str:
    """Slurm's name of a host."""
    return settings.hosts.get(host, host.removesuffix(settings.host_suffix))


def hosts_by_node(settings: SlurmSettings) -> Callable[[str], str]:
    """The inverse: what tells the host by which a node of Slurm is known."""
    named = {node: host for host, node in settings.hosts.items()}
    return lambda node: named.get(node, node + settings.host_suffix)
