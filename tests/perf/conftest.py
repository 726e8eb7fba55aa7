"""Benchmarks may say in a sentence what they measured; it is printed below their table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_SAID = pytest.StashKey[list[str]]()


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line at the end of the run."""
    return request.config.stash.setdefault(_SAID, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    said = config.stash.get(_SAID, [])
    if said:
        terminalreporter.section("measured")
        for line in said:
            terminalreporter.write_line(line)
