"""The export of a long journal: not for everybody, in bounded memory, and no reader of it is in anybody's way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from time import process_time

import httpx2
import pytest

from tocsin.domain.clock import ManualClock, SystemClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.export import Format, export
from tocsin.journal.file_past import FilePast
from tocsin.journal.journal import Journal
from tocsin_testing.attacked import HOSTILE, Victim, attacked, secret
from tocsin_testing.builders import T0

ENTRIES = 20_000
USER = "u" * 1_000
MOST_HELD = 32 * 1024 * 1024
"""Of an export of 20 MB and more: what CEF remembers and a page of the journal, not the journal."""
MOST_CPU_SECONDS = 20.0
READERS = 60


def long_journal(path: Path, start_ms: int) -> Path:
    with closing(Journal.open(path, ManualClock(start_ms))) as journal:
        for _ in range(ENTRIES // 1_000):
            journal.append_many([(EntryKind.LOGIN, {"user": USER, "outcome": "denied"}, False)] * 1_000)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_journal(tmp_path_factory.mktemp("export") / "journal.db", T0)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """As of the other attacks, its journal a long one."""
    folder = tmp_path_factory.mktemp("attack")
    long_journal(folder / "journal.db", SystemClock().now_ms())
    with attacked(str(folder)) as made:
        yield made


@pytest.mark.parametrize("form", ["jsonl", "cef"])
@pytest.mark.parametrize("kinds", [None, [EntryKind.REJECTION]], ids=["all", "a kind that is not there"])
def test_an_export_holds_a_page_and_not_the_journal(written: Path, form: Format, kinds: list[EntryKind] | None) -> None:
    begun, lines, length = process_time(), 0, 0
    tracemalloc.start()
    try:
        for line in export(FilePast(written), form, kinds=kinds):
            lines, length = lines + 1, length + len(line)
        _, held = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines == (ENTRIES if kinds is None else 0)
    assert kinds is not None or length > ENTRIES * len(USER)
    assert held < MOST_HELD, f"{held:,} bytes"
    assert process_time() - begun < MOST_CPU_SECONDS


@pytest.mark.parametrize(("who", "status"), [("", 401), ("nobody", 401), (HOSTILE, 403)])
def test_it_is_not_for_who_may_not_read_the_fleet(victim: Victim, who: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {secret(who)}"} if who else {}
    answer = httpx2.get(f"{victim.url}/v1/journal/export", headers=headers, trust_env=False)
    assert answer.status_code == status
    assert USER not in answer.text


def test_readers_that_do_not_read_are_in_nobody_s_way(victim: Victim) -> None:
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {secret('anna')}\r\n\r\n"
    with ExitStack() as stack:
        victim.hold(stack, READERS // 2, f"GET /v1/journal/export HTTP/1.1\r\n{head}")
        victim.hold(stack, READERS // 2, f"GET /v1/journal/export?form=cef HTTP/1.1\r\n{head}")
        victim.serves()
    # Who reads it gets it whole.
    answer = victim.get("/v1/journal/export", "anna")
    assert answer.status_code == 200
    assert answer.text.count(USER) >= ENTRIES
