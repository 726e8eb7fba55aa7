"""Running jobs: what Slurm tells of them, and how they are asked to checkpoint, waited for and requeued."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tocsin.actions.planning.facts import WorkloadFacts, WorkloadSeen
from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import Slurm, SlurmProblem, Trouble
from tocsin.actions.slurm.signs import hosts_by_node
from tocsin.actions.slurm.state import SlurmJob, SlurmSnapshot
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import SECOND
from tocsin.domain.words import counted

CHECKPOINT: Final = "checkpoint"
REQUEUE: Final = "requeue"
HELD: Final = "held"
NOTICE_MARGIN_MS = 10 * SECOND
"""Time kept before the end of a notice for ending a job and writing the rest (own choice)."""
PROOF_WORD = "checkpointed="
_ENDED = frozenset({Trouble.UNKNOWN_JOB, Trouble.JOB_PENDING})


@dataclass(frozen=True, slots=True)
class JobTask:
    """What is to be done about the jobs of `node` for the decision `id`.

    `requeue` also moves them, `exclude` keeps them off the node afterwards. `deadline_ms` is when the node goes away by
    itself, None where it does not. `wanted` picks the jobs.
    """

    id: str
    node: str
    requeue: bool
    exclude: bool = False
    deadline_ms: int | None = None
    wanted: Callable[[SlurmJob], bool] = lambda _: True


@dataclass
class JobTaskProgress:
    """How far a task is, by the jobs' names: `left` ones will not be touched, for the reason that it gives."""

    asked: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    proved: list[str] = field(default_factory=list)
    requeued: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    checkpoint_ms: int = 0
    """Longest time from the signal to the proof, or to the requeue."""

    @property
    def done(self) -> bool:
        return not self.waiting

    def text(self) -> str:
        parts = [
            f"{counted(len(self.waiting), 'job')} under way ({_listed(self.waiting)})" if self.waiting else "",
            f"{counted(len(self.proved), 'job')} checkpointed ({_listed(self.proved)})" if self.proved else "",
            f"{counted(len(self.requeued), 'job')} requeued ({_listed(self.requeued)})" if self.requeued else "",
            *(f"job {ref} is left running: {why}" for ref, why in self.left.items()),
        ]
        return "; ".join(part for part in parts if part) or "no job is concerned"

    def effect(self) -> dict[str, float]:
        found = {
            "jobs_checkpointed": float(len(self.proved)),
            "jobs_requeued": float(len(self.requeued)),
            "jobs_left": float(len(self.left)),
        }
        return found | ({"checkpoint_seconds": self.checkpoint_ms / SECOND} if self.checkpoint_ms else {})


