"""What every executor offers, and the laws it keeps (``tests/laws/test_executor_laws.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tocsin.actions.view import FleetView
from tocsin.domain.decision import Decision, Verdict
from tocsin.domain.finding import ActionKind

PRE_CHECK = "executor"
"""Name of the pre-check among the guards' verdicts."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How one execution went.

    `certain` is False where a failed execution may have taken effect after all (a request that timed out): it is not
    tried again by itself. `lasting` is False where nothing in the world was changed.
    """

    ok: bool
    detail: str
    attempts: int = 1
    certain: bool = True
    lasting: bool = True


class Executor(Protocol):
    """Carries out decisions.

    Expected failures come back as a result, they are not raised. `execute` under one key twice asks for one effect.
    """

    name: str

    def supports(self, action: ActionKind) -> bool:
        """Whether it can carry out `action` at all."""
        ...

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        """The pre-check, named `PRE_CHECK`: may this decision be carried out by this executor now. Changes nothing."""
        ...

    def execute(self, decision: Decision) -> ExecutionResult:
        """Carry it out."""
        ...

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        """The post-check: whether the effect is seen in `view`; None where it cannot be seen from here."""
        ...

    def inverse(self, decision: Decision) -> Decision | None:
        """The decision that undoes it; None where nothing does."""
        ...
