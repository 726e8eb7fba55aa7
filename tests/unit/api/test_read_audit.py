"""Reads that are put on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from starlette.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.api.principal import Principal, simple
from tocsin.api.read_audit import MOST_ROWS, ReadAudit
from tocsin.config.access import ApiSettings, ReadAuditSettings, Role
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import Unavailable
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService

VERA, OLGA = simple("vera", Role.VIEWER), simple("olga", Role.OPERATOR)
TENANT = simple("tina", Role.VIEWER, namespaces=["alpha"])


class Book:
    """Where reads are put on record; `closed` takes none."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[Mapping[str, object]], int]] = []
        self.closed = False

    def take(self, rows: Sequence[Mapping[str, object]], left_out: int) -> None:
        if self.closed:
            raise Unavailable("another brain leads")
        self.entries.append((list(rows), left_out))


def audit(book: Book, clock: ManualClock | None = None, **settings: object) -> ReadAudit:
    return ReadAudit(ReadAuditSettings.model_validate(settings), clock or ManualClock(T0), book.take)


def test_one_row_for_each_reader_and_path() -> None:
    book, clock = Book(), ManualClock(T0)
    made = audit(book, clock, roles=["viewer"])
    for path in ("/v1/gpus", "/v1/cards", "/v1/gpus"):
        made.note(VERA, "GET", path)
        clock.advance(1_000)
    made.look()
    made.look()
    row = {"who": "vera", "role": "viewer", "path": "/v1/gpus", "count": 2, "first_ms": T0, "last_ms": T0 + 2_000}
    assert len(book.entries) == 1
    assert book.entries[0][0][0] == row
    assert book.entries[0][1] == 0


@pytest.mark.parametrize(
    ("settings", "who", "method", "noted"),
    [
        ({}, VERA, "GET", False),
        ({"roles": ["operator"]}, VERA, "GET", False),
        ({"roles": ["operator"]}, OLGA, "GET", True),
        ({"roles": ["viewer"]}, VERA, "POST", False),
        ({"roles": ["viewer"], "paths": ["/v1/usage*"]}, VERA, "GET", False),
        ({"roles": ["viewer"], "paths": ["/v1/g*"]}, VERA, "GET", True),
        ({"tenants": True}, VERA, "GET", False),
        ({"tenants": True}, TENANT, "GET", True),
    ],
)
def test_what_is_asked_for_is_noted(settings: dict[str, object], who: Principal, method: str, noted: bool) -> None:
    book = Book()
    made = audit(book, **settings)
    made.note(who, method, "/v1/gpus")
    made.look()
    assert bool(book.entries) is noted


def test_an_entry_is_bounded_and_counts_what_it_leaves_out() -> None:
    book = Book()
    made = audit(book, roles=["viewer"])
    for n in range(MOST_ROWS + 7):
        made.note(VERA, "GET", f"/v1/gpus/{n}" + "x" * 1_000)
    made.look()
    assert len(book.entries[0][0]) == MOST_ROWS
    assert book.entries[0][1] == 7
    assert max(len(str(row["path"])) for row in book.entries[0][0]) == 200


def test_what_cannot_be_put_on_record_waits() -> None:
    book = Book()
    made, book.closed = audit(book, roles=["viewer"]), True
    made.note(VERA, "GET", "/v1/gpus")
    made.look()
    made.note(VERA, "GET", "/v1/gpus")
    book.closed = False
    made.look()
    assert [row["count"] for row in book.entries[0][0]] == [2]


def test_who_is_on_record_is_not_answered_on_standby() -> None:
    tokens = [
        {"name": "vera", "role": "viewer", "secret": "vera-secret-of-sixteen"},
        {"name": "olga", "role": "operator", "secret": "olga-secret-of-sixteen"},
    ]
    settings = ApiSettings.model_validate({"tokens": tokens, "audit_reads": {"roles": ["viewer"]}})
    service = FakeService()
    service.standby = "this brain is on standby: x is the active one; ask there"
    client = TestClient(create_app(service, settings), base_url="http://127.0.0.1")
    found = {
        name: client.get("/v1/fleet", headers={"Authorization": f"Bearer {name}-secret-of-sixteen"})
        for name in ("vera", "olga")
    }
    assert (found["vera"].status_code, found["olga"].status_code) == (503, 200)
    assert "x is the active one; ask there" in found["vera"].json()["error"]["message"]


def test_a_request_that_is_refused_is_no_read() -> None:
    tokens = [
        {"name": "vera", "role": "viewer", "secret": "vera-secret-of-sixteen"},
        {"name": "node", "role": "agent", "secret": "node-secret-of-sixteen"},
    ]
    settings = ApiSettings.model_validate({"tokens": tokens, "audit_reads": {"roles": ["viewer", "agent"]}})
    service = FakeService()
    app = create_app(service, settings)
    client = TestClient(app, base_url="http://127.0.0.1")
    for name, path in (("vera", "/v1/fleet"), ("node", "/v1/fleet"), ("vera", "/v1/journal/verify")):
        client.get(path, headers={"Authorization": f"Bearer {name}-secret-of-sixteen"})
    app.state.read_audit.look()
    entry = service.journal(0, 100, ["reads"])[0]
    assert [row["path"] for row in entry.payload["reads"]] == ["/v1/fleet"]  # type: ignore[attr-defined]
