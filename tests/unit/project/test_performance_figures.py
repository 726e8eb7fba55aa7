"""The table of figures, and that its page and the benchmarks know the same files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tocsin_testing.figures import BEGIN, END, Result, Row, duration, rows, table, within

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "performance_figures.md").read_text()


def result(name: str, seconds: float, group: str = "g", file: str = "tests/perf/test_perf_a.py") -> Result:
    return Result(f"{file}::{name}", name, group, seconds)


@pytest.mark.parametrize(
    ("seconds", "words"), [(12.345, "12.3 s"), (0.0451, "45.1 ms"), (0.00000216, "2.16 us"), (3e-10, "0.3 ns")]
)
def test_durations_keep_three_digits(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_benchmark_stands_beside_the_baseline_of_its_group() -> None:
    found = rows([result("test_baseline_csv", 0.2), result("test_read_fast", 0.05), result("test_alone", 1.0, "")], {})
    assert found == [
        Row("test_perf_a.py", "g: read fast", "50 ms", "csv: 200 ms", "0.25"),
        Row("test_perf_a.py", "alone", "1 s"),
    ]


def test_of_several_baselines_that_of_the_same_case_is_taken() -> None:
    names = ["test_day[baseline_rows-60]", "test_day[baseline_rows-1]", "test_day[ours-60]", "test_day[ours-1]"]
    found = rows([result(name, n + 1.0) for n, name in enumerate(names)], {})
    assert [row.baseline for row in found] == ["day, rows-60: 1 s", "day, rows-1: 2 s"]


def test_sentences_are_cut_at_the_first_colon_and_sorted_by_file() -> None:
    found = rows([result("test_x", 1.0)], {"test_perf_0.py": ["memory: 67 MB: all of it", "no colon"]})
    assert [(row.file, row.what, row.measured) for row in found[:2]] == [
        ("test_perf_0.py", "memory", "67 MB: all of it"),
        ("test_perf_0.py", "no colon", ""),
    ]


def test_the_table_goes_between_its_marks_and_nowhere_else() -> None:
    made = table([Row("f.py", "a|b", "1 s")])
    assert made.splitlines()[2] == "| `f.py` | a/b | 1 s |  |  |"
    page = f"before {BEGIN} old {END} after"
    assert within(page, made) == f"before {BEGIN}\n\n{made}\n\n{END} after"
    assert within(within(page, made), made) == within(page, made)
    with pytest.raises(ValueError, match="lacks"):
        within("no marks", made)


def test_the_page_has_figures_of_every_benchmark_and_of_no_other() -> None:
    measured = PAGE.partition(BEGIN)[2].partition(END)[0]
    listed = set(re.findall(r"^\| `(test_\w+\.py)` \|", measured, re.MULTILINE))
    files = [path for path in (ROOT / "tests" / "perf").glob("test_*.py") if "benchmark" in path.read_text()]
    assert listed == {path.name for path in files if "pytestmark = pytest.mark.gpu" not in path.read_text()}
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named <= {path.name for path in (ROOT / "tests" / "perf").glob("test_*.py")}
