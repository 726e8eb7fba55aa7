"""Errors that an operator reads: each names the field, the value found there and the remedy."""

from __future__ import annotations


class TocsinError(Exception):
    """Base of every error that Tocsin raises on purpose; the command line prints it in one line."""

    exit_code = 1


class InputError(TocsinError):
    """Bad input: configuration, telemetry, an API call or a file.

    `field` says where, `value` what was found there, `problem` why that cannot be used, `remedy` what to do about it.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field} = {shown}: {problem}; {remedy}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str, str]]:
        """So that it comes back whole from a process of the forecaster; by itself only its text would."""
        return type(self), (self.field, self.value, self.problem, self.remedy)


class Unavailable(TocsinError):
    """Something outside this process is missing or does not answer: a driver, a library, a server."""

    exit_code = 3


def install_extra(name: str) -> str:
    """The remedy where a library of the extra `name` is missing. Tocsin is on no package index, so not by its name."""
    return f"install Tocsin with the extra {name}: pip install '.[{name}]' in a checkout; the README has it for a wheel"


class Conflict(TocsinError):
    """The request is well formed but contradicts the present state, for example approving what has expired."""

    exit_code = 4


class BudgetSpent(Conflict):
    """What an action would take of the fleet's limits is not there any more: nothing has begun. It names the limit."""
