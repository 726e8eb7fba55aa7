"""A row of numbers under shared names says what a dict of the same values does, whatever is put to it."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.number_row import Apart, Names, NumberRow, joined, names_of, parts_of, picked, shape_of
from tocsin.domain.reading import Reading
from tocsin.rules.frame import Ageing, Frame, MetricKeys
from tocsin.rules.sheet import GPU_SHEET
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.packed import values_line
from tocsin_testing.builders import T0, gpu

_KEYS = [f"metric_{number}" for number in range(4)] + [f'metric_{number}{{pid="{number}"}}' for number in range(4)]
_VALUES = st.dictionaries(st.sampled_from(_KEYS), st.floats(allow_nan=False), max_size=8)


def _row(values: Mapping[str, float]) -> NumberRow:
    return NumberRow(names_of(tuple(values)), array("d", values.values()))


@st.composite
def _said(draw: st.DrawFn) -> list[tuple[dict[str, float], bool]]:
    """Values in the order of their lines, and whether each came as a row."""
    return draw(st.lists(st.tuples(_VALUES, st.booleans()), min_size=1, max_size=5))


def _put_together(said: list[tuple[dict[str, float], bool]]) -> tuple[Mapping[str, float], dict[str, float]]:
    found: Mapping[str, float] = {}
    plain: dict[str, float] = {}
    for values, as_row in said:
        found = joined(found, _row(values) if as_row else values)
        plain |= values
    return found, plain


@given(_said())
def test_what_is_joined_is_what_a_dict_would_hold(said: list[tuple[dict[str, float], bool]]) -> None:
    before = [dict(values) for values, _ in said]
    found, plain = _put_together(said)
    assert found == plain
    assert plain == found
    assert {*found} == {*plain}
    assert len(found) == len(plain)
    assert dict(found.items()) == plain
    assert sorted(found.values()) == sorted(plain.values())
    for key in _KEYS:
        assert (key in found, found.get(key), found.get(key, -1.0)) == (
            key in plain,
            plain.get(key),
            plain.get(key, -1.0),
        )
    assert [values for values, _ in said] == before, "what came from elsewhere is not changed"


@given(_said())
def test_parts_have_all_values_once_in_their_order(said: list[tuple[dict[str, float], bool]]) -> None:
    found, plain = _put_together(said)
    parts = list(parts_of(found))
    keys = [key for names, _ in parts for key in (names.keys if isinstance(names, Names) else names)]
    assert keys == list(found)
    assert dict(zip(keys, np.concatenate([numbers for _, numbers in parts]).tolist(), strict=True)) == plain
    shared = [names for names, _ in parts if isinstance(names, Names)]
    assert all(key.endswith("}") for names, _ in parts[1:] for key in names), "further parts are variants alone"
    assert len(shared) == isinstance(found, NumberRow)


@given(_said(), _said())
def test_a_shape_is_that_of_the_same_keys(
    one: list[tuple[dict[str, float], bool]], other: list[tuple[dict[str, float], bool]]
) -> None:
    first, second = _put_together(one)[0], _put_together(other)[0]
    if shape_of(first) == shape_of(second):
        assert list(first) == list(second)


@given(_said(), st.lists(st.sampled_from(_KEYS), unique=True).map(tuple))
def test_values_that_are_picked_are_those_of_a_dict(
    said: list[tuple[dict[str, float], bool]], keys: tuple[str, ...]
) -> None:
    found, plain = _put_together(said)
    for _ in range(2):  # the second time it is known where they stand
        assert picked(found, keys) == [plain.get(key) for key in keys]


@given(st.lists(_said(), max_size=3), st.sets(st.sampled_from(_KEYS)))
def test_values_are_apart_from_what_has_none_of_their_keys(
    several: list[list[tuple[dict[str, float], bool]]], others: set[str]
) -> None:
    made = [_put_together(said) for said in several]
    apart, named = Apart(), dict.fromkeys(others)
    assert [apart(found, named) for found, _ in made] == [others.isdisjoint(plain) for _, plain in made]


def test_a_key_that_is_not_there_is_missed_by_its_name() -> None:
    row = NumberRow(names_of(("a",)), array("d", [1.0]), {'b{pid="1"}': 2.0})
    with pytest.raises(KeyError, match="c"):
        row["c"]


def test_names_are_the_same_object_again_and_in_another_process() -> None:
    row = _row({"a": 1.0, "b": 2.0})
    assert row.names is names_of(("a", "b"))
    again = pickle.loads(pickle.dumps(row))
    assert again == row
    assert again.names is row.names
    with pytest.raises(ValueError, match="stands twice"):
        names_of(("a", "a"))


def test_a_row_becomes_a_dict_once() -> None:
    """However many lines say the same again: each would copy all that was said before."""
    row = joined(_row({"a": 1.0}), {'b{pid="1"}': 2.0})
    whole = joined(row, {"a": 3.0})
    assert isinstance(whole, dict)
    assert joined(whole, _row({"a": 4.0, "c": 5.0})) is whole


@pytest.mark.parametrize("turned", [False, True])
def test_a_rule_sees_a_variant_that_stands_beside_the_row(turned: bool) -> None:
    """Some variants are columns of the GPU itself, whichever of its lines they come with."""
    key = 'gpu_pcie_errors_total{kind="fatal"}'
    values = values_line("node-1", "", "temperature_celsius", [("GPU-1", array("d", [50.0]).tobytes())], str(T0))
    lines = [values, f"gpu,gpu_uuid=GPU-1,host=node-1,kind=fatal pcie_errors_total=3 {T0}\n"]
    readings = decode("".join(reversed(lines) if turned else lines), now_ms=T0).batch.readings
    frame = Frame(MetricKeys(gpu=["gpu_temperature_celsius", key]), Ageing(3, MINUTE, HOUR, HOUR))
    other = [Reading(gpu(2), T0, {key: 1.0}), Reading(gpu(3), T0, {"gpu_temperature_celsius": 40.0})]
    frame.load(T0, [*other, *readings], [])
    found = frame.sheets[GPU_SHEET].values.v.T
    np.testing.assert_array_equal(found, [[np.nan, 1.0], [40.0, np.nan], [50.0, 3.0]])


def test_names_that_are_too_many_are_not_remembered() -> None:
    """Each line of a stranger could have others."""
    before = names_of.cache_info().currsize
    count = 4_000
    names = ",".join(f"nvlink_up{{link={number}}}" for number in range(count))
    line = values_line("node-1", "", names, [("GPU-1", array("d", [1.0] * count).tobytes())], str(T0))
    (found,) = decode(line, now_ms=T0).batch.readings
    assert isinstance(found.values, dict)
    assert len(found.values) == count
    assert names_of.cache_info().currsize == before
