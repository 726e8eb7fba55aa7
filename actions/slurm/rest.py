"""slurmrestd as a second way to Slurm: commands that it serves become requests, the others are run.

Every wait is bounded by the command's deadline, past which an answer is given up, and so is its size. A token is sent
in a header alone and stands in no message.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import httpx2

from tocsin.actions.slurm.client import MOST_BYTES, CommandResult, CommandRunner, Runner, SlurmProblem, Trouble
from tocsin.actions.slurm.rest_calls import (
    NEWEST,
    OLDEST,
    RestCall,
    Served,
    call_of,
    ping_lines,
    problems_of,
    served_of,
)
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import SECOND, Clock
from tocsin.http_client import http_client

MOST_TOKEN = 16 * 1024
"""Bytes of a token: a header of more is refused by every server."""
DESCRIBED_SECONDS = 3600.0
"""Age up to which what the server serves is taken as known: it changes with an upgrade alone (own choice)."""
_DESCRIPTION = RestCall("GET", "/openapi/v3", reads=True)
_BUSY = frozenset({429, 503})
_LOST = frozenset({502, 504})
"""A gateway gave up: what was asked may have been done."""


def runner_of(settings: SlurmSettings, clock: Clock) -> Runner:
    """The way to Slurm that the settings name. Raises InputError for a CA file that cannot be used."""
    commands = CommandRunner(settings)
    return RestRunner(settings, clock, commands) if settings.rest_url else commands


@runtime_checkable
class Closing(Protocol):
    """A runner that holds connections."""

    def close(self) -> None:
        """Let go of them; safe to repeat."""


class RestRunner:
    """A `Runner` over slurmrestd; `commands` runs what it does not serve. Safe to share between threads."""

    def __init__(
        self,
        settings: SlurmSettings,
        clock: Clock,
        commands: Runner,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._commands = commands
        url = settings.rest_url
        if url.startswith("unix:"):
            transport, url = transport or httpx2.HTTPTransport(uds=url.removeprefix("unix:")), "http://localhost"
        self._http = http_client(
            settings.command_seconds, base_url=url, ca=settings.rest_ca, transport=transport, most_bytes=None
        )
        self._lock = threading.Lock()
        self._known: tuple[float, Served] | None = None

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        until = self._clock.monotonic() + seconds
        if command[0] == "stat":
            return self._commands.run(command, seconds)
        call = call_of(command, self._served(command, until), self._clock.now_ms() // SECOND)
        if call is None:
            return self._commands.run(command, seconds)
        status, text = self._ask(call, command, until)
        return self._result(command, status, text)

    def close(self) -> None:
        self._http.close()

    def _result(self, command: Sequence[str], status: int, text: str) -> CommandResult:
        try:
            said = problems_of(text) if text.strip() else ""
            if said or status >= 300:
                return CommandResult(1, "", said or f"slurmrestd answers {status}")
            return CommandResult(0, ping_lines(text) if list(command) == ["scontrol", "ping"] else text)
        except ValueError as error:
            trouble = Trouble.UNREADABLE if status < 400 else Trouble.OTHER
            raise SlurmProblem(trouble, command, f"slurmrestd answers {status}: {error}: {text[:100]}") from None

    def _served(self, command: Sequence[str], until: float) -> Served:
        with self._lock:
            known = self._known
        if known is not None and self._clock.monotonic() - known[0] <= DESCRIBED_SECONDS:
            return known[1]
        status, text = self._ask(_DESCRIPTION, command, until)
        try:
            served = served_of(text) if status == 200 else None
        except ValueError as error:
            raise SlurmProblem(Trouble.UNREADABLE, command, f"slurmrestd's /openapi/v3: {error}") from None
        if served is None:
            said = f"slurmrestd (/openapi/v3: {status}) serves none of v0.0.{OLDEST} to v0.0.{NEWEST}"
            raise SlurmProblem(Trouble.OTHER, command, f"{said}; start it with one of these, or unset slurm.rest_url")
        with self._lock:
            self._known = (self._clock.monotonic(), served)
        return served

    def _ask(self, call: RestCall, command: Sequence[str], until: float) -> tuple[int, str]:
        """Status and text of the answer; raises SlurmProblem where there is none, or it refuses the log-in."""
        left = until - self._clock.monotonic()
        if left <= 0:
            raise SlurmProblem(Trouble.TIMED_OUT if not call.reads else Trouble.UNREACHABLE, command, "no time is left")
        try:
            status, body = self._exchange(call, left, until)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            said = f"slurmrestd at {self._settings.rest_url} does not answer: {error}"
            raise SlurmProblem(Trouble.UNREACHABLE, command, said) from None
        except (httpx2.RequestError, httpx2.InvalidURL, TimeoutError) as error:
            said = f"slurmrestd at {self._settings.rest_url} gave no whole answer: {error or type(error).__name__}"
            raise SlurmProblem(Trouble.TIMED_OUT, command, said) from None
        if status in (401, 403):
            raise SlurmProblem(Trouble.NO_LOGIN, command, f"slurmrestd answers {status}")
        if status in _BUSY or status in _LOST:
            trouble = Trouble.UNREACHABLE if status in _BUSY else Trouble.TIMED_OUT
            raise SlurmProblem(trouble, command, f"slurmrestd answers {status}")
        if status == 404:
            # After an upgrade the version may be gone: it is looked up again.
            with self._lock:
                self._known = None
        if len(body) > MOST_BYTES:
            raise SlurmProblem(Trouble.UNREADABLE, command, f"an answer of more than {MOST_BYTES >> 20} MiB")
        return status, body.decode("utf-8", "replace")

    def _exchange(self, call: RestCall, left: float, until: float) -> tuple[int, bytes]:
        """Status and body, of which at most one byte too many is read. Raises TimeoutError past `until`."""
        body = bytearray()
        headers = self._headers()
        with self._http.stream(
            call.method, call.url, params=dict(call.query) or None, json=call.body, headers=headers, timeout=left
        ) as response:
            for piece in response.iter_bytes():
                body += piece[: MOST_BYTES + 1 - len(body)]
                if len(body) > MOST_BYTES:
                    break
                if self._clock.monotonic() > until:
                    raise TimeoutError("it takes too long")
            return response.status_code, bytes(body)

    def _headers(self) -> Mapping[str, str]:
        # A packed answer could be any size unpacked.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._settings.rest_user:
            headers["X-SLURM-USER-NAME"] = self._settings.rest_user
        path = self._settings.rest_token_file
        token = _token_of(path) if path is not None else self._settings.rest_token.get_secret_value().strip()
        return headers | ({"X-SLURM-USER-TOKEN": token} if token else {})


def _token_of(path: Path) -> str:
    """The token in a file, also of one with ``SLURM_JWT=`` before it, as ``scontrol token`` prints it.

    Raises SlurmProblem, without the file's text, where it cannot be read or is none.
    """
    try:
        with path.open("rb") as file:
            token = file.read(MOST_TOKEN + 1).decode("ascii").strip().removeprefix("SLURM_JWT=")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text of ASCII letters"
        raise SlurmProblem(Trouble.NO_LOGIN, ["token", str(path)], why or "it cannot be read") from None
    if not token or len(token) > MOST_TOKEN or not token.isprintable() or " " in token:
        raise SlurmProblem(Trouble.NO_LOGIN, ["token", str(path)], "there is no token in it")
    return token
