"""`tocsin usage` in its forms, over two days whose truth is known. `TOCSIN_WRITE_GOLDEN=1` writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tocsin.accounting.prices import PriceList
from tocsin.cli.usage import right_size_lines, usage_lines
from tocsin.client.models_usage import UsageBy
from tocsin.client.usage_csv import csv_of
from tocsin.domain.clock import DAY, from_iso
from tocsin.queries.usage import UsageQueries
from tocsin_testing import fake_usage

GOLDEN = Path(__file__).parent / "usage"
NOW = from_iso("2026-11-21T06:00:00Z")
FIRST, LAST = NOW // DAY - 2, NOW // DAY
ASKED = UsageQueries(fake_usage.brain(NOW))


def same(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("TOCSIN_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


@pytest.mark.parametrize("by", [["namespace"], ["team", "account"], ["job"], ["model", "kind"]])
def test_the_table_by(by: list[UsageBy]) -> None:
    same(f"{'_'.join(by)}.txt", "\n".join(usage_lines(ASKED.usage(FIRST, LAST, by, 30))) + "\n")


def test_what_is_not_shown_is_one_row_so_that_the_rows_add_up() -> None:
    found = ASKED.usage(FIRST, LAST, ["job"], 2)
    assert sum(row.gpu_hours for row in found.rows) == pytest.approx(found.total.gpu_hours)
    same("rest.txt", "\n".join(usage_lines(found)) + "\n")


def test_without_prices_there_is_no_money() -> None:
    found = UsageQueries(fake_usage.brain(NOW, prices=PriceList())).usage(FIRST, LAST, ["namespace"], 30)
    same("no_price.txt", "\n".join(usage_lines(found)) + "\n")


def test_csv() -> None:
    same("namespace.csv", csv_of(ASKED.usage(FIRST, LAST, ["namespace", "pool"], 30)))


def test_right_size() -> None:
    same("right_size.txt", "\n".join(right_size_lines(ASKED.right_size(FIRST, LAST, 30))) + "\n")
