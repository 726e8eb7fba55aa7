"""Everything that Tocsin wrote in a Slurm cluster is taken back at once: for a person who overrules it, or takes it
away.

A node that it drained, by the reason, is resumed, and its marks and notes go out of the comments of nodes and jobs;
what others drained and wrote stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tocsin.actions.slurm import comments, nodes
from tocsin.actions.slurm.client import Slurm, SlurmProblem
from tocsin.actions.slurm.jobs import HELD
from tocsin.actions.slurm.state import SlurmJob, SlurmNode


@dataclass(frozen=True, slots=True)
class Released:
    """One node, or a job as ``job 7``: what was `taken` back, what was `left` and why, the refusal, empty for none, and
    what of Tocsin's `waits`: nothing here."""

    node: str
    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    error: str = ""
    waits: tuple[str, ...] = ()


def release_all(slurm: Slurm, *, forget: bool = False) -> Iterator[Released]:
    """Take back all of it; nodes and jobs without anything of Tocsin's are passed over.

    With `forget` the ids of ended decisions go too. One that refuses does not keep the others from it. Raises
    SlurmProblem where the cluster does not answer.
    """
    seen = slurm.snapshot()
    for node in sorted(seen.nodes.values(), key=lambda one: one.name):
        found = _release_node(slurm, node, forget=forget)
        if found.taken or found.left or found.error:
            yield found
    for job in {job.ref: job for job in seen.jobs}.values():
        if comments.without_marks(job.admin_comment) != " ".join(job.admin_comment.split()):
            yield _release_job(slurm, job, forget=forget)


def _release_node(slurm: Slurm, node: SlurmNode, *, forget: bool) -> Released:
    taken: list[str] = []
    left: list[str] = []
    ended = comments.without_marks(node.comment) if forget else _ended(node.comment)
    try:
        if nodes.is_ours(node):
            slurm.resume(node.name, ended)
            taken.append("drain")
        elif comments.find(node.comment, nodes.DRAIN) is not None and nodes.foreign(node):
            left.append("the drain is somebody else's by now")
        if ended != node.comment:
            # As it is now: a person may have written since.
            slurm.change_comment(node.name, comments.without_marks if forget else _ended)
            taken.append("comment")
    except SlurmProblem as problem:
        if problem.trouble.passing:
            raise
        return Released(node.name, tuple(taken), tuple(left), str(problem))
    return Released(node.name, tuple(taken), tuple(left))


def _ended(text: str) -> str:
    """A comment without the note about faults, in which what was begun has ended."""
    return comments.turn(comments.without_note(text), nodes.DRAIN, nodes.DRAINED)


def _release_job(slurm: Slurm, job: SlurmJob, *, forget: bool) -> Released:
    held = comments.find(job.admin_comment, HELD) is not None and job.pending
    name, taken = f"job {job.ref}", ["hold"] if held else []
    try:
        if held:
            slurm.release(job)
        kept = comments.without_marks(job.admin_comment) if forget else comments.drop(job.admin_comment, HELD)
        if kept != job.admin_comment:
            slurm.mark_job(job, kept)
            taken.append("comment")
    except SlurmProblem as problem:
        if problem.trouble.passing:
            raise
        return Released(name, tuple(taken), (), str(problem))
    return Released(name, tuple(taken))
