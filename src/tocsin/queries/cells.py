"""One view over all cells of a fleet: each is asked, none is waited for beyond a deadline, and what is missing is said.

The other cells get the credential of whoever asks and nothing else, so that nobody sees or does more there than by
asking them.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

import httpx2
from pydantic import ValidationError

from tocsin.api.errors import ApiError
from tocsin.api.service import Asked, Gathered, Passed
from tocsin.client.control import ErrorOut
from tocsin.client.models_cells import AnswerState, CellAnswer, CellOut
from tocsin.client.moved import ACTIVE_ONLY
from tocsin.client.wire import adapter
from tocsin.config.cell import CellSettings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import Conflict, InputError, TocsinError, Unavailable
from tocsin.domain.rendezvous import owner_of
from tocsin.http_client import http_client
from tocsin.journal.archive_files import ArchiveMissing
from tocsin.journal.postgres.fleet import KnownCell

T = TypeVar("T")

MOST_BYTES = 64 * 1024 * 1024
"""Largest answer of a cell; also what all answers that are kept may have together."""
KEPT_SECONDS = 600.0
"""Age up to which the last answer of a cell stands in for one that does not come (own choice)."""
LISTED_SECONDS = 5.0
"""How long the list of cells is taken as it was read."""
MOST_WAITING = {"read": 4, "change": 4, "aside": 4}
"""Questions of a kind to one cell that may be under way: one that hangs holds up nobody else."""
PASSED_SECONDS = 10.0
"""How long a cell has for a request that is passed on to it: as long as a client waits for its own brain."""
MOST_PASSED = 12
"""Requests that are passed on at once: cells that hang hold up no more of the brain's own answers."""
MOST_THREADS = 32
MOST_HOSTS = 100_000
"""Hosts of which it is remembered where they belong."""
NOT_FOUND = 404
_PASSED_HEADERS = frozenset({"authorization", "content-type", "if-none-match", "accept"})
"""What of a request another cell is told."""
_GIVEN_HEADERS = ("content-type", "content-disposition", "etag", "cache-control", "retry-after")


class Directory(Protocol):
    """Where the cells of the fleet are listed."""

    def cells(self) -> list[KnownCell]:
        """The cells that have told of themselves. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A body and when it came, by the monotonic clock."""

    body: bytes
    at_s: float