class JobMover:
    """Asks jobs to checkpoint and requeues them, one step a call, from what the cluster shows.

    What was begun for a job stands in its administrator's comment and nowhere else, so that a restart goes on where the
    last process was:

    - The signal comes before its tag. Killed in between, the job is asked once more, which costs a checkpoint; the
      other way round it would be waited for and requeued without one, which loses work.
    - The tag of a requeue comes before the requeue, since the job loses its nodes with it: by the tag it is still found
      among the jobs that are on no node.
    - A job that was asked lately, for whatever decision, is not asked again: its proof serves both.
    """

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._settings = slurm.settings

    def tend(self, task: JobTask, seen: SlurmSnapshot, now_ms: int) -> JobTaskProgress:
        """Do what is next for each job; raises SlurmProblem where the cluster does not take it."""
        progress = JobTaskProgress()
        on_node = seen.on(task.node)
        for job in _once(job for job in on_node if task.wanted(job)):
            try:
                self._tend_one(task, job, progress, now_ms)
            except SlurmProblem as problem:
                if problem.trouble is Trouble.NOT_REQUEUEABLE:
                    progress.left[job.ref] = "it may not be requeued"
                elif problem.trouble not in _ENDED:
                    raise
        active = {job.ref for job in on_node}
        for job in _once(job for job in seen.jobs if job.ref not in active):
            self._follow(task, job, progress)
        return progress

    def release_held(self, seen: SlurmSnapshot, drain_id: str) -> list[str]:
        """Release the jobs that were requeued in held state for a drain, and name them."""
        released = []
        for job in _once(job for job in seen.jobs if job.pending):
            if comments.find(job.admin_comment, HELD, drain_id) is not None:
                self._slurm.release(job)
                self._slurm.start_soon(job)
                self._slurm.mark_job(job, comments.drop(job.admin_comment, HELD))
                released.append(job.ref)
        return released

    def _tend_one(self, task: JobTask, job: SlurmJob, progress: JobTaskProgress, now_ms: int) -> None:
        if job.state == "COMPLETING":
            progress.waiting.append(job.ref)
            return
        why = self._unmovable(task, job)
        if why:
            progress.left[job.ref] = why
            return
        asked = comments.find(job.admin_comment, CHECKPOINT, task.id) or comments.find(job.admin_comment, CHECKPOINT)
        if asked is None or (asked.id != task.id and now_ms - asked.at_ms > self._wait_ms):
            self._slurm.signal(job)
            tag = comments.CommentTag(CHECKPOINT, task.id, now_ms)
            self._slurm.mark_job(job, comments.put(job.admin_comment, tag))
            progress.asked.append(job.ref)
            progress.waiting.append(job.ref)
            return
        proof_ms = self._proof(job, asked, now_ms)
        over = now_ms >= self._end_ms(task, asked)
        if proof_ms is not None:
            progress.checkpoint_ms = max(progress.checkpoint_ms, proof_ms - asked.at_ms)
        if proof_ms is None and not over:
            progress.waiting.append(job.ref)
        elif not task.requeue:
            self._conclude(job, proof_ms, progress)
        elif proof_ms is not None or self._settings.without_proof == "requeue" or task.deadline_ms is not None:
            self._requeue(task, job, now_ms)
            progress.waiting.append(job.ref)
        else:
            self._conclude(job, None, progress)

    def _conclude(self, job: SlurmJob, proof_ms: int | None, progress: JobTaskProgress) -> None:
        if proof_ms is not None:
            progress.proved.append(job.ref)
        else:
            progress.left[job.ref] = f"it gave no proof of a checkpoint within {self._wait_ms / SECOND:g} s"

    def _unmovable(self, task: JobTask, job: SlurmJob) -> str:
        word = self._settings.opt_in_comment
        if not job.batch:
            return "it is no batch job"
        if task.requeue and not job.requeue:
            return "it may not be requeued"
        if word and word not in job.comment.split():
            return f"its comment does not say {word}"
        if task.requeue and task.node in job.required_nodes:
            return f"it asks for {task.node} by name"
        return ""

    def _requeue(self, task: JobTask, job: SlurmJob, now_ms: int) -> None:
        held = self._settings.requeue_held
        comment = comments.put(job.admin_comment, comments.CommentTag(REQUEUE, task.id, now_ms))
        self._slurm.mark_job(
            job, comments.put(comment, comments.CommentTag(HELD, task.id, now_ms)) if held else comment
        )
        self._slurm.requeue(job, hold=held)

    def _follow(self, task: JobTask, job: SlurmJob, progress: JobTaskProgress) -> None:
        """A requeued job: Slurm lets it wait for two minutes, and forgets a start time set while it still ends."""
        mark = comments.find(job.admin_comment, REQUEUE, task.id)
        if mark is None:
            return
        asked = comments.find(job.admin_comment, CHECKPOINT, task.id)
        if asked is not None:
            progress.checkpoint_ms = max(progress.checkpoint_ms, mark.at_ms - asked.at_ms)
        if job.pending and job.reason == "BeginTime":
            self._slurm.start_soon(job, task.node if task.exclude else "")
            progress.waiting.append(job.ref)
        else:
            progress.requeued.append(job.ref)

    @property
    def _wait_ms(self) -> int:
        return round(self._settings.checkpoint_wait_seconds * SECOND)

    def _end_ms(self, task: JobTask, asked: comments.CommentTag) -> int:
        end = asked.at_ms + self._wait_ms
        return end if task.deadline_ms is None else min(end, task.deadline_ms - NOTICE_MARGIN_MS)

    def _proof(self, job: SlurmJob, asked: comments.CommentTag, now_ms: int) -> int | None:
        """When the job showed that it has checkpointed since it was asked; None where it has not."""
        if self._settings.checkpoint_proof == "time":
            return asked.at_ms + self._wait_ms if now_ms >= asked.at_ms + self._wait_ms else None
        if self._settings.checkpoint_proof == "comment":
            said = [_seconds(word.removeprefix(PROOF_WORD)) for word in job.comment.split() if PROOF_WORD in word]
            # The comment knows whole seconds: the one in which the job was asked counts.
            return next((at * SECOND for at in said if at * SECOND >= asked.at_ms - asked.at_ms % SECOND), None)
        changed = self._slurm.file_seconds(checkpoint_path(self._settings, job))
        return None if changed is None or changed * SECOND < asked.at_ms else round(changed * SECOND)


