"""Whatever line is written, every read endpoint answers, now and after a restart, and good lines beside it are kept."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings, RequestLimits, Role, Token
from tocsin.config.settings import Settings
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.metrics import METRICS
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0

SECRET = "a-secret-0123456789"
HEADERS = {"Authorization": f"Bearer {SECRET}"}
LIMITS = RequestLimits(requests_per_second=1e6, request_burst=10**6, refused_per_second=1e6, refused_burst=10**6)
GOOD = "gpu,gpu_uuid=GPU-good,host=good power_watts=300"
DEEP = 60_000


class Reader:
    """A brain over the embedded store, and all that can be read of it over HTTP."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(T0)
        self.open()

    def open(self) -> None:
        wanted = {
            "store": {"path": self.folder / "store.db"},
            "journal": {"path": self.folder / "journal.db"},
            "forecast": {"worker": False},
        }
        self.running = open_brain(Settings.model_validate(wanted), self.clock, propose=True)
        token = Token(name="t", role=Role.ADMIN, secret=SecretStr(SECRET))
        self.app: FastAPI = create_app(
            BrainService(self.running.brain), ApiSettings(tokens=[token], limits=LIMITS), self.clock
        )
        self.http = TestClient(
            self.app,
            base_url="http://127.0.0.1",
            headers=HEADERS,
            client=("127.0.0.1", 1),
            raise_server_exceptions=False,
        )

    def again(self) -> None:
        """End the brain and start it on the same files."""
        self.running.stop()
        self.open()

    def write(self, *lines: str, precision: str = "ms") -> None:
        """Lines that may be bad, beside one that is good."""
        self.clock.advance(1)
        good = f"{GOOD} {self.clock.now_ms()}"
        body = "\n".join([*lines, "# quoted text ends", good]).encode("utf-8", "surrogateescape")
        answer = self.http.post(f"/api/v2/write?precision={precision}", content=body)
        assert answer.status_code in {204, 400}, answer.text[:500]
        # Before an evaluation, which forgets readings that are old.
        assert self.http.get("/v1/gpus").status_code == 200
        if precision == "ms" and "\n" not in "".join(lines) and sum(line.count('"') for line in lines) % 2 == 0:
            kept = self.running.brain.memory.reading("GPU-good")
            # An earlier one would say nothing of the lines that came with this one.
            assert kept is not None
            assert kept.at_ms == self.clock.now_ms(), answer.text[:500]

    def answers(self) -> None:
        """Every read endpoint answers."""
        for path, query in endpoints(self.app):
            answer = self.http.get(path, params=query)
            assert answer.status_code in {200, 204, 404, 409}, f"{path}: {answer.status_code} {answer.text[:500]}"


def endpoints(app: FastAPI) -> Iterator[tuple[str, dict[str, object]]]:
    """Path and least parameters of each GET."""
    for path, methods in app.openapi()["paths"].items():
        if "get" not in methods or path in {"/readyz", "/v1/orders"}:
            continue
        asked = methods["get"].get("parameters", [])
        required = {one["name"] for one in asked if one["in"] == "query" and one.get("required")}
        known = {"metric": ["gpu_power_watts", "gpu_energy_joules_total"], "by": "node", "span": "PT1H"}
        query = {name: known.get(name, "1") for name in required}
        for uuid in ("GPU-good", "GPU-odd") if "{uuid}" in path else ("",):
            yield (
                path.replace("{uuid}", uuid).replace("{decision_id}", "0" * 16).replace("{planner}", "defragment"),
                query,
            )


@contextmanager
def brain(folder: Path) -> Iterator[Reader]:
    made = Reader(folder)
    try:
        yield made
    finally:
        made.running.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with brain(tmp_path_factory.mktemp("lines")) as made:
        yield made


# ------------------------------------------------------------------------------------------------ single lines

TAGS = "gpu_uuid=GPU-odd,host=odd"
NINES = "9" * 18


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def prediction(**fields: str) -> str:
    known = {
        "horizon_ms": "3600000i",
        "status": '"likely"',
        "model_version": '"1"',
        "sentence": '"x"',
        "metric": '"gpu_power_watts"',
        "probability": "0.9",
        "threshold": "0.5",
        **fields,
    }
    tags = "model=m,target=t,subject_kind=gpu,subject=GPU-odd"
    return f"gpu_prediction,{tags} {','.join(f'{k}={v}' for k, v in known.items())} {T0}"


