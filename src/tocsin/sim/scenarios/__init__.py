"""Scenario files: read, and checked against the kinds of faults that there are.

Kinds need a scenario's numbers, and a file is checked against the kinds: the check stands above both.
"""

from __future__ import annotations

from pathlib import Path

from tocsin.domain.errors import InputError
from tocsin.sim.faults import check
from tocsin.sim.scenario import Scenario, default_scenario, read_scenario


def load_scenario(path: Path) -> Scenario:
    """The scenario in the file `path`. Raises InputError that names the key, its value and the remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("scenario", str(path), f"cannot be read: {error}", "name a readable TOML file") from None
    return parse_scenario(text, str(path))


def scenario_of(path: Path | None) -> Scenario:
    """The scenario in `path`, or the one that ships. Raises InputError as `load_scenario` does."""
    return default_scenario() if path is None else load_scenario(path)


def parse_scenario(text: str, where: str) -> Scenario:
    """The scenario that `text` describes; `where` names it in errors. Raises InputError."""
    scenario = read_scenario(text, where)
    check(scenario)
    return scenario
