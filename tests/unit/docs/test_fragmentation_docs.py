"""The examples of docs/fragmentation.md print what they say, and every metric that it names exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from tocsin.domain.metrics import METRICS

DOCS = Path(__file__).parents[3] / "docs"


def test_the_examples_print_what_they_say() -> None:
    found = doctest.testfile(str(DOCS / "fragmentation.md"), module_relative=False)
    assert found.attempted >= 15
    assert found.failed == 0


def test_every_metric_that_is_named_exists() -> None:
    for name in ("fragmentation.md", "hook.md"):
        named = re.findall(r"`((?:gpu|fleet|vllm)_[a-z0-9_]+)`", (DOCS / name).read_text(encoding="utf-8"))
        assert named
        assert not set(named) - METRICS.keys()