def finding(**fields: str) -> str:
    known = {
        "severity": '"critical"',
        "category": '"hardware"',
        "action": '"drain"',
        "last_ms": f"{T0}i",
        "sentence": '"x"',
        "metric": '"gpu_power_watts"',
        **fields,
    }
    tags = "rule=r,subject_kind=gpu,subject=GPU-odd"
    return f"gpu_finding,{tags} {','.join(f'{k}={v}' for k, v in known.items())} {T0}"


def info(labels: str) -> str:
    return f"gpu_info,{TAGS} index=1i,labels={quoted(labels)} {T0}"


def owner(text: str) -> str:
    return f"gpu_owner,{TAGS} owners={quoted(text)} {T0}"


def event(code: str, field: str = "") -> str:
    return f'gpu_event,kind=xid,{TAGS},code={code} message="x"{field} {T0}'


def packed(gpus: str, names: str, *values: float) -> str:
    text = b64encode(struct.pack(f"<{len(values)}d", *values)).decode()
    return f'gpu_packed,host=odd gpus="{gpus}",names="{names}",values="{text}" {T0}'


SURROGATE = r'["\ud800","t",1,1]'
LINES = {
    "horizon of nineteen digits": prediction(horizon_ms=f"{NINES}i"),
    "horizon below 0": prediction(horizon_ms="-1i"),
    "eta of nineteen digits": prediction(eta_ms=f"{NINES}i"),
    "probability beyond a float": prediction(probability="1e400"),
    "curve of a thousand digits": prediction(curve=quoted(f"[[{'9' * 1000},0.5]]")),
    "curve of not a number": prediction(curve=quoted("[[1,NaN]]")),
    "classes beyond a float": prediction(classes=quoted('[["a",1e400]]')),
    "evidence of a lone surrogate": prediction(evidence=quoted(f"[{SURROGATE}]")),
    "evidence of a far instant": prediction(evidence=quoted(f'[["a","b",{"9" * 30},1]]')),
    "evidence of infinity": finding(evidence=quoted('[["a","b",1,Infinity]]')),
    "evidence nested deep": finding(evidence=quoted(nested(DEEP))),
    "finding that ends before year 1": finding(last_ms=f"-{NINES}i"),
    "finding that ends in year 30000": finding(last_ms=f"{NINES}i"),
    "owners of a finding nested deep": finding(owners=quoted(nested(DEEP))),
    "code of twenty digits": event("9" * 20),
    "code of five thousand digits": event("9" * 5_000),
    "code field of twenty digits": event("1", f",code={'9' * 20}i"),
    "index of nineteen digits": f"gpu_info,{TAGS} index={NINES}i {T0}",
    "labels nested deep": info('{"a":' + nested(DEEP) + "}"),
    "labels nested to the limit": info('{"a":' + nested(900) + "}"),
    "labels of lone surrogates": info(r'{"\ud800":"1"}'),
    "labels of many digits": info('{"a":' + "9" * 4_000 + "}"),
    "an owner of thirty digits": owner('[{"pid":' + "9" * 30 + "}]"),
    "an owner of infinity": owner('[{"pid":1e400}]'),
    "an owner nested deep": owner('[{"pid":1,"user":' + nested(900) + "}]"),
    "a value beyond a float": f"gpu,{TAGS} power_watts=1e400 {T0}",
    "energy at the end of floats": f"gpu,{TAGS} energy_joules_total=1.7e308,power_watts=1.7e308 {T0}",
    "a reason beyond a float": f"gpu_missing,{TAGS} power_watts=1e400 {T0}",
    # Of GPUs of their own: nobody shows an old reading of one that has a newer.
    "a reading before year 1": f"gpu,gpu_uuid=GPU-early,host=odd power_watts=1 -{'9' * 18}",
    "a reading behind year 9999": f"gpu,gpu_uuid=GPU-late,host=odd power_watts=1 {'9' * 18}",
    "an instant of a thousand digits": f"gpu,{TAGS} power_watts=1 {'9' * 1000}",
    "a name of 100 KB": f"gpu,gpu_uuid={'G' * 100_000},host=odd power_watts=1 {T0}",
    "packed NUL in a GPU": packed("GPU-\0odd", "power_watts", 1.0),
    "packed NUL in a label": packed("GPU-odd", "nvlink_up{link=\0}", 1.0),
    "packed values that are no numbers": packed(
        "GPU-odd,GPU-odd", "power_watts,energy_joules_total", nan, inf, -inf, 1.7e308
    ),
    "packed of a GPU without a name": packed("|GPU-odd,GPU-odd|", "power_watts", 1.0, 1.0),
    "packed names of a label that is none": packed(
        "GPU-odd", "power_watts{link=1},{=},nvlink_up{link=}", 1.0, 1.0, 1.0
    ),
    "NUL in names": f"gpu,gpu_uuid=GPU-\0odd,host=o\0dd power_watts=1 {T0}",
}