class _Answers:
    """The newest answers by question, cell and credential, within `MOST_BYTES`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, key: tuple[str, ...], kept: _Kept) -> None:
        with self._lock:
            self._drop(key)
            self._kept[key] = kept
            self._bytes += len(kept.body)
            while self._bytes > MOST_BYTES:
                self._drop(next(iter(self._kept)))

    def find(self, key: tuple[str, ...], now_s: float) -> _Kept | None:
        with self._lock:
            found = self._kept.get(key)
            return found if found is not None and now_s - found.at_s <= KEPT_SECONDS else None

    def _drop(self, key: tuple[str, ...]) -> None:
        gone = self._kept.pop(key, None)
        self._bytes -= 0 if gone is None else len(gone.body)


class CellQueries:
    """A `tocsin.api.service.CellService`: `directory` is None where this cell, `name`, is the whole fleet.

    `standby` says why this brain is not the active one of its cell, and is empty where it is: then it asks that one.
    """

    def __init__(
        self,
        name: str,
        settings: CellSettings,
        directory: Directory | None,
        clock: Clock,
        standby: Callable[[], str] = str,
    ) -> None:
        self.name = name
        self._standby = standby
        self._settings = settings
        self._directory = directory
        self._clock = clock
        self._answers = _Answers()
        self._listed: list[KnownCell] = []
        self._listing: Future[list[KnownCell]] | None = None
        self._tried = float("-inf")
        self._homes: dict[str, tuple[str, str] | None] = {}
        self._slots: dict[tuple[str, str], threading.Semaphore] = {}
        self._passing = threading.Semaphore(MOST_PASSED)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="cells")
        self._http: httpx2.Client | None = None

    def close(self) -> None:
        """Ask nobody any more; safe to repeat. Waits for what is under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            if self._http is not None:
                self._http.close()

    def known(self) -> list[CellOut]:
        return [
            CellOut(
                name=one.name,
                url=one.url,
                own=one.name == self.name,
                gpus=one.gpus,
                age_s=max(0.0, one.age_seconds),
                stale=one.stale,
                active=one.held,
            )
            for one in self._cells()
        ]

    def assigned(self) -> bool:
        return any(one.hosts or one.spread is not None for one in self._cells() if one.name != self.name)

    def has(self, host: str) -> bool:
        return self.elsewhere(host) is None and (self._names(host) or self._settings.hash)

    def elsewhere(self, host: str) -> tuple[str, str] | None:
        # Other threads put new ones in its place; from one nothing is taken out.
        cells, homes = self._cells(), self._homes
        if host not in homes:
            if len(homes) >= MOST_HOSTS:
                self._homes = homes = {}
            homes[host] = self._home_of(host, cells)
        return homes[host]

    def _home_of(self, host: str, cells: Sequence[KnownCell]) -> tuple[str, str] | None:
        """What this cell names is its own, whatever others name; what nobody names is spread over those that say so."""
        if self._names(host):
            return None
        others = [one for one in cells if one.name != self.name]
        fits = (one for one in others if any(fnmatchcase(host, pattern) for pattern in one.hosts))
        if (named := next(((one.name, one.url) for one in fits), None)) is not None or not self._settings.hash:
            return named
        living = {one.name: one.url for one in self._living(cells)}
        owner = owner_of(host, living)
        return None if owner in ("", self.name) else (owner, living[owner])

    def _names(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern) for pattern in self._settings.hosts)

    def _living(self, cells: Sequence[KnownCell]) -> list[KnownCell]:
        """The cells that take a share of the hosts, and have told of themselves lately."""
        takers = [one for one in cells if one.spread is not None or one.name == self.name]
        patience = max([self._settings.gone_seconds, *(one.spread for one in takers if one.spread is not None)])
        return [one for one in takers if one.age_seconds <= patience]

    def gather(self, asked: Asked, kind: type[T], own: Callable[[], T]) -> Gathered[T]:
        cells = self._chosen(asked.cells)
        until = self._clock.monotonic() + self._settings.answer_seconds
        standby = self._standby() if self._directory is not None else ""
        jobs = {
            one.name: self._pool.submit(self._body, one, asked, until)
            for one in cells
            if one.name != self.name or standby
        }
        answers: dict[str, T] = {}
        found = [self._own(one, own, answers) for one in cells if one.name not in jobs]
        wait(jobs.values(), timeout=max(0.0, until - self._clock.monotonic()))
        for one in cells:
            if one.name in jobs:
                told = self._other(one, asked, kind, jobs[one.name], answers)
                why = f"{standby} ({told.detail})" if told.own and told.detail else told.detail
                found.append(told.model_copy(update={"detail": why[:500]}))
        return Gathered(sorted(found, key=lambda one: one.cell), answers)

    def pass_on(self, asked: Asked, found_at: str, kind: type[T]) -> T | None:
        until = self._clock.monotonic() + self._settings.answer_seconds
        others = [one for one in self._cells() if one.name != self.name and one.url]
        looked = Asked(found_at, asked.credential)
        looking = {one.name: self._pool.submit(self._body, one, looked, until) for one in others}
        wait(looking.values(), timeout=max(0.0, until - self._clock.monotonic()))
        silent = []
        for cell in others:
            job = looking[cell.name]
            problem = job.exception() if job.done() else None
            if job.done() and problem is None:
                body = self._body(cell, asked, self._clock.monotonic() + self._settings.answer_seconds)
                return _read(kind, body)
            if not isinstance(problem, ApiError) or problem.status_code != NOT_FOUND:
                silent.append(cell.name)
        if silent:
            said = f"it is not known here, and cell {', '.join(silent)} could not be asked for it"
            raise Unavailable(f"{said}; ask there, or again")
        return None

    def pass_to(self, cell: str, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Passed:
        (one,) = self._chosen([cell])
        if not self._passing.acquire(blocking=False):
            raise Unavailable(f"{MOST_PASSED} requests to other cells are under way; ask again")
        until = self._clock.monotonic() + PASSED_SECONDS
        sent = {name: value for name, value in headers.items() if name in _PASSED_HEADERS}
        try:
            with self._client().stream(
                method, one.url + target, headers=sent, content=body or None, timeout=PASSED_SECONDS
            ) as response:
                content = self._read_within(response, until)
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise Unavailable(f"cell {cell} at {one.url} does not answer: {error or type(error).__name__}") from None
        finally:
            self._passing.release()
        given = {name: value for name in _GIVEN_HEADERS if (value := response.headers.get(name))}
        return Passed(response.status_code, content, given)

    # ------------------------------------------------------------------ who there is

    def _cells(self) -> list[KnownCell]:
        """The cells as they were last listed; this one is always among them."""
        with self._lock:
            due = self._directory is not None and self._clock.monotonic() - self._tried > LISTED_SECONDS
            if due and self._directory is not None:
                self._tried = self._clock.monotonic()
                self._listing = self._pool.submit(self._directory.cells)
            job = self._listing
        # Where no list has come yet, who asks meanwhile waits for it too: no cell is unknown before.
        if job is not None and (due or not self._listed):
            wait([job], timeout=self._settings.answer_seconds)
            # A database that does not answer makes no cell unknown.
            if job.done() and job.exception() is None:
                self._listed, self._homes = job.result(), {}
        listed = self._listed
        if any(one.name == self.name for one in listed):
            return listed
        mine = KnownCell(self.name, self._settings.url, 0, 0.0, True)
        return sorted([*listed, mine], key=lambda one: one.name)

    def _chosen(self, names: Sequence[str]) -> list[KnownCell]:
        cells = self._cells()
        unknown = sorted(set(names) - {one.name for one in cells})
        if unknown:
            known = ", ".join(one.name for one in cells)
            raise InputError("cell", unknown[0], "is no cell of the fleet", f"name one of {known}")
        return [one for one in cells if not names or one.name in names]

    # ------------------------------------------------------------------ asking

    def _own(self, cell: KnownCell, own: Callable[[], T], answers: dict[str, T]) -> CellAnswer:
        try:
            answers[cell.name] = own()
        except Conflict as error:
            return self._said(cell, AnswerState.REFUSED, str(error))
        except (ArchiveMissing, Unavailable) as error:
            return self._said(cell, AnswerState.UNREACHABLE, str(error))
        return self._said(cell, AnswerState.ANSWERED)

    def _other(
        self, cell: KnownCell, asked: Asked, kind: type[T], job: Future[bytes], answers: dict[str, T]
    ) -> CellAnswer:
        key, now_s = _key(cell, asked), self._clock.monotonic()
        try:
            if not job.done():
                raise Unavailable(f"no answer within {self._settings.answer_seconds:g} s")
            body = job.result()
            answers[cell.name] = _read(kind, body)
        except ApiError as error:
            return self._said(cell, AnswerState.REFUSED, error.message)
        except TocsinError as error:
            kept = self._answers.find(key, now_s) if asked.body is None else None
            if kept is None:
                return self._said(cell, AnswerState.UNREACHABLE, str(error))
            answers[cell.name] = _read(kind, kept.body)
            return self._said(cell, AnswerState.STALE, str(error), now_s - kept.at_s)
        if asked.body is None:
            self._answers.keep(key, _Kept(body, now_s))
        return self._said(cell, AnswerState.ANSWERED)

    def _said(self, cell: KnownCell, state: AnswerState, detail: str = "", age_s: float | None = None) -> CellAnswer:
        own, gpus = cell.name == self.name, cell.gpus or None
        return CellAnswer(
            cell=cell.name, url=cell.url, own=own, state=state, detail=detail[:500], age_s=age_s, gpus=gpus
        )

    def _body(self, cell: KnownCell, asked: Asked, until: float) -> bytes:
        """What the cell answers. Raises Unavailable, and ApiError where it refuses."""
        with self._slot(cell.name, "aside" if asked.aside else "read" if asked.body is None else "change"):
            headers = {ACTIVE_ONLY: "1"} | ({"Authorization": asked.credential} if asked.credential else {})
            method, body = ("GET", None) if asked.body is None else ("POST", dict(asked.body))
            try:
                with self._client().stream(
                    method, cell.url + asked.path, params=dict(asked.params_of(cell.name)), headers=headers, json=body
                ) as response:
                    content = self._read_within(response, until)
            except (httpx2.RequestError, httpx2.InvalidURL) as error:
                raise Unavailable(f"{cell.url} does not answer: {error or type(error).__name__}") from None
        if response.status_code >= 500:
            raise Unavailable(f"{cell.url} answers {response.status_code}: {_message(content)}")
        if response.status_code != 200:
            raise ApiError(response.status_code, *_refusal(content))
        return content

    def _client(self) -> httpx2.Client:
        with self._lock:
            if self._http is None:
                self._http = http_client(self._settings.answer_seconds, ca=self._settings.ca, most_bytes=None)
            return self._http

    def _read_within(self, response: httpx2.Response, until: float) -> bytes:
        parts, size = list[bytes](), 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise Unavailable(f"its answer is larger than {MOST_BYTES} bytes")
            if self._clock.monotonic() > until:
                raise Unavailable("its answer did not come in time")
        return b"".join(parts)

    @contextmanager
    def _slot(self, name: str, kind: str) -> Iterator[None]:
        with self._lock:
            slot = self._slots.setdefault((name, kind), threading.Semaphore(MOST_WAITING[kind]))
        if not slot.acquire(blocking=False):
            raise Unavailable("it has not answered earlier questions yet")
        try:
            yield
        finally:
            slot.release()


def _key(cell: KnownCell, asked: Asked) -> tuple[str, ...]:
    # The credential itself is kept nowhere.
    who = hashlib.sha256(asked.credential.encode()).hexdigest()
    params = sorted(asked.params_of(cell.name).items())
    return cell.name, cell.url, asked.path, who, *(f"{name}={value}" for name, value in params)


def _read(kind: type[T], body: bytes) -> T:
    try:
        return adapter(kind).validate_json(body, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Unavailable(f"its answer cannot be read: {where}: {first['msg']}; is it of this version?") from None


def _refusal(content: bytes) -> tuple[str, str]:
    try:
        error = ErrorOut.model_validate_json(content, extra="ignore").error
    except ValidationError:
        return "refused", "the answer is not of this API"
    return error.code, error.message


def _message(content: bytes) -> str:
    return _refusal(content)[1]
