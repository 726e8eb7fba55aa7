"""An HTTP server that expects requests of the InfluxDB store, byte for byte, and answers as a real one did."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from pydantic import SecretStr
from pytest_httpserver import HTTPServer
from pytest_httpserver.httpserver import HandlerType, RequestMatcher
from werkzeug import Request

from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.clock import ManualClock
from tocsin.store.influx.store import InfluxStore

ANSWERS = Path(__file__).parents[2] / "data" / "influxdb2"
HEADERS = {"Authorization": "Token secret"}
NOW = 1_795_231_000_000
"""2026-11-21T03:16:40Z, just behind the recorded answers."""

TAIL = """
  |> drop(columns: ["_start", "_stop"])
  |> rename(fn: (column) => if column == "result" then "label_result" else column)"""


class GzipMatcher(RequestMatcher):
    """Compares the body behind its compression, which must be there."""

    def match_data(self, request: Request) -> bool:
        return request.headers.get("Content-Encoding") == "gzip" and gzip.decompress(request.data) == self.data


class InfluxServer:
    """Expects requests in order and answers each with a recorded answer, in which texts may be replaced."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server

    def expect(
        self,
        method: str,
        path: str,
        query: str,
        body: bytes | None,
        answer: str,
        *changes: tuple[str, str],
        status: int | None = None,
    ) -> None:
        recorded = json.loads((ANSWERS / f"{answer}.json").read_text())
        text = recorded["body"]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        matcher = GzipMatcher if path == "/api/v2/write" else RequestMatcher
        wanted = matcher(path, method=method, query_string=query, data=body, headers=HEADERS)
        answers = self._server.expect(wanted, HandlerType.ORDERED)
        answers.respond_with_data(text, status or recorded["status"], content_type=recorded["content_type"] or None)

    def write(
        self, lines: list[str], answer: str, *changes: tuple[str, str], bucket: str = "fleet", status: int | None = None
    ) -> None:
        query = f"org=gpu&bucket={bucket}&precision=ms"
        self.expect("POST", "/api/v2/write", query, "\n".join(lines).encode(), answer, *changes, status=status)

    def flux(self, text: str, answer: str, *changes: tuple[str, str], tail: str = TAIL) -> None:
        dialect = {
            "header": True,
            "delimiter": ",",
            "annotations": ["datatype", "group", "default"],
            "commentPrefix": "#",
            "dateTimeFormat": "RFC3339",
        }
        body = {"extern": {"imports": [], "body": []}, "query": text + tail, "dialect": dialect}
        self.expect("POST", "/api/v2/query", "org=gpu", json.dumps(body).encode(), answer, *changes)


def influx_store(url: str, **more: object) -> InfluxStore:
    """A store over that server; it is `NOW`."""
    fields: dict[str, object] = {"org": "gpu", "bucket": "fleet", "raw_days": 14, **more}
    settings = StoreSettings(kind=StoreKind.INFLUXDB, url=url, token=SecretStr("secret"), **fields)  # type: ignore[arg-type]
    return InfluxStore(settings, ManualClock(NOW))
