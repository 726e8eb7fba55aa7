"""The map of the fleet: packing, choice, colours, and what the browser is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tocsin.client.client import Client
from tocsin.client.models import FleetMap
from tocsin.dashboard import heatmap
from tocsin.dashboard.fleet_data import Maps
from tocsin.dashboard.palette import DARK, LIGHT, Palette
from tocsin.dashboard.text import Text
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving


@pytest.fixture(scope="module")
def small() -> FleetMap:
    return FakeService().fleet_map()


def drawn(found: FleetMap, choice: str = "state", palette: Palette = LIGHT) -> dict[str, object]:
    return heatmap.drawing(found, heatmap.choose(found), choice, Text("en"), palette, "a map")


def test_a_small_fleet_is_one_band_with_a_gap_between_racks(small: FleetMap) -> None:
    made = drawn(small)
    assert (made["columns"], made["bands"], made["rows"]) == (9, 1, 8)
    assert made["column"] == (0, 1, 2, 3, 5, 6, 7, 8)
    assert made["labels"] == [(0, 0, "rack-1"), (5, 0, "rack-2")]
    assert made["short"] == [f"{host:02d}" for host in range(1, 9)]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "a", "b", "c"])), min_size=1, max_size=60),
    st.integers(1, 8),
)
def test_no_two_nodes_share_a_place(nodes: list[tuple[int, str]], rows: int) -> None:
    widths, racks = tuple(width for width, _ in nodes), tuple(sorted(rack for _, rack in nodes))
    layout = heatmap.arrange(widths, racks, rows)
    taken = {
        (band, column + step)
        for width, column, band in zip(widths, layout.column, layout.band, strict=True)
        for step in range(width)
    }
    assert len(taken) == sum(widths)
    assert max(column for _, column in taken) < layout.columns
    assert {band for band, _ in taken} == set(range(layout.bands))


def test_ten_thousand_gpus_have_cells_that_can_be_seen() -> None:
    layout = heatmap.arrange((1,) * 1250, tuple(f"rack-{n // 4}" for n in range(1250)), 8)
    assert layout.columns <= 200
    assert layout.bands <= 12
    starts = {(column, band) for column, band, _ in layout.labels}
    assert len(starts) == 313


def test_a_node_with_many_instances_takes_several_columns() -> None:
    found = FleetMap(
        hosts=["n1"], racks=[""], pools=["p"], models=["m"], uuid=[f"MIG-{n}" for n in range(20)], host=[0] * 20,
        model=[0] * 20, index=[None] * 20, state=[0] * 20, temperature=[None] * 20, utilization=[None] * 20,
        memory=[None] * 20, power=[None] * 20, risk=[None] * 20,
    )  # fmt: skip
    made = drawn(found, "temperature")
    assert (made["columns"], made["rows"]) == (3, 8)
    assert made["shade"] == [-1] * 20
    assert made["numbers"] == [""] * 20


@pytest.mark.parametrize(
    ("pools", "find", "count"),
    [([], "", 64), (["inference"], "", 24), ([], "NODE-03", 8), ([], "rack-2", 32), (["training"], "rack-2", 8),
     ([], fleet.uuid(*fleet.HOT), 1), ([], "nothing", 0)],
)  # fmt: skip
def test_filters_leave_the_gpus_that_fit(small: FleetMap, pools: list[str], find: str, count: int) -> None:
    chosen = heatmap.choose(small, pools, find)
    assert len(chosen.gpus) == count
    assert sum(chosen.sizes) == count


def grouped() -> FleetMap:
    """Three hosts of two GPUs: a job on parts of two of them, and a label on two."""
    return FleetMap(
        hosts=["n1", "n2", "n3"], racks=["r1", "r1", "r2"], pools=["b", "a", "b"], models=["H100", "A100"],
        uuid=[f"GPU-{n}" for n in range(6)], host=[0, 0, 1, 1, 2, 2], model=[0, 0, 1, 1, 0, 0],
        index=[0, 1] * 3, state=[0] * 6, temperature=[None] * 6, utilization=[None] * 6, memory=[None] * 6,
        power=[None] * 6, risk=[None] * 6, jobs=["job-2", "job-10"], job=[1, 0, 0, None, None, 1],
        labels={"zone": {"values": ["", "east"], "of": [0, 1, 1]}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("by", "order", "groups"),
    [
        ("rack", [0, 1, 2, 3, 4, 5], ["r1", "r1", "r2"]),
        ("pool", [2, 3, 0, 1, 4, 5], ["a", "b", "b"]),
        ("model", [2, 3, 0, 1, 4, 5], ["A100", "H100", "H100"]),
        ("job", [1, 2, 0, 5, 3, 4], ["job-2", "job-2", "job-10", "job-10", "", ""]),
        ("label:zone", [2, 3, 4, 5, 0, 1], ["east", "east", ""]),
        ("label:gone", [0, 1, 2, 3, 4, 5], ["r1", "r1", "r2"]),
    ],
)
def test_gpus_stand_with_those_of_their_group(by: str, order: list[int], groups: list[str]) -> None:
    chosen = heatmap.choose(grouped(), by=by)
    assert (chosen.gpus, chosen.groups) == (order, groups)
    assert sum(chosen.sizes) == 6
    made = heatmap.drawing(grouped(), chosen, "state", Text("en"), LIGHT, "a map")
    assert made["groups"] == tuple(groups)
    assert isinstance(made["labels"], list)
    assert [name for _, _, name in made["labels"]] == [name or "none" for name in dict.fromkeys(groups)]
    assert heatmap.groupings(grouped()) == ["rack", "job", "model", "pool", "label:zone"]


@pytest.mark.parametrize("wrong", [{"job": [0]}, {"job": [2] * 6}, {"labels": {"zone": {"values": [], "of": [0] * 3}}}])
def test_a_map_whose_columns_disagree_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"differ|outside|fit"):
        FleetMap.model_validate(grouped().model_dump() | wrong)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("choice", heatmap.MEASURES)
def test_each_gpu_has_a_shade_and_none_where_it_has_no_value(small: FleetMap, choice: str, palette: Palette) -> None:
    made = drawn(small, choice, palette)
    shades, colours = made["shade"], made["colours"]
    assert isinstance(shades, list)
    assert isinstance(colours, list)
    assert len(shades) == 64
    assert max(shades) < len(colours)
    lost = small.uuid.index(fleet.uuid(*fleet.LOST))
    assert (shades[lost] == -1) == (choice != "state")
    json.dumps(made)


def test_heat_turns_to_the_colours_of_trouble_at_its_threshold() -> None:
    measure = heatmap.MEASURES["temperature"]
    assert measure is not None
    states = list(LIGHT.states.values())
    assert measure.colour(85.0, LIGHT) == states[2]
    assert measure.colour(120.0, LIGHT) == states[3]
    assert measure.colour(-5.0, LIGHT) == LIGHT.scale[0]
    assert [measure.shade(value) for value in (None, -40.0, 30.0, 95.0, 200.0)] == [-1, 0, 0, 31, 31]


def test_what_has_not_changed_is_the_same_object_and_is_not_sent() -> None:
    service = FakeService()
    maps = Maps()
    with serving(service) as url, Client(url) as client:
        first = maps.look(client)
        assert maps.look(client) is first
        service.simulated = False
        assert maps.look(client) is first
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleet, "HOSTS", 3)
            assert len(maps.look(client).uuid) == 24


def test_columns_that_do_not_agree_are_no_map() -> None:
    whole = FakeService().fleet_map().model_dump()
    for change in ({"index": [1]}, {"racks": []}, {"host": [99] * 64}, {"state": [5] * 64}):
        with pytest.raises(ValueError, match=r"columns|position|less than"):
            FleetMap.model_validate({**whole, **change})
