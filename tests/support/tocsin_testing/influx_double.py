"""A double of InfluxDB 2 for the laws of stores: it keeps points, and answers the few Flux shapes that the store asks.

Its answers have the form of the recorded ones in tests/data/influxdb2. What Flux itself does with a query, a real
server alone can prove: TOCSIN_TEST_INFLUX_URL names one.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from werkzeug import Request, Response

from tocsin.domain.clock import from_iso, to_iso
from tocsin_testing.quick_server import QuickHttpServer

Value = float | int | bool | str
Tags = tuple[tuple[str, str], ...]
Rows = list[tuple[dict[str, str], str]]
_KINDS = {float: "double", int: "long", bool: "boolean", str: "string"}
_TEXT = r'"(?:\\.|[^"\\])*"'
_STREAM = re.compile(
    rf"from\(bucket: (?P<bucket>{_TEXT})\)\n"
    r"  \|> range\(start: (?P<start>\S+), stop: (?P<stop>\S+)\)\n"
    r"  \|> filter\(fn: \(r\) => (?P<where>.*)\)"
    r"(?:\n  \|> (?P<pick>first|last)\(\))?"
)
"""One stream of a query, as `tocsin.store.influx.flux` writes it."""


@dataclass
class Kept:
    """Points by bucket and series: (measurement, tags, field) to value by instant."""

    series: dict[str, dict[tuple[str, Tags, str], dict[int, Value]]] = field(default_factory=dict)
    buckets: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0

    def made(self) -> int:
        """A number that nothing had before."""
        self.count += 1
        return self.count


class InfluxDouble:
    """The server's state and its answers."""

    def __init__(self) -> None:
        self._kept = Kept()

    def answer(self, request: Request) -> Response:
        """What the server says to `request`."""
        with self._kept.lock:
            path = request.path
            if path == "/api/v2/write":
                return self._write(request)
            if path == "/api/v2/query":
                return Response(self._query(request.get_json()["query"]), 200, content_type="text/csv; charset=utf-8")
            if path == "/api/v2/orgs":
                return _json({"orgs": [{"id": "11ab04ec3ecd2000", "name": request.args.get("org", "gpu")}]})
            return self._things(request, path.split("/")[3], path.split("/")[4:])

    def _things(self, request: Request, kind: str, rest: list[str]) -> Response:
        kept: list[dict[str, Any]] = getattr(self._kept, kind)
        if request.method == "GET":
            named = [one for one in kept if one["name"] == request.args.get("name", one["name"])]
            return _json({kind: named})
        if request.method == "POST":
            made = {
                "id": f"{self._kept.made():016x}",
                "orgID": "11ab04ec3ecd2000",
                "status": "active",
                **request.get_json(),
            }
            found = re.search(rf"name: ({_TEXT})", made.get("flux", ""))
            made["name"] = json.loads(found[1]) if found else made["name"]
            kept.append(made)
            return _json(made, 201)
        one = next(one for one in kept if one["id"] == rest[0])
        if request.method == "DELETE":
            kept.remove(one)
            return Response(status=204)
        one.update(request.get_json())
        return _json(one)

    def _write(self, request: Request) -> Response:
        body = request.get_data()
        text = (gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body).decode()
        series = self._kept.series.setdefault(request.args["bucket"], {})
        for measurement, tags, fields, at_ms in points_of(text):
            for name, value in fields.items():
                series.setdefault((measurement, tags, name), {})[at_ms] = value
        return Response(status=204)

    def _query(self, query: str) -> str:
        rows = [row for stream in _STREAM.finditer(query) for row in self._rows(stream)]
        out = io.StringIO()
        if "|> unique" in query:
            seen = dict.fromkeys((row["_time"], row.get("gpu_uuid", ""), row.get("mig_uuid", "")) for row, _ in rows)
            found = [({"_time": at, "gpu_uuid": gpu, "mig_uuid": mig}, "") for at, gpu, mig in seen]
            _block(out, ["_time", "gpu_uuid", "mig_uuid"], {}, found)
            return out.getvalue()
        blocks: dict[tuple[str, ...], list[tuple[dict[str, str], str]]] = {}
        for row, kind in rows:
            row = {"label_result" if name == "result" else name: value for name, value in row.items()}
            blocks.setdefault((kind, *row), []).append((row, kind))
        for (kind, *columns), block in blocks.items():
            _block(out, columns, {"_value": kind}, block)
        return out.getvalue()

    def _rows(self, stream: re.Match[str]) -> Iterator[tuple[dict[str, str], str]]:
        start, stop = from_iso(stream["start"]), from_iso(stream["stop"])
        holds = compile(_python(stream["where"]), "filter", "eval")
        for (measurement, tags, name), values in self._kept.series.get(json.loads(stream["bucket"]), {}).items():
            labels = {**dict(tags), "_measurement": measurement, "_field": name}
            times = sorted(at for at in values if start <= at < stop)
            if not times or not eval(holds, {"row": labels, "search": re.search}):
                continue
            for at in {"first": times[:1], "last": times[-1:]}.get(stream["pick"] or "", times):
                yield {"_time": to_iso(at), "_value": _shown(values[at]), **labels}, _KINDS[type(values[at])]


