"""What every executor offers, and the laws it keeps (``tests/laws/test_executor_laws.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tocsin.actions.model.view import FleetView
from tocsin.actions.planning.facts import NodeState, WorkloadSeen
from tocsin.domain.decision import Decision, Ruling, Verdict
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import ActionKind
from tocsin.domain.phrase import Phrase, in_chinese

PRE_CHECK = "executor"
"""Name of the pre-check among the guards' verdicts."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How one execution went.

    `certain` is False where a failed execution may have taken effect after all (a request that timed out): it is not
    tried again by itself. `lasting` is False where nothing in the world was changed. `pending` is True where it has
    begun and goes on: the loop calls `execute` under the same key again until it is not. `effect` holds what was
    measured, by name with its unit, such as ``drain_seconds`` or ``pods_evicted``. `unserved` is True where the manager
    gave no service: no answer, or credentials or rights that it refused. `said` is `detail` as a phrase, for other
    languages; None where it is a text alone (`went` makes both of one phrase).
    """

    ok: bool
    detail: str
    attempts: int = 1
    certain: bool = True
    lasting: bool = True
    pending: bool = False
    effect: Mapping[str, float] = field(default_factory=dict)
    unserved: bool = False
    said: Phrase | None = None

    @property
    def detail_zh(self) -> str:
        """`detail` in Chinese; empty where there is English alone."""
        return in_chinese(self.said)


def went(ok: bool, said: Phrase, **rest: Any) -> ExecutionResult:
    """A result whose `detail` is told in Chinese too; `rest` are its other fields."""
    return ExecutionResult(ok, str(said), said=said, **rest)


def hold(said: Phrase, until_ms: int | None = None) -> Verdict:
    """The pre-check's *not now*, told in Chinese too."""
    return Verdict(PRE_CHECK, Ruling.HOLD, str(said), until_ms, said=said)


def deny(said: Phrase, until_ms: int | None = None) -> Verdict:
    """The pre-check's *never*, told in Chinese too."""
    return Verdict(PRE_CHECK, Ruling.DENY, str(said), until_ms, said=said)


class ManagerUnavailable(TocsinError):
    """The manager does not answer, or refuses; the message says which one, what was asked and what to do."""


class Executor(Protocol):
    """Carries out decisions.

    Expected failures come back as a result, they are not raised. `execute` under one key twice asks for one effect.
    `resumable` says that `execute` under a key that another process began goes on with it, from what the world shows.
    Calls come from several threads, those about one decision one after another.
    """

    name: str
    resumable: bool

    def supports(self, action: ActionKind) -> bool:
        """Whether it can carry out `action` at all."""

    def serves(self, decision: Decision) -> bool:
        """Whether `decision`, of an action that it supports, is its own: by subject and parameters alone."""

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        """The pre-check, named `PRE_CHECK`: may this decision be carried out by this executor now. Changes nothing."""

    def execute(self, decision: Decision) -> ExecutionResult:
        """Carry it out, or go on with it; returns within seconds, `pending` where there is more to do."""

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        """The post-check: whether the effect is seen in `view`; None where it cannot be seen from here."""

    def inverse(self, decision: Decision) -> Decision | None:
        """The decision that undoes it; None where nothing does."""


@runtime_checkable
class SeesNodes(Protocol):
    """What an executor also offers where its manager shows the state of nodes."""

    def nodes(self) -> Mapping[str, NodeState]:
        """Every node of the manager by host name; raises ManagerUnavailable."""


@runtime_checkable
class SeesWorkloads(Protocol):
    """What an executor also offers where its manager tells of the work on GPUs what planners need."""

    def work(self) -> WorkloadSeen:
        """The work that runs now; raises ManagerUnavailable."""


@runtime_checkable
class LooksAfter(Protocol):
    """What an executor also offers where marks that it left in the world run out, and where rights may be lacking."""

    def upkeep(self) -> Sequence[str]:
        """Take back what has run out; names of what it was taken back from. Raises ManagerUnavailable."""

    def missing_rights(self) -> Sequence[object]:
        """What the manager would refuse of all that the settings turn on, one printable thing each.

        Raises ManagerUnavailable.
        """


@runtime_checkable
class Closes(Protocol):
    """What an executor also offers where it holds connections."""

    def close(self) -> None:
        """Let go of them; safe to repeat."""
