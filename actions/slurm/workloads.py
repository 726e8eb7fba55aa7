"""What Slurm tells of its running jobs: priority, when they end, whether they may be requeued, their checkpoints."""

from __future__ import annotations

from tocsin.actions.planning.facts import WorkloadFacts, WorkloadSeen
from tocsin.actions.slurm.client import Slurm
from tocsin.actions.slurm.moving import PROOF_WORD, checkpoint_path
from tocsin.actions.slurm.state import SlurmJob
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import SECOND


def work_seen(slurm: Slurm, now_ms: int) -> WorkloadSeen:
    """Every active job under its number, as `slurm` showed it within the last look. Raises SlurmProblem."""
    seen = slurm.snapshot(slurm.settings.snapshot_seconds)
    jobs = [job for job in seen.jobs if job.active]
    return WorkloadSeen({f"slurm/{job.number}": _facts(slurm, job, now_ms) for job in jobs})


def _facts(slurm: Slurm, job: SlurmJob, now_ms: int) -> WorkloadFacts:
    settings = slurm.settings
    return WorkloadFacts(
        priority=job.priority,
        lost_s=_lost_s(slurm, job, now_ms),
        checkpoint_s=settings.checkpoint_wait_seconds if _can_be_asked(job, settings) else None,
        ends_in_s=max(0.0, job.end_s - now_ms / SECOND) if job.end_s else None,
        movable=job.batch and job.requeue and not job.required_nodes and _can_be_asked(job, settings),
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