@pytest.mark.parametrize("name", LINES)
def test_a_bad_line_costs_no_good_one_and_every_endpoint_answers(shared: Reader, name: str) -> None:
    shared.write(LINES[name])
    shared.running.brain.tick()
    shared.answers()


# ------------------------------------------------------------------------------------------------ any line

INTEGERS = st.sampled_from(
    [0, 1, -1, T0, T0 - HOUR, 10**12, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 253_402_300_800_000, 7_258_118_400_001]
) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.sampled_from(["1e400", "-1e400", "nan", "1.7e308", "-0.0", "1e-320", "0.5", "1"]) | st.floats().map(repr)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | st.text(max_size=6) | st.sampled_from(["\ud800", "GPU-odd"]),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.sampled_from(["pid", "user", "a"]), some, max_size=3),
    max_leaves=8,
)
DOCUMENTS = (
    JSON.map(json.dumps)
    | st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3), INTEGERS, FLOATS), max_size=2).map(
        lambda rows: "[" + ",".join(f"[{json.dumps(n)},{json.dumps(t)},{a},{v}]" for n, t, a, v in rows) + "]"
    )
    | st.lists(st.tuples(INTEGERS, FLOATS), max_size=2).map(lambda rows: str([list(row) for row in rows]))
)
WORDS = st.sampled_from(["likely", "critical", "hardware", "drain", "xid", "gpu", "host", "x", "", "crossing", "m"])
VALUES = (
    INTEGERS.map(lambda n: f"{n}i")
    | FLOATS
    | st.sampled_from(["t", "F"])
    | (DOCUMENTS | WORDS | st.text(max_size=20)).map(quoted)
)
STAMPS = st.just(str(T0)) | INTEGERS.map(str) | st.just("")
FIELDS = st.sampled_from(
    [
        *(spec.field for spec in METRICS.values()),
        *("index", "labels", "owners", "code", "message", "source", "severity", "remedy", "simulated", "absent"),
        *("horizon_ms", "status", "sentence", "curve", "classes", "evidence", "eta_ms", "eta_low_ms", "probability"),
        *("value", "threshold", "category", "action", "last_ms", "metric", "pool", "rack", "model"),
    ]
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line that a measurement may take, with anything in any of its fields."""
    made: Callable[..., str] | None = draw(st.sampled_from([prediction, finding, None, None]))
    fields = draw(st.dictionaries(FIELDS, VALUES, min_size=1, max_size=4))
    if made is not None:
        line = made(**fields)
        return line.removesuffix(str(T0)) + draw(STAMPS)
    kind = draw(st.sampled_from(["gpu", "gpu_missing", "gpu_info", "gpu_owner", "gpu_event", "gpu_packed"]))
    if kind == "gpu_packed":
        numbers = draw(st.lists(st.floats(), min_size=1, max_size=4))
        return packed(draw(st.sampled_from(["GPU-odd", "GPU-odd|MIG", "GPU-odd{1}"])), ",".join(fields), *numbers)
    tags = {"gpu_uuid": "GPU-odd", "host": "odd"} | draw(
        st.dictionaries(
            st.sampled_from(["mig_uuid", "host", "kind", "code", "link", "gpu_uuid", "pid"]),
            WORDS.filter(bool) | INTEGERS.map(str) | st.just("9" * 25),
            max_size=3,
        )
    )
    if kind == "gpu_event":
        tags = {"kind": "xid", **tags}
    head = ",".join([kind, *(f"{name}={value}" for name, value in tags.items())])
    return f"{head} {','.join(f'{name}={value}' for name, value in fields.items())} {draw(STAMPS)}"


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.lists(lines() | st.text(max_size=60), min_size=1, max_size=12))
@example(list(LINES.values()))
def test_whatever_lines_come_every_endpoint_answers(shared: Reader, some: list[str]) -> None:
    shared.write(*some)
    shared.running.brain.tick()
    shared.answers()


def test_after_all_these_the_brain_starts_and_every_endpoint_answers(shared: Reader) -> None:
    shared.again()
    shared.running.brain.tick()
    shared.answers()
