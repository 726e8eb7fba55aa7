"""What users, files and other programs rely on by name is as it was on commit 2bd2118, but for what is named here."""

from __future__ import annotations

import json
from pathlib import Path

from tocsin_testing.inventory import inventory, lost, sample

ROOT = Path(__file__).parents[3]
BEFORE = ROOT / "tests" / "data" / "inventory" / "2bd2118.json"

GONE: dict[str, dict[str, str]] = {}
"""What is gone on purpose: kind to name to reason."""


def test_nothing_is_lost_but_what_is_named() -> None:
    gone = lost(json.loads(BEFORE.read_text()), inventory(ROOT))
    assert gone == {kind: sorted(names) for kind, names in GONE.items()}


def test_what_is_gone_and_what_is_new_is_told() -> None:
    assert lost({"rules": ["a", "b"], "guards": ["c"]}, {"rules": ["b", "d"]}) == {"rules": ["a"], "guards": ["c"]}
    assert lost({"rules": ["a"]}, {"rules": ["a"]}) == {}


def test_a_sample_leaves_nothing_out() -> None:
    from tocsin.domain.batch import Batch

    batch = sample(Batch)
    assert batch.readings[0].values == {"gpu_power_watts": 0.5}
    assert batch.predictions[0].eta_ms is not None
    assert batch.findings[0].owners