def checkpoint_path(settings: SlurmSettings, job: SlurmJob) -> str:
    """The file that `job` renews when it has checkpointed."""
    words = {"%w": job.folder, "%j": job.ref, "%u": job.user}
    path = settings.checkpoint_file
    for sign, value in words.items():
        path = path.replace(sign, value)
    return path


def _once(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Each name once: the parts of a heterogeneous job are changed together."""
    return list({job.ref: job for job in jobs}.values())


def _seconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else 0


def _listed(refs: list[str]) -> str:
    shown = ", ".join(refs[:8])
    return f"{shown} and {len(refs) - 8} more" if len(refs) > 8 else shown


def work_seen(slurm: Slurm, now_ms: int) -> WorkloadSeen:
    """Every active job under its number, as `slurm` showed it within the last look. Raises SlurmProblem."""
    seen = slurm.snapshot(slurm.settings.snapshot_seconds)
    jobs = [job for job in seen.jobs if job.active]
    host_of = hosts_by_node(slurm.settings)
    hosts: dict[int, frozenset[str]] = {}
    for job in jobs:
        # Parts of a heterogeneous job, and tasks of an array, may share a number.
        hosts[job.number] = hosts.get(job.number, frozenset()) | frozenset(map(host_of, job.nodes))
    return WorkloadSeen({f"slurm/{job.number}": _facts(slurm, job, hosts[job.number], now_ms) for job in jobs})


def _facts(slurm: Slurm, job: SlurmJob, hosts: frozenset[str], now_ms: int) -> WorkloadFacts:
    settings = slurm.settings
    return WorkloadFacts(
        priority=job.priority,
        lost_s=_lost_s(slurm, job, now_ms),
        checkpoint_s=settings.checkpoint_wait_seconds if _can_be_asked(job, settings) else None,
        ends_in_s=max(0.0, job.end_s - now_ms / SECOND) if job.end_s else None,
        movable=job.batch and job.requeue and not job.required_nodes and _can_be_asked(job, settings),
        account=job.account,
        user=job.user,
        hosts=hosts,
    )


def _can_be_asked(job: SlurmJob, settings: SlurmSettings) -> bool:
    """Whether it is a batch job that has said that it takes the signal."""
    word = settings.opt_in_comment
    return job.batch and (not word or word in job.comment.split())


def _lost_s(slurm: Slurm, job: SlurmJob, now_ms: int) -> float | None:
    """Seconds since the last checkpoint that it showed, else since its start: more than that cannot be lost.

    None where not even the start is known.
    """
    shown = _shown_s(slurm, job)
    since_s = max(shown, job.start_s) if shown is not None else job.start_s
    return max(0.0, now_ms / SECOND - since_s) if since_s else None


def _shown_s(slurm: Slurm, job: SlurmJob) -> float | None:
    proof = slurm.settings.checkpoint_proof
    if proof == "file":
        return slurm.file_seconds(checkpoint_path(slurm.settings, job))
    if proof == "comment":
        said = [word.removeprefix(PROOF_WORD) for word in job.comment.split() if word.startswith(PROOF_WORD)]
        return next((float(one) for one in said if one.isascii() and one.isdecimal() and len(one) <= 12), None)
    return None
