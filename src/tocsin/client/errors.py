"""What the API answers besides success, as errors that both its sides raise.

`InputError`, `Conflict` and `Unavailable` of the domain travel as 400, 409 and 503; these are the rest.
"""

from __future__ import annotations

from tocsin.domain.errors import TocsinError, Unavailable


class NotFound(TocsinError):
    """There is no such GPU or decision (404)."""


class Busy(Unavailable):
    """The brain runs but had no answer: it took too long, or answered that it cannot now (429, 503). Ask again."""


class Denied(TocsinError):
    """No token, a wrong token (401), or one whose role does not reach (403); `code` says which."""

    exit_code = 5

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(message)


class BadRequest(TocsinError):
    """The server refuses the request as it stands (400, 413, 415, 422); `details` says which field, `code` why."""

    exit_code = 2

    def __init__(self, message: str, code: str, details: dict[str, object]) -> None:
        self.code = code
        self.details = details
        super().__init__(message)


class ServerFault(TocsinError):
    """The server failed (500), or its answer is not one of this API."""
