"""Answers of the brain that the dashboard keeps, so that a page stands while the brain is busy."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import httpx2

from tocsin.client.client import Client, Params
from tocsin.client.errors import Busy
from tocsin.domain.clock import Clock, SystemClock

KEEP_SECONDS = 300.0
"""After this a busy brain is said to be busy: what is older helps nobody to decide."""
FRESH_SECONDS = 30.0
"""While the kept answer is younger, the brain has `QUICK_SECONDS` for a new one; after that the usual time."""
QUICK_SECONDS = 3.0
_MOST_BYTES = 64 * 1024 * 1024
_LARGEST = _MOST_BYTES // 8
"""An answer that is larger is not kept."""
_MOST_ENTRIES = 1000
_OF_TRANSFER = {"content-encoding", "content-length", "transfer-encoding"}

_Key = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class _KeptAnswer:
    response: httpx2.Response
    at_s: float


class KeptAnswers:
    """The last answer to each question, by brain and token: nobody gets what another token asked for.

    What was asked for longest ago goes first. Safe to use from several threads.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = threading.Lock()
        self._most = most_bytes
        self._known: OrderedDict[_Key, _KeptAnswer] = OrderedDict()
        self._bytes = 0

    def put(self, key: _Key, response: httpx2.Response, at_s: float) -> None:
        """Keep `response`, that came at `at_s` of the monotonic clock."""
        with self._lock:
            self._drop(key)
            if len(response.content) > min(_LARGEST, self._most):
                return
            self._known[key] = _KeptAnswer(_bare(response), at_s)
            self._bytes += len(response.content)
            oldest = next(iter(self._known))
            while self._bytes > self._most or len(self._known) > _MOST_ENTRIES or self._is_over(oldest, at_s):
                self._drop(oldest)
                oldest = next(iter(self._known))

    def find(self, key: _Key, now_s: float) -> tuple[httpx2.Response, float] | None:
        """The kept answer and its age in seconds; None where there is none, or none that is young enough."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                return None
            if self._is_over(key, now_s):
                self._drop(key)
                return None
            self._known.move_to_end(key)
            return found.response, now_s - found.at_s

    def _is_over(self, key: _Key, now_s: float) -> bool:
        return now_s - self._known[key].at_s > KEEP_SECONDS

    def _drop(self, key: _Key) -> None:
        if (gone := self._known.pop(key, None)) is not None:
            self._bytes -= len(gone.response.content)


def _bare(response: httpx2.Response) -> httpx2.Response:
    """`response` as it was read, without the connection that it came by: that costs far more than a small answer."""
    headers = [(name, value) for name, value in response.headers.items() if name.lower() not in _OF_TRANSFER]
    return httpx2.Response(response.status_code, headers=headers, content=response.content, request=response.request)


ANSWERS = KeptAnswers()
"""Of this process."""


class PageClient(Client):
    """A client that answers a look with the last answer to the same question while the brain is `Busy`.

    `oldest_s` is the age of the oldest such answer that was given, 0.0 where all are new. What changes something is
    never answered from here; a brain that is down raises Unavailable all the same.
    """

    def __init__(
        self, base_url: str, token: str = "", *, answers: KeptAnswers = ANSWERS, clock: Clock | None = None, **more: Any
    ) -> None:
        super().__init__(base_url, token, **more)
        self._token = token
        self._answers = answers
        self._clock = clock or SystemClock()
        # Those of other cells, which `at` gives, have it with this one.
        self._ages = [0.0]

    @property
    def oldest_s(self) -> float:
        return max(self._ages)

    def _ask(self, method: str, path: str, params: Params | None = None, **more: Any) -> httpx2.Response:
        if method != "GET":
            return super()._ask(method, path, params, **more)
        key = (self.base_url, self.cell, self._token, path, str(sorted((params or {}).items())))
        kept = self._answers.find(key, self._clock.monotonic())
        if kept is not None and kept[1] < FRESH_SECONDS:
            more["timeout"] = QUICK_SECONDS
        try:
            response = super()._ask(method, path, params, **more)
        except Busy:
            if kept is None:
                raise
            self._ages[0] = max(self._ages[0], kept[1])
            return kept[0]
        if response.status_code == httpx2.codes.OK:
            self._answers.put(key, response, self._clock.monotonic())
        return response