def _python(condition: str) -> str:
    """A Flux condition over a row as Python over `row`."""
    text = re.sub(
        rf"r\.(\w+) == ({_TEXT})",
        lambda m: f"(row.get({m[1]!r}) == {json.loads(m[2].replace(chr(92) + '${', '${'))!r})",
        condition,
    )
    text = re.sub(
        r"r\.(\w+) =~ /((?:\\.|[^/])*)/", lambda m: f"(search({m[2]!r}, row.get({m[1]!r}, '')) is not None)", text
    )
    return re.sub(r"exists r\.(\w+)", lambda m: f"({m[1]!r} in row)", text)


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _block(out: io.StringIO, columns: list[str], kinds: Mapping[str, str], rows: Rows) -> None:
    if not rows:
        out.write("\r\n")
        return
    types = ["dateTime:RFC3339" if name == "_time" else kinds.get(name, "string") for name in columns]
    writer = csv.writer(out)
    writer.writerow(["#datatype", "string", "long", *types])
    writer.writerow(["#group", "false", "false", *("false" for _ in columns)])
    writer.writerow(["#default", "_result", "", *("" for _ in columns)])
    writer.writerow(["", "result", "table", *columns])
    writer.writerows(["", "", "0", *(_cell(row[name]) for name in columns)] for row, _ in rows)
    out.write("\r\n")


def _cell(text: str) -> str:
    """`text` as a real server writes it: lines within a text end like those of the answer, and other returns go."""
    return text.replace("\r", "").replace("\n", "\r\n")


def _json(body: object, status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type="application/json; charset=utf-8")


_WORD = r"(?:\\.|[^\\,= \n])+"
_RAW = r'"(?:\\.|[^"\\])*"|[^", \n]+'
_TAG = re.compile(f"({_WORD})=({_WORD})")
_FIELD = re.compile(f"({_WORD})=({_RAW})", re.DOTALL)
_ANY_TAG, _ANY_FIELD = f"{_WORD}={_WORD}", f"{_WORD}=(?:{_RAW})"
_HEAD = rf"((?:\\.|[^\\, \n])+)((?:,{_ANY_TAG})*)"
_LINE = re.compile(rf"{_HEAD} ({_ANY_FIELD}(?:,{_ANY_FIELD})*) (-?\d+)(?:\n|\Z)", re.DOTALL)


def points_of(text: str) -> Iterator[tuple[str, Tags, dict[str, Value], int]]:
    """Measurement, tags, fields and milliseconds of each line of line protocol; a line that is none is an error."""
    at = 0
    while at < len(text):
        line = _LINE.match(text, at)
        assert line is not None, text[at : at + 200]
        at = line.end()
        tags = sorted((_plain(key), _plain(value)) for key, value in _TAG.findall(line[2]))
        fields = {_plain(name): _value(value) for name, value in _FIELD.findall(line[3])}
        yield _plain(line[1]), tuple(tags), fields, int(line[4])


def _plain(word: str) -> str:
    return re.sub(r"\\([,= ])", r"\1", word)


def _value(text: str) -> Value:
    if text.startswith('"'):
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    if text in ("t", "T", "true", "f", "F", "false"):
        return text[0] in "tT"
    return int(text[:-1]) if text.endswith("i") else float(text)


@contextlib.contextmanager
def influx_double() -> Iterator[str]:
    """URL of an empty one."""
    double, server = InfluxDouble(), QuickHttpServer(host="127.0.0.1", port=0)
    server.expect_request(re.compile(".*")).respond_with_handler(double.answer)
    server.start()
    try:
        yield server.url_for("").rstrip("/")
    finally:
        server.stop()
