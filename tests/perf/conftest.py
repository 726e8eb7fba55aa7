"""All that the benchmarks measured, in one table below their own; `--figures PAGE` writes it into a page as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin_testing import scale
from tocsin_testing.figures import Result, rows, table, within

NOTHING_SECONDS = 1e-5
_SAID = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="page whose table of figures is replaced by what is measured now")


def pytest_configure(config: pytest.Config) -> None:
    """Before the benchmarks are read: the size of a fleet stands where they begin."""
    scale.measuring = not config.getoption("benchmark_disable")


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Put a figure into the table: what, a colon, what was measured."""
    return request.config.stash.setdefault(_SAID, {}).setdefault(request.path.name, []).append


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    timed = [one for one in (session.benchmarks if session else []) if one.stats and not one.has_error]
    # A benchmark that times nothing itself says its figure in words.
    timed = [one for one in timed if one.stats.rounds > 1 or one.stats.min > NOTHING_SECONDS]
    results = [Result(one.fullname, one.name, one.group or "", one.stats.min) for one in timed]
    found = rows(results, config.stash.get(_SAID, {}))
    if found:
        terminalreporter.section("measured")
        terminalreporter.write_line(table(found))
    page: Path | None = config.getoption("--figures")
    if page and found and not terminalreporter.stats.get("failed") and not terminalreporter.stats.get("error"):
        page.write_text(within(page.read_text(), table(found)))
