"""Numbers, charts, filters and orders of the view in a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.client.models import GpuState
from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.errors import InputError
from tocsin.terminal import rows, tables, text
from tocsin.terminal.look import Look, UtilisationHistory
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.screens import FakeFeed, fleet_gpus


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (9_360, "2.6 h"), (259_200, "3.0 d")],
)
def test_a_span_has_one_unit(seconds: float, said: str) -> None:
    assert text.span(seconds) == said


def test_a_lead_has_its_interval_and_never_lies_in_the_past() -> None:
    now, soon, late = to_iso(0), to_iso(2 * HOUR), to_iso(5 * HOUR)
    assert text.lead(now, soon) == "in 2.0 h"
    assert text.lead(now, soon, now, late) == "in 2.0 h (0 s to 5.0 h)"
    assert text.lead(now, soon, now) == "in 2.0 h (not before 0 s)"
    assert text.lead(late, soon) == "in 0 s"
    assert text.lead(now, None) == ""


def test_a_chance_claims_no_certainty() -> None:
    assert [text.chance(p) for p in (0.0, 0.22, 1.0)] == ["< 1 %", "22 %", "> 99 %"]


@given(st.lists(st.none() | st.floats(0, 1), max_size=40), st.integers(1, 6))
def test_a_chart_has_a_column_a_value_and_nothing_where_there_is_none(values: list[float | None], height: int) -> None:
    lines = text.chart(values, height, 0.0, 1.0)
    assert len(lines) == height
    assert all(len(line) == len(values) for line in lines)
    for column, value in enumerate(values):
        blank = all(line[column] == " " for line in lines)
        assert blank == (value is None)


@given(st.floats(-0.5, 1.5), st.integers(1, 20))
def test_a_bar_has_its_width_and_grows_with_its_ratio(ratio: float, width: int) -> None:
    drawn = text.bar(ratio, width)
    assert len(drawn) == width
    assert drawn.count("█") <= text.bar(min(1.0, ratio + 0.2), width).count("█")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.integers(1, 50))
def test_spreading_loses_no_greatest_value(values: list[float], width: int) -> None:
    spread = text.spread(values, width)
    assert len(spread) == width
    if len(values) >= width:
        assert max(value for value in spread if value is not None) == max(values)


def test_metrics_stand_in_words() -> None:
    said = "sim-node-1 GPU 0: gpu_memory_used_ratio is predicted to cross 90 %; gpu_of_mine is no metric"
    assert text.plain(said, "sim-node-1 GPU 0") == ("Memory used is predicted to cross 90 %; gpu_of_mine is no metric")


def test_a_sentence_loses_the_name_that_stands_beside_it_and_most_of_a_uuid() -> None:
    said = "gpu-node-03 GPU 5: GPU-0000beef-0000-4000-8000-000000000005 is hot"
    assert text.plain(said, "gpu-node-03 GPU 5") == "GPU-0000beef… is hot"


@pytest.mark.parametrize("words", ["heat>3", "hot<1"])
def test_a_filter_by_an_unknown_figure_names_the_known(words: str) -> None:
    with pytest.raises(InputError, match="compare one of util, mem, temp"):
        rows.gpu_filter(words)


def test_attention_is_the_cards_of_a_brain_in_its_order() -> None:
    look = FakeFeed().shown
    found = rows.attention(look)
    assert [one.key for one in found] == [card.id for card in look.cards]
    assert [one.state for one in found[:2]] == [GpuState.CRITICAL, GpuState.CRITICAL]
    assert [one.name for one in found if not one.uuid] == ["pool inference"]
    asking = next(card for card in look.cards if card.action is not None)
    line = next(one for one in found if one.key == asking.id)
    assert line.sentence.endswith(f"open. {asking.next}")


def test_attention_without_a_brain_begins_with_the_worst_and_knows_wide_incidents() -> None:
    found = rows.attention(replace(FakeFeed().shown, summary=None))
    assert [one.state for one in found[:2]] == [GpuState.LOST, GpuState.CRITICAL]
    ahead = next(one for one in found if one.state is GpuState.OK and one.uuid)
    assert ahead.lead_s < rows.LATEST
    assert "22 %" in ahead.sentence
    assert [one.name for one in found if not one.uuid] == ["pool inference"]


def test_a_node_is_the_sum_of_its_gpus() -> None:
    gpus = fleet_gpus(fleet.HOSTS)
    node = next(one for one in rows.nodes(gpus) if one.host == "gpu-node-06")
    own = [gpu for gpu in gpus if gpu.host == node.host]
    assert node.gpus == 8
    assert node.state is GpuState.LOST
    assert node.power == pytest.approx(sum(gpu.power_watts or 0.0 for gpu in own))
    assert node.hottest == max(gpu.temperature_celsius or 0.0 for gpu in own)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "made", [tables.attention, tables.decisions, tables.nodes, lambda: tables.gpus(UtilisationHistory())]
)
def test_every_column_orders_all_lines(made: object, turned: bool) -> None:
    table = made()  # type: ignore[operator]
    look = FakeFeed().shown
    lines = table.rows(look)
    for column in table.columns:
        ordered = table.ordered(lines, column.title, turned=turned)
        assert sorted(map(table.key, ordered)) == sorted(map(table.key, lines))


@pytest.mark.parametrize("width", [72, 76, 99, 118, 139, 200])
def test_columns_fill_the_width(width: int) -> None:
    for table in (tables.gpus(UtilisationHistory()), tables.attention(), tables.decisions(), tables.nodes()):
        shown = table.shown(width)
        assert sum(cells for _, cells in shown) + len(shown) - 1 == width, table.name


def test_history_counts_a_reading_once_and_forgets_who_is_gone() -> None:
    history, gpu = UtilisationHistory(), fleet.gpu_summary(0, 0)
    later = gpu.model_copy(update={"last_reading": to_iso(fleet.NOW_MS), "utilization_ratio": 0.5})
    for shown in (gpu, gpu, later):
        history.take(Look("test", to_iso(fleet.NOW_MS), (shown,)))
    assert list(history.of(gpu.uuid)) == [gpu.utilization_ratio, 0.5]
    history.take(Look("test", to_iso(fleet.NOW_MS), ()))
    assert list(history.of(gpu.uuid)) == []
