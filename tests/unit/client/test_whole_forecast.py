"""What lies ahead in several cells, as in one fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.client.models_capacity import ForecastOut, RiskCalendar
from tocsin.client.whole_forecast import whole_capacity, whole_forecast
from tocsin.domain.prediction import PredictionStatus
from tocsin_testing import fake_ahead


def later(one: ForecastOut, minutes: int) -> ForecastOut:
    """The same with its memory full so many minutes later."""
    moved = []
    for each in one.memory:
        said = replace(each.prediction, eta_ms=(each.prediction.eta_ms or 0) + 60_000 * minutes)
        moved.append(each.model_copy(update={"prediction": said}))
    return one.model_copy(update={"memory": moved})


def test_lists_hold_the_most_urgent_of_all_cells_and_counts_are_added_up() -> None:
    one = fake_ahead.forecast(5, 4, simulated=True)
    found = whole_forecast({"west": later(one, 7), "east": one}, 3)
    first, second = one.risk.gpus[:2]
    assert [each.gpu for each in found.risk.gpus] == [first.gpu, first.gpu, second.gpu]
    assert len(found.risk.hosts) == 3
    soon, late = (each.prediction.eta_ms or 0 for each in found.memory[:2])
    assert (soon, late - soon) == (one.memory[0].prediction.eta_ms, 7 * 60_000)
    assert found.memory_statuses == {status: 2 * count for status, count in one.memory_statuses.items()}
    assert found.fragmentation_total == 2 * one.fragmentation_total
    assert found.risk.expected == [(ahead, pytest.approx(2 * count)) for ahead, count in one.risk.expected]
    assert found.risk.statuses[PredictionStatus.NOT_ENOUGH_DATA] == 2
    assert (found.risk.model, found.risk.record) == (one.risk.model, one.risk.record)


def test_a_cell_without_a_model_takes_nothing_from_the_others() -> None:
    one = fake_ahead.forecast(5, 4, simulated=False)
    silent = one.model_copy(update={"risk": RiskCalendar(sentence="no model passed its gate")})
    found = whole_forecast({"east": silent, "west": one}, 5)
    assert found.risk.gpus == one.risk.gpus
    assert found.risk.horizon_s == one.risk.horizon_s
    assert found.risk.sentence == "in cell east: no model passed its gate"
    nobody = whole_forecast({"east": silent}, 5).risk
    assert (nobody.model, nobody.gpus, nobody.record) == ("", [], [])


def test_pools_are_named_by_their_cells_the_largest_first() -> None:
    one = fake_ahead.capacity(simulated=True)
    found = whole_capacity({"west": one, "east": one})
    assert [pool.pool for pool in found.pools] == ["east/training", "west/training", "east/inference", "west/inference"]
    assert found.pools_total == 2 * one.pools_total
    assert not found.fragmented.at
    assert found.pools[0].utilisation == one.pools[0].utilisation
