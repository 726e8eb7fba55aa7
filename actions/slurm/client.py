"""What Tocsin asks of Slurm: the state of its nodes and jobs, and the verbs that change them.

Each command has a deadline, and its error text says what went wrong.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Protocol, TypeVar

from tocsin.actions.model.executor import ManagerUnavailable
from tocsin.actions.slurm.state import (
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    jobs_of_json,
    jobs_of_text,
    nodes_of_json,
    nodes_of_text,
    states_of_text,
)
from tocsin.actions.slurm.topology import Places, places_of_text
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import Clock, SystemClock
from tocsin.domain.place import PlaceKind
from tocsin.telemetry.log import logger

_log = logger("slurm")

_GRACE_SECONDS = 1.0
_PIECE = 64 * 1024
MOST_BYTES = 256 * 1024 * 1024
"""Of one answer: 10,000 nodes are some 30 MB (own choice)."""
MAX_SAID = 200
_MOST_TOLD = 4_096
"""Letters of what a command that failed printed which are looked through."""


class Trouble(StrEnum):
    """Why a command did not do what it was asked."""

    UNREACHABLE = "unreachable"
    """The controller does not answer; nothing was changed."""
    TIMED_OUT = "timed_out"
    """No end within the deadline; it may have taken effect."""
    NO_PROGRAM = "no_program"
    NO_CONFIG = "no_config"
    NO_LOGIN = "no_login"
    """slurmrestd does not take user and token."""
    NOT_PERMITTED = "not_permitted"
    UNKNOWN_NODE = "unknown_node"
    UNKNOWN_JOB = "unknown_job"
    WRONG_STATE = "wrong_state"
    """The node cannot go there from where it is, such as resume of one that is idle."""
    NOT_REQUEUEABLE = "not_requeueable"
    JOB_PENDING = "job_pending"
    NO_REASON = "no_reason"
    UNSUPPORTED = "unsupported"
    """This version of Slurm does not know the option or field."""
    UNREADABLE = "unreadable"
    OTHER = "other"

    @property
    def passing(self) -> bool:
        """Whether the same command may work in a moment."""
        return self in (Trouble.UNREACHABLE, Trouble.TIMED_OUT)


_TEXTS: tuple[tuple[str, Trouble], ...] = (
    (r"unable to contact slurm controller|connection refused|socket timed out|zero bytes were", Trouble.UNREACHABLE),
    (r"slurmctld config is unable to load", Trouble.UNREACHABLE),
    (r"could not establish a configuration source|cannot stat file|fetch_config", Trouble.NO_CONFIG),
    (r"unrecognized option|invalid option|update of this parameter is not supported", Trouble.UNSUPPORTED),
    (r"no such plugin|could not load.*serializer|json.*not (available|supported)", Trouble.UNSUPPORTED),
    (r"must specify a reason", Trouble.NO_REASON),
    (r"access/permission denied|invalid user id|must be .*operator|not authorized", Trouble.NOT_PERMITTED),
    (r"invalid node name|node \S+ not found|invalid node", Trouble.UNKNOWN_NODE),
    (r"invalid job id", Trouble.UNKNOWN_JOB),
    (r"job is pending execution|job .* pending", Trouble.JOB_PENDING),
    (r"requested operation is presently disabled", Trouble.NOT_REQUEUEABLE),
)
"""Recorded from 22.05.8 (tests/data/slurm); the first that fits counts."""
_WRONG_STATE = re.compile(r"invalid node state|not all states are valid", re.IGNORECASE)
_REMEDY = {
    Trouble.UNREACHABLE: "start slurmctld, or see whether it can be reached from here",
    Trouble.NO_PROGRAM: "install Slurm's commands here, or set slurm.command to reach a host that has them",
    Trouble.NO_LOGIN: "renew the token in slurm.rest_token_file, or ask a unix socket as slurmrestd's own user",
    Trouble.NO_CONFIG: "set slurm.conf to the cluster's slurm.conf",
    Trouble.NOT_PERMITTED: "run Tocsin as SlurmUser, or give its user AdminLevel=Operator",
}


class SlurmProblem(ManagerUnavailable):
    """A command failed; `trouble` says how."""

    def __init__(self, trouble: Trouble, command: Sequence[str], said: str) -> None:
        self.trouble = trouble
        remedy = f"; {_REMEDY[trouble]}" if trouble in _REMEDY else ""
        super().__init__(f"Slurm: {' '.join(command[:3])}: {_first_line(said) or trouble}{remedy}")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str = ""


class Runner(Protocol):
    """Runs commands where Slurm's are."""

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        """Run `command` to its end; raises SlurmProblem where it cannot be run or does not end within `seconds`."""


