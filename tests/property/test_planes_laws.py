"""Laws of the closed steps of features: a plane says what the dense matrices said, whatever happened to it since."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.arrays import Floats
from tocsin.forecaster.features.planes import Plane, add_up, empty, saved, taken_up

CHANNELS, PEAKS = 11, 8


@dataclass
class Dense:
    """What a plane stands for, as it would be without one."""

    values: Floats
    steps: Floats


def made(seed: int, gpus: int, largest: int) -> tuple[Plane, Dense]:
    """A step with full, sparse and empty channels, of GPUs of which some were not read and some have not all."""
    draw = np.random.default_rng(seed)
    share = draw.choice([0.0, 0.05, 0.5, 1.0], (CHANNELS, 1))
    steps = np.where(draw.random((CHANNELS, gpus)) < 0.8, draw.integers(0, largest, gpus, endpoint=True), 0)
    steps = np.where(draw.random((CHANNELS, gpus)) < 0.05, draw.integers(0, largest, (CHANNELS, gpus)), steps)
    values = np.where((draw.random((CHANNELS, gpus)) < share) & (steps > 0), draw.uniform(0.5, 9, (CHANNELS, gpus)), 0)
    values = values.astype(np.float32)
    return Plane.of(values, steps.astype(np.uint16)), Dense(values.astype(np.float64), steps.astype(np.float64))


def sums(planes: list[Plane], gpus: int) -> tuple[Floats, Floats]:
    total, steps = np.zeros((CHANNELS, gpus)), np.zeros((CHANNELS, gpus))
    add_up(planes, total, steps, PEAKS)
    return total, steps


@given(st.integers(0, 2**32), st.lists(st.integers(0, 9), max_size=6), st.sampled_from([1, 36, 360]))
def test_sums_of_planes_are_those_of_their_matrices(seed: int, more: list[int], largest: int) -> None:
    sizes = np.cumsum([*more, 3]).tolist()
    both = [made(seed + number, gpus, largest) for number, gpus in enumerate(sizes)]
    total, steps = np.zeros((CHANNELS, sizes[-1])), np.zeros((CHANNELS, sizes[-1]))
    for (_, dense), gpus in zip(both, sizes, strict=True):
        total[:PEAKS, :gpus] += dense.values[:PEAKS]
        total[PEAKS:, :gpus] = np.maximum(total[PEAKS:, :gpus], dense.values[PEAKS:])
        steps[:, :gpus] += dense.steps
    mine = sums([plane for plane, _ in both], sizes[-1])
    np.testing.assert_allclose(mine[0], total, rtol=1e-12)
    np.testing.assert_array_equal(mine[1], steps)


class OnePlane(RuleBasedStateMachine):
    """A closed step to which things happen late."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus = 0
        self.plane = empty(CHANNELS)
        self.dense = Dense(np.zeros((CHANNELS, 0)), np.zeros((CHANNELS, 0)))

    @precondition(lambda self: not self.gpus)
    @rule(seed=st.integers(0, 2**32), gpus=st.integers(1, 30))
    def close(self, seed: int, gpus: int) -> None:
        self.gpus = gpus
        self.plane, self.dense = made(seed, gpus, 1)

    @rule(channel=st.integers(0, PEAKS - 1), gpu=st.integers(0, 40), seen=st.booleans())
    def count(self, channel: int, gpu: int, *, seen: bool) -> None:
        if gpu >= self.gpus:
            self.dense = Dense(*(np.pad(one, ((0, 0), (0, gpu + 1 - self.gpus))) for one in self._both()))
            self.gpus = gpu + 1
        self.plane.count(channel, gpu, seen=seen)
        self.dense.values[channel, gpu] += 1
        if seen:
            self.dense.steps[channel, gpu] = 1

    @rule(
        channels=st.lists(st.integers(0, CHANNELS - 1), unique=True),
        gpus=st.lists(st.integers(0, 45), min_size=1, unique=True),
    )
    def take_out(self, channels: list[int], gpus: list[int]) -> None:
        self.plane.take_out(np.isin(np.arange(CHANNELS), channels), np.isin(np.arange(50), gpus))
        there = np.ix_(channels, [gpu for gpu in gpus if gpu < self.gpus])
        for one in self._both():
            one[there] = 0

    @rule()
    def save(self) -> None:
        self.plane = taken_up(dict(saved({7: self.plane}, "fine")), "fine", CHANNELS, self.gpus)[7]

    @invariant()
    def they_are_the_same(self) -> None:
        total, steps = sums([self.plane], self.gpus)
        np.testing.assert_allclose(total, self.dense.values, rtol=1e-6)
        np.testing.assert_array_equal(steps, self.dense.steps)

    @rule(gpus=st.lists(st.integers(0, 45), unique=True))
    def take(self, gpus: list[int]) -> None:
        values, steps = self.plane.take(CHANNELS, np.array(gpus, np.intp))
        inside = [gpu for gpu in gpus if gpu < self.gpus]
        there = np.isin(gpus, inside)
        np.testing.assert_allclose(values[:, there], self.dense.values[:, inside], rtol=1e-6)
        np.testing.assert_array_equal(steps[:, there], self.dense.steps[:, inside])
        assert not values[:, ~there].any()
        assert not steps[:, ~there].any()

    def _both(self) -> tuple[Floats, Floats]:
        return self.dense.values, self.dense.steps


TestOnePlane = OnePlane.TestCase


@pytest.mark.parametrize("name", ["base", "same", "values.whole", "values.column", "other.value"])
def test_a_state_that_cannot_be_is_refused(name: str) -> None:
    state = dict(saved({7: made(1, 20, 36)[0]}, "fine"))
    for held in (state[f"fine.7.{name}"].astype(np.float64), np.append(state[f"fine.7.{name}"].ravel(), 1)):
        with pytest.raises(InputError, match=r"read the past from the store"):
            taken_up({**state, f"fine.7.{name}": held}, "fine", CHANNELS, 20)
    with pytest.raises(InputError, match="incomplete"):
        taken_up({**state, "fine": np.array(7)}, "fine", CHANNELS, 20)
    full = state["fine.7.values.full"]
    assert full.size > 1
    with pytest.raises(InputError, match="not of 11 channels"):
        taken_up({**state, "fine.7.values.full": full[::-1]}, "fine", CHANNELS, 20)
    with pytest.raises(InputError, match="incomplete"):
        taken_up({key: one for key, one in state.items() if key != f"fine.7.{name}"}, "fine", CHANNELS, 20)
    with pytest.raises(InputError, match="not of 11 channels and 19 GPUs"):
        taken_up(state, "fine", CHANNELS, 19)
