"""The trial of fracast: what is asked of both models, and what becomes of their answers. No fracast is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.errors import InputError
from tocsin_benchmarks.quantiles.fracast_trial import (
    BEGIN,
    END,
    EVERY,
    FRACAST,
    MEMORY,
    METRICS,
    PAST,
    SHARES,
    SHIPS,
    Stated,
    above,
    cases_of,
    conformal,
    crossing_rows,
    put,
    shipped,
)


def leak(minutes: int, reaches: int) -> np.ndarray:
    """float32[2, minutes, metrics]: memory of one GPU holds, then grows to 0.9 at minute `reaches`; the other holds."""
    values = np.full((2, minutes, len(METRICS)), 50.0, np.float32)
    values[:, :, METRICS.index("gpu_power_watts")] += np.arange(minutes) % 7
    values[1, :, METRICS.index(MEMORY)] = 0.5
    values[0, :, METRICS.index(MEMORY)] = np.clip(0.9 - (reaches - np.arange(minutes)) * 0.001, 0.3, 0.95)
    return values


def test_a_case_knows_what_came_and_the_service_states_a_chance_of_it() -> None:
    cases = cases_of(leak(PAST + 600, PAST + 90), MEMORY)
    first = np.flatnonzero(cases.end_ms == cases.end_ms.min())
    assert cases.gpu[first].tolist() == [0, 1]
    assert cases.crossed[2][first].tolist() == [True, False]
    assert cases.after.shape[1] == 36
    assert (np.diff(np.unique(cases.end_ms)) == EVERY * 60_000).all()
    said = shipped(cases, MEMORY)
    assert said[2][first[0]] > 0.5
    assert said[2][first[1]] == 0.0


def test_the_layer_moves_quantiles_to_their_share() -> None:
    rng = np.random.default_rng(0)
    found, truth = np.zeros((4_000, 1, SHARES.size)), rng.normal(3.0, 1.0, (4_000, 1))
    moved = found + conformal(found, truth)
    assert (truth < moved[:, 0]).mean(axis=0) == pytest.approx(SHARES, abs=0.01)
    assert above(moved[:1], 3.0)[0] == pytest.approx(0.5, abs=0.03)
    assert above(moved[:1], 99.0)[0] == 0.0


def test_who_knows_all_has_a_skill_of_one_and_too_few_are_told() -> None:
    cases = cases_of(leak(PAST + 600, PAST + 90), MEMORY)
    came = cases.crossed[2].astype(float)
    stated = {SHIPS: Stated(came, came), FRACAST: Stated(1.0 - came, 1.0 - came)}
    rows = crossing_rows(MEMORY, 2, (cases, cases), stated)
    assert [row[4:7] for row in rows] == [(SHIPS, "1.000", "1.000"), (FRACAST, "0.000", rows[1][6])]
    assert float(str(rows[1][6])) < 0.0
    calm = cases_of(leak(PAST + 600, 10 * PAST), MEMORY)
    assert crossing_rows(MEMORY, 2, (calm, calm), stated)[0][4] == "too few"


def test_tables_go_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    put(page, ["new"])
    put(page, ["new"])
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(InputError, match="has no place for what is generated"):
        put(page, ["new"])
