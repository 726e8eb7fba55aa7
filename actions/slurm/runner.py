"""Running Slurm's commands, each with a deadline, and what their error texts mean."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Protocol

from tocsin.actions.model.executor import ManagerUnavailable
from tocsin.config.slurm import SlurmSettings

_GRACE_SECONDS = 1.0
MAX_SAID = 200


class Trouble(StrEnum):
    """Why a command did not do what it was asked."""

    UNREACHABLE = "unreachable"
    """The controller does not answer; nothing was changed."""
    TIMED_OUT = "timed_out"
    """No end within the deadline; it may have taken effect."""
    NO_PROGRAM = "no_program"
    NO_CONFIG = "no_config"
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
class Answer:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str = ""


class Runner(Protocol):
    """Runs commands where Slurm's are."""

    def run(self, command: Sequence[str], seconds: float) -> Answer:
        """Run `command` to its end; raises SlurmProblem where it cannot be run or does not end within `seconds`."""
        ...


class CommandRunner:
    """Runs them as processes of this host, with the words of ``slurm.command`` before each."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._prefix = list(settings.command)
        # Behind `sudo`, `env` or `timeout` as well: ssh hands its words to a shell.
        self._quoted = settings.remote_shell or any(PurePath(word).name == "ssh" for word in self._prefix)
        self._environment = {**os.environ, "LC_ALL": "C"}
        if settings.conf is not None:
            self._environment["SLURM_CONF"] = str(settings.conf)

    def run(self, command: Sequence[str], seconds: float) -> Answer:
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
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            raise SlurmProblem(Trouble.TIMED_OUT, command, f"no end within {seconds:g} s") from None
        return Answer(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it without waiting for a child of it that has the pipes."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_SECONDS)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def trouble_of(answer: Answer) -> Trouble | None:
    """What went wrong; None where nothing did."""
    if answer.code == 0:
        return None
    said = f"{answer.err}\n{answer.out}".lower()
    if _WRONG_STATE.search(said):
        return Trouble.WRONG_STATE
    return next((trouble for text, trouble in _TEXTS if re.search(text, said)), Trouble.OTHER)


def checked(answer: Answer, command: Sequence[str]) -> str:
    """What a command printed; raises SlurmProblem where it failed."""
    trouble = trouble_of(answer)
    if trouble is None:
        return answer.out
    raise SlurmProblem(trouble, command, answer.err.strip() or answer.out.strip() or f"exit {answer.code}")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:MAX_SAID]
