"""A Prometheus in this process that answers the queries of the history import and of the source `promql`, with the
habits of the real one."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable
from urllib.parse import parse_qs

import httpx2

from tocsin.collector.prometheus_history.history import AT_LABEL
from tocsin.collector.prometheus_history.http import HistoryClient
from tocsin.domain.clock import MINUTE
from tocsin_testing.dcgm_site import Point

LOOKBACK_MS = 5 * MINUTE
_NAME = re.compile(r"^(\w+)\{")
_NAMES = re.compile(r'__name__=~"([^"]*)"')
_RANGE = re.compile(r"\[(\d+)s\]$")


class FakePrometheus:
    """Answers over `points`: the newest sample of the last five minutes at every step, at most 11,000 steps.

    `max_samples` is the most that one query may load. `failures` are given first, one for each request; a text that
    is a status and a body, such as ``503 overloaded``, or an exception.
    """

    def __init__(self, points: Iterable[Point], max_samples: int = 50_000_000) -> None:
        self.series: dict[str, dict[str, tuple[dict[str, str], list[int], list[float]]]] = {}
        self.scrape(points)
        self.max_samples = max_samples
        self.failures: list[str | Exception] = []
        self.requests: list[httpx2.Request] = []
        self.warnings: list[str] = []

    def scrape(self, points: Iterable[Point]) -> None:
        """Take in samples, which are newer than those that are there."""
        for point in points:
            _, at_ms, values = self.series.setdefault(point.name, {}).setdefault(
                point.head, (dict(point.labels), [], [])
            )
            at_ms.append(point.at_ms)
            values.append(point.value)

    def client(self, url: str = "http://prometheus:9090", **headers: str) -> HistoryClient:
        """A client of this server."""
        return HistoryClient(url, headers, transport=httpx2.MockTransport(self))

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            status, _, text = failure.partition(" ")
            return httpx2.Response(int(status), text=text)
        asked = request.url.params
        if request.url.path.endswith("/api/v1/label/__name__/values"):
            wanted = _NAMES.search(asked["match[]"])
            return self._answer(sorted(n for n in self.series if wanted is None or re.fullmatch(wanted[1], n)))
        if request.url.path.endswith("/api/v1/query"):
            form = parse_qs(request.content.decode())
            return self._raw(form["query"][0], round(float(form["time"][0]) * 1000))
        if request.url.path.endswith("/api/v1/query_range"):
            return self._range(asked["query"], *(round(float(asked[key]) * 1000) for key in ("start", "end", "step")))
        return httpx2.Response(404, text="404 page not found")

    def _answer(self, data: object) -> httpx2.Response:
        body = {"status": "success", "data": data} | ({"warnings": self.warnings} if self.warnings else {})
        return httpx2.Response(200, content=json.dumps(body, separators=(",", ":")).encode())

    @staticmethod
    def _error(status: int, text: str) -> httpx2.Response:
        return httpx2.Response(status, json={"status": "error", "errorType": "x", "error": text})

    def _raw(self, query: str, end_ms: int) -> httpx2.Response:
        names, span = _NAMES.search(query), _RANGE.search(query)
        assert names is not None
        assert span is not None
        start_ms, result = end_ms - int(span[1]) * 1000, []
        for name in self.series:
            for labels, at_ms, values in self.series[name].values() if re.fullmatch(names[1], name) else ():
                pairs = zip(at_ms, values, strict=True)
                seen = [[at / 1000, repr(value)] for at, value in pairs if start_ms < at <= end_ms]
                if seen:
                    result.append({"metric": {"__name__": name, **labels}, "values": seen})
        return self._answer({"resultType": "matrix", "result": result})

    def _range(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> httpx2.Response:
        steps = range(start_ms, end_ms + 1, step_ms)
        if len(steps) > 11_000:
            return self._error(400, "exceeded maximum resolution of 11,000 points per timeseries.")
        name = _NAME.match(query)
        result, loaded = [], 0
        for labels, at_ms, values in self.series.get(name[1] if name else "", {}).values():
            seen, sampled = [], []
            for step in steps:
                place = bisect.bisect_right(at_ms, step) - 1
                if place >= 0 and step - at_ms[place] < LOOKBACK_MS:
                    seen.append([step / 1000, repr(values[place])])
                    sampled.append([step / 1000, repr(at_ms[place] / 1000)])
            loaded += 2 * len(seen)
            if seen and name:
                result.append({"metric": {"__name__": name[1], **labels}, "values": seen})
                result.append({"metric": {**labels, AT_LABEL: "1"}, "values": sampled})
        if loaded > self.max_samples:
            return self._error(422, "query processing would load too many samples into memory in query execution")
        return self._answer({"resultType": "matrix", "result": result})
