"""The table of measured figures: from the results of pytest-benchmark to Markdown, and into a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

HEAD = ("file", "what", "measured", "baseline", "ratio")
BEGIN, END = "<!-- figures: made by `make bench` -->", "<!-- end of figures -->"
BASELINE = "baseline"
"""A benchmark with this word in its name is what the others of its group are compared with."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True)
class Result:
    """One benchmark: the fastest of its rounds in seconds; `group` may be empty."""

    fullname: str
    name: str
    group: str
    seconds: float

    @property
    def file(self) -> str:
        """Module of the benchmark, without its folder."""
        return self.fullname.partition("::")[0].rpartition("/")[2]

    @property
    def is_baseline(self) -> bool:
        return BASELINE in self.name

    @property
    def words(self) -> str:
        """The name of the test as words."""
        plain, _, case = self.name.rstrip("]").partition("[")
        told = plain.removeprefix("test_").replace("_", " ").removeprefix("baseline ")
        return f"{told}, {case.replace('_', ' ').removeprefix('baseline ')}" if case else told


@dataclass(frozen=True)
class Row:
    """One line of the table; what does not apply is empty."""

    file: str
    what: str
    measured: str
    baseline: str = ""
    ratio: str = ""


def duration(seconds: float) -> str:
    """`seconds` with three digits in the largest unit that leaves one before the point."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def _partner(result: Result, baselines: Sequence[Result]) -> Result | None:
    """The baseline of a group; where it has several, the one that ran the same case."""
    cases = set(re.split(r"[\[\]-]", result.name))
    return max(baselines, key=lambda one: len(cases & set(re.split(r"[\[\]-]", one.name))), default=None)


def _measured(result: Result, beside: Result | None) -> Row:
    told = f"{result.group}: {result.words}" if result.group else result.words
    if beside is None:
        return Row(result.file, told, duration(result.seconds))
    against = f"{beside.words}: {duration(beside.seconds)}"
    return Row(result.file, told, duration(result.seconds), against, f"{result.seconds / beside.seconds:.2g}")


def rows(results: Iterable[Result], said: Mapping[str, Sequence[str]]) -> list[Row]:
    """Every benchmark beside the baseline of its group, and every sentence that a file `said`, by file.

    A sentence is cut at its first colon: what, then what was measured.
    """
    kept = list(results)
    groups: dict[str, list[Result]] = {}
    for one in kept:
        if one.is_baseline:
            groups.setdefault(one.group, []).append(one)
    found = [_measured(one, _partner(one, groups.get(one.group, []))) for one in kept if not one.is_baseline]
    for file, sentences in said.items():
        parts = [sentence.strip().partition(": ") for sentence in sentences]
        found += [Row(file, what, measured) for what, _, measured in parts]
    return sorted(found, key=lambda row: row.file)


def table(found: Iterable[Row]) -> str:
    """`found` as a Markdown table."""
    lines = [HEAD, tuple("---" for _ in HEAD)]
    lines += [(f"`{row.file}`", row.what, row.measured, row.baseline, row.ratio) for row in found]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def within(page: str, made: str) -> str:
    """`page` with its table replaced by `made`. Raises ValueError where it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"
