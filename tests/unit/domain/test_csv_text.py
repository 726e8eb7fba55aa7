"""Names in a CSV file are no formulas, however a spreadsheet splits its lines."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.csv_text import csv_text, defused

SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web", "web"),
        ("", ""),
        ("train-7 + x", "train-7 + x"),
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("x;=HYPERLINK(1)", "x;'=HYPERLINK(1)"),
        ("\uff1dcmd|' /C calc'!A0", "'\uff1dcmd|' /C calc'!A0"),
        ("\n=1+1", "'\n'=1+1"),
        (" =1+1", " '=1+1"),
        ('a";" +1', 'a";" \'+1'),
    ],
)
def test_a_name_is_no_formula(name: str, shown: str) -> None:
    assert defused(name) == shown


@given(st.lists(st.text(st.sampled_from(["a", " ", ";", ",", "\t", "\r", "\n", '"', "'", *SIGNS]), max_size=12)))
def test_no_part_of_a_name_begins_with_a_sign_however_lines_are_split(names: list[str]) -> None:
    text = csv_text(["a"], [names])
    for separator in (";", "\t"):
        for line in text.splitlines():
            assert [part for part in line.split(separator) if part.strip().strip('"').strip().startswith(SIGNS)] == []
    back = list(csv.reader(io.StringIO(text, newline="")))
    assert len(back) == 2
    assert all(not cell.strip().startswith(SIGNS) for row in back for cell in row)


def test_texts_are_quoted_and_numbers_are_not() -> None:
    rows = [("x", 1, -2.5, Decimal("0.000000"), ""), ('a"b', 0, 0.0, Decimal("96.500000"), "c,d")]
    assert csv_text(["n", "i", "f", "d", "t"], rows).splitlines() == [
        "n,i,f,d,t",
        '"x",1,-2.5,0.000000,""',
        '"a""b",0,0.0,96.500000,"c,d"',
    ]