class CommandRunner:
    """Runs them as processes of this host, with the words of ``slurm.command`` before each."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._prefix = list(settings.command)
        # Behind `sudo`, `env` or `timeout` as well: ssh hands its words to a shell.
        self._quoted = settings.remote_shell or any(PurePath(word).name == "ssh" for word in self._prefix)
        self._environment = {**os.environ, "LC_ALL": "C"}
        if settings.conf is not None:
            self._environment["SLURM_CONF"] = str(settings.conf)

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        words = [shlex.quote(word) for word in command] if self._quoted else list(command)
        try:
            child = subprocess.Popen(
                [*self._prefix, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
            )
        except OSError as error:
            raise SlurmProblem(Trouble.NO_PROGRAM, command, error.strerror or str(error)) from None
        try:
            printed = _printed(child, seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            raise SlurmProblem(Trouble.TIMED_OUT, command, f"no end within {seconds:g} s") from None
        if printed is None:
            _end(child)
            raise SlurmProblem(Trouble.UNREADABLE, command, f"an answer of more than {MOST_BYTES >> 20} MiB")
        out, err = (text.decode("utf-8", "replace") for text in printed)
        return CommandResult(child.returncode, out, err)


def _printed(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes] | None:
    """What a child prints to its end; None where it is too much. Raises subprocess.TimeoutExpired."""
    clock = SystemClock()
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = bytearray(), bytearray()
    until = clock.monotonic() + seconds
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ, out)
        ready.register(child.stderr, selectors.EVENT_READ, err)
        while ready.get_map():
            if (left := until - clock.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(child.args, seconds)
            for key, _ in ready.select(left):
                if not (piece := os.read(key.fd, _PIECE)):
                    ready.unregister(key.fileobj)
                key.data.extend(piece)
            if len(out) + len(err) > MOST_BYTES:
                return None
    child.wait(max(0.0, until - clock.monotonic()))
    child.stdout.close()
    child.stderr.close()
    return bytes(out), bytes(err)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it without waiting for a child of it that has the pipes."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_SECONDS)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def trouble_of(answer: CommandResult) -> Trouble | None:
    """What went wrong; None where nothing did."""
    if answer.code == 0:
        return None
    said = f"{answer.err[:_MOST_TOLD]}\n{answer.out[:_MOST_TOLD]}".lower()
    if _WRONG_STATE.search(said):
        return Trouble.WRONG_STATE
    return next((trouble for text, trouble in _TEXTS if re.search(text, said)), Trouble.OTHER)


def checked(answer: CommandResult, command: Sequence[str]) -> str:
    """What a command printed; raises SlurmProblem where it failed."""
    trouble = trouble_of(answer)
    if trouble is None:
        return answer.out
    raise SlurmProblem(trouble, command, answer.err.strip() or answer.out.strip() or f"exit {answer.code}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text[:_MOST_TOLD].splitlines() if line.strip()), "")[:MAX_SAID]


Command = Sequence[str]
_T = TypeVar("_T")
_CHANGES = threading.Lock()
"""Held while something is changed: between the look and the write of `Slurm.change_comment` no other write may come."""
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
        self._known: tuple[float, SlurmSnapshot | SlurmProblem] | None = None
        self._latest: tuple[float, SlurmSnapshot | SlurmProblem] | None = None
        self._json = True
        self._places: tuple[float, Places] | None = None

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

    def snapshot(self, max_age_seconds: float = 0.0) -> SlurmSnapshot:
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

    def places(self) -> Places:
        """Switches and blocks of the nodes, asked every `slurm.topology_seconds`; where that fails, what was known."""
        settings, now = self.settings, self._clock.monotonic()
        known = self._places
        if not settings.topology_seconds or (known is not None and now - known[0] <= settings.topology_seconds):
            return known[1] if known is not None else {}
        blocks = None if settings.blocks == "none" else PlaceKind(settings.blocks)
        try:
            found = self._parsed(["scontrol", "show", "topology"], lambda text: places_of_text(text, blocks))
        except SlurmProblem as problem:
            _log.warning("Slurm tells no topology", problem=str(problem))
            found = known[1] if known is not None else {}
        self._places = (now, found)
        return found

    def latest(self, max_age_seconds: float) -> SlurmSnapshot | None:
        """What an earlier call of `snapshot` found, also from before the last change; None where it is older.

        Asks Slurm nothing and waits for nobody who does. Raises SlurmProblem where that call failed.
        """
        latest = self._latest
        if latest is None or self._clock.monotonic() - latest[0] > max_age_seconds:
            return None
        if isinstance(latest[1], SlurmProblem):
            raise latest[1]
        return latest[1]

    def _look(self) -> SlurmSnapshot | SlurmProblem:
        try:
            self.ping()
            nodes = self._read(
                ["sinfo", "--all", "--json"],
                nodes_of_json,
                ["scontrol", "--all", "show", "node", "--oneliner"],
                nodes_of_text,
            )
            jobs = self._read(
                ["squeue", "--all", "--json"],
                jobs_of_json,
                ["scontrol", "--all", "--details", "show", "job", "--oneliner"],
                jobs_of_text,
            )
        except SlurmProblem as problem:
            return problem
        return SlurmSnapshot({node.name: node for node in nodes}, tuple(jobs))

    def drain(self, node: str, reason: str, comment: str | None = None) -> None:
        """Take no new work; what runs goes on. Without a comment the node keeps its own."""
        self._update_node(node, "drain", reason, comment)

    def resume(self, node: str, comment: str | None = None) -> None:
        """Give a drained or downed node back, without a comment with its own. One that is back already is no error."""
        try:
            self._update_node(node, "resume", None, comment)
        except SlurmProblem as problem:
            if problem.trouble is not Trouble.WRONG_STATE:
                raise

    def power(self, node: str, *, up: bool, comment: str) -> None:
        """Power a cloud node up; or down, once the work on it has ended."""
        self._update_node(node, "power_up" if up else "power_down", None, comment)

    def mark_node(self, node: str, comment: str) -> None:
        self._change(["scontrol", "update", f"nodename={node}", f"comment={comment}"])

    def node(self, name: str) -> SlurmNode:
        """One node, as it is now."""
        # Of a cluster of thousands, sinfo prints all of them in JSON whichever are asked for.
        command = ["scontrol", "--all", "show", "node", name, "--oneliner"]
        found = self._parsed(command, lambda out: (nodes_of_json if out[:1] == "{" else nodes_of_text)(out))
        known = next((each for each in found if each.name == name), None)
        if known is None:
            raise SlurmProblem(Trouble.UNKNOWN_NODE, command, f"{name} not found")
        return known

    def states(self, partitions: Sequence[str]) -> dict[str, SlurmNode]:
        """The nodes of `partitions`, of all where none are given, with nothing but their state."""
        # sinfo takes one of the two: a partition that is named is shown, hidden or not.
        which = f"--partition={','.join(partitions)}" if partitions else "--all"
        return self._parsed(["sinfo", which, "--noheader", "--Node", "--format=%N|%T"], states_of_text)

    def change_comment(self, node: str, change: Callable[[str], str]) -> bool:
        """Put `change` of a node's comment in its place; whether it differs. Slurm has no way to write only if nobody
        else has: what another program writes in that moment is lost."""
        with _CHANGES:
            known = self.node(node)
            comment = change(known.comment)
            if comment == known.comment:
                return False
            self._do_change(["scontrol", "update", f"nodename={node}", f"comment={comment}"])
        return True

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
        self._change(["scontrol", "hold", job.ref])

    def release(self, job: SlurmJob) -> None:
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

    def _update_node(self, node: str, state: str, reason: str | None, comment: str | None) -> None:
        more = [f"reason={reason}"] if reason is not None else []
        more += [f"comment={comment}"] if comment is not None else []
        self._change(["scontrol", "update", f"nodename={node}", f"state={state}", *more])

    def _change(self, command: Command) -> None:
        with _CHANGES:
            self._do_change(command)

    def _do_change(self, command: Command) -> None:
        if self._plan is not None:
            self._plan.append(command)
            return
        self._known = None
        checked(self._runner.run(command, self.settings.command_seconds), command)
