"""What Tocsin asks of Slurm: the state of its nodes and jobs, and the verbs that change them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from tocsin.actions.slurm.parse_json import jobs_of_json, nodes_of_json
from tocsin.actions.slurm.parse_text import jobs_of_text, nodes_of_text
from tocsin.actions.slurm.runner import Runner, SlurmProblem, Trouble, checked
from tocsin.actions.slurm.state import SlurmJob, SlurmNode, Snapshot
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import Clock

Command = Sequence[str]
_T = TypeVar("_T")
_TARGET = {"batch": ("--batch",), "steps": (), "all": ("--full",)}


class Slurm:
    """One cluster. Every method raises SlurmProblem; calls may come from several threads.

    With `plan`, commands that change something are put there and not run.
    """

    def __init__(
        self, settings: SlurmSettings, runner: Runner, clock: Clock, plan: list[Command] | None = None
    ) -> None:
        self.settings = settings
        self._runner = runner
        self._clock = clock
        self._plan = plan
        self._lock = threading.Lock()
        self._known: tuple[float, Snapshot | SlurmProblem] | None = None
        self._latest: tuple[float, Snapshot | SlurmProblem] | None = None
        self._json = True

    def planning(self, plan: list[Command]) -> Slurm:
        """The same cluster, of which nothing is changed: commands go to `plan`."""
        return Slurm(self.settings, self._runner, self._clock, plan)

    def ping(self) -> None:
        """Raises SlurmProblem where no controller is up: other commands take 9 s to find that out."""
        command = ["scontrol", "ping"]
        answer = self._runner.run(command, self.settings.ping_seconds)
        if " is UP" in answer.out:
            return
        if "DOWN" not in answer.out:
            checked(answer, command)
        raise SlurmProblem(Trouble.UNREACHABLE, command, answer.out or answer.err)

    def snapshot(self, max_age_seconds: float = 0.0) -> Snapshot:
        """Nodes and jobs; those of an earlier call, or its failure, where that is at most so old."""
        with self._lock:
            now = self._clock.monotonic()
            known = self._known
            if known is None or max_age_seconds <= 0 or now - known[0] > max_age_seconds:
                known = self._known = self._latest = (now, self._look())
            found = known[1]
        if isinstance(found, SlurmProblem):
            raise found
        return found

    def latest(self, max_age_seconds: float) -> Snapshot | None:
        """What an earlier call of `snapshot` found, also from before the last change; None where it is older.

        Asks Slurm nothing and waits for nobody who does. Raises SlurmProblem where that call failed.
        """
        latest = self._latest
        if latest is None or self._clock.monotonic() - latest[0] > max_age_seconds:
            return None
        if isinstance(latest[1], SlurmProblem):
            raise latest[1]
        return latest[1]

    def _look(self) -> Snapshot | SlurmProblem:
        try:
            self.ping()
            nodes, jobs = self._nodes(), self._jobs()
        except SlurmProblem as problem:
            return problem
        return Snapshot({node.name: node for node in nodes}, tuple(jobs))

    def drain(self, node: str, reason: str, comment: str) -> None:
        """Take no new work; what runs goes on."""
        self._update_node(node, "drain", reason, comment)

    def resume(self, node: str, comment: str) -> None:
        """Give a drained or downed node back. One that is back already is no error."""
        try:
            self._update_node(node, "resume", None, comment)
        except SlurmProblem as problem:
            if problem.trouble is not Trouble.WRONG_STATE:
                raise

    def power(self, node: str, *, up: bool, comment: str) -> None:
        """Power a cloud node up; or down, once the work on it has ended."""
        self._update_node(node, "power_up" if up else "power_down", None, comment)

    def mark_node(self, node: str, comment: str) -> None:
        """Set the comment of a node."""
        self._change(["scontrol", "update", f"nodename={node}", f"comment={comment}"])

    def reboot(self, node: str, reason: str, *, give_back: bool) -> None:
        """Reboot once the work on it has ended; afterwards it takes work, or stays down."""
        after = "RESUME" if give_back else "DOWN"
        self._change(["scontrol", "reboot", "ASAP", f"nextstate={after}", f"reason={reason}", node])

    def signal(self, job: SlurmJob) -> None:
        """Send the checkpoint signal. A job that is long forgotten is no error for scancel."""
        target = _TARGET[self.settings.checkpoint_to]
        self._change(["scancel", *target, f"--signal={self.settings.checkpoint_signal}", job.ref])

    def mark_job(self, job: SlurmJob, comment: str) -> None:
        """Set the administrator's comment of a job."""
        self._change(["scontrol", "update", f"jobid={job.ref}", f"admincomment={comment}"])

    def requeue(self, job: SlurmJob, *, hold: bool = False) -> None:
        """End a job and put it back into the queue; one that is there already is no error."""
        try:
            self._change(["scontrol", "requeuehold" if hold else "requeue", job.ref])
        except SlurmProblem as problem:
            if problem.trouble is not Trouble.JOB_PENDING:
                raise

    def start_soon(self, job: SlurmJob, without: str = "") -> None:
        """Lift the two minutes that Slurm lets a requeued job wait; with `without`, keep it off that node."""
        more = [f"excnodelist={without}"] if without else []
        self._change(["scontrol", "update", f"jobid={job.ref}", "starttime=now", *more])

    def hold(self, job: SlurmJob) -> None:
        """Keep a pending job from starting."""
        self._change(["scontrol", "hold", job.ref])

    def release(self, job: SlurmJob) -> None:
        """Let a held job start."""
        self._change(["scontrol", "release", job.ref])

    def file_seconds(self, path: str) -> float | None:
        """When a file was last changed, as its host says, in seconds since the epoch.

        None where there is none, and where its file system does not answer: one that hangs must not hold up other jobs.
        """
        command = ["stat", "-c", "%.Y", "--", path]
        try:
            answer = self._runner.run(command, self.settings.command_seconds)
        except SlurmProblem as problem:
            if problem.trouble is not Trouble.TIMED_OUT:
                raise
            return None
        try:
            return float(answer.out) if answer.code == 0 else None
        except ValueError:
            return None

    def _nodes(self) -> list[SlurmNode]:
        return self._read(
            ["sinfo", "--all", "--json"],
            nodes_of_json,
            ["scontrol", "--all", "show", "node", "--oneliner"],
            nodes_of_text,
        )

    def _jobs(self) -> list[SlurmJob]:
        return self._read(
            ["squeue", "--all", "--json"],
            jobs_of_json,
            ["scontrol", "--all", "--details", "show", "job", "--oneliner"],
            jobs_of_text,
        )

    def _read(self, command: Command, read: Callable[[str], _T], older: Command, read_older: Callable[[str], _T]) -> _T:
        if self._json:
            try:
                return self._parsed(command, read)
            except SlurmProblem as problem:
                if problem.trouble is not Trouble.UNSUPPORTED:
                    raise
                self._json = False
        return self._parsed(older, read_older)

    def _parsed(self, command: Command, read: Callable[[str], _T]) -> _T:
        out = checked(self._runner.run(command, self.settings.command_seconds), command)
        try:
            return read(out)
        except ValueError as error:
            raise SlurmProblem(Trouble.UNREADABLE, command, f"its output cannot be used: {error}") from None

    def _update_node(self, node: str, state: str, reason: str | None, comment: str) -> None:
        why = [f"reason={reason}"] if reason is not None else []
        self._change(["scontrol", "update", f"nodename={node}", f"state={state}", *why, f"comment={comment}"])

    def _change(self, command: Command) -> None:
        if self._plan is not None:
            self._plan.append(command)
            return
        self._known = None
        checked(self._runner.run(command, self.settings.command_seconds), command)
