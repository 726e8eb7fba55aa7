"""A host that says what no GPU of its model can show, and GPUs that a host does not have, move no comparison on
another: in rules and in features."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.finding import Finding
from tocsin.domain.model_limits import RANGED, highest_shown
from tocsin.domain.reading import Gpu, Reading
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.store.port import Columns
from tocsin_testing.builders import T0, xid
from tocsin_testing.rule_runs import rule

MODEL = "NVIDIA H100 80GB HBM3"
HOTTER = 'all = [{ kind = "peer", metric = "gpu_temperature_celsius", above = 12, clear = 8 }]'
PLAN = FeaturePlan()
STRANGE, OTHERS = "node-a", ("node-b", "node-c")
Values = dict[str, float]
OF_OTHERS = re.compile(r"\.vs_|\.score$|^others\.|^burst\.")
"""Features that GPUs have from other ones."""

IN_RANGE = st.fixed_dictionaries(
    {"gpu_temperature_celsius": st.integers(30, 90), "gpu_power_watts": st.sampled_from((300.0, 301.0, 640.0))}
).map(dict[str, float])
HONEST = st.tuples(*(st.lists(IN_RANGE, min_size=4, max_size=4) for _ in OTHERS))
LIES = st.lists(IN_RANGE, min_size=2, max_size=12)


@st.composite
def impossible(draw: st.DrawFn) -> tuple[str, float]:
    """A metric with a value that an H100 cannot show and the metric's own bounds allow."""
    metric = draw(st.sampled_from(RANGED))
    highest = highest_shown(MODEL, metric)
    assert highest is not None
    most = 150.0 if "temperature" in metric else 5000.0
    above = st.floats(highest, most, exclude_min=True)
    return metric, draw(above if "power" in metric else st.one_of(above, st.floats(-100.0, -1.0)))


def readings(host: str, said: list[Values], at_ms: int) -> list[Reading]:
    return [Reading(Gpu(f"GPU-{host}-{n}", host, index=n, model=MODEL), at_ms, one) for n, one in enumerate(said)]


def findings(*hosts: tuple[str, list[Values]]) -> dict[str, Finding]:
    engine = RuleEngine(rule(HOTTER, alert="{where} {value} {peers} {median}"))
    said = [one for host, values in hosts for one in readings(host, values, T0)]
    return {one.subject.key: one for one in engine.step(Inputs(T0, said)).active}


def on(found: dict[str, Finding], hosts: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(key, one.sentence) for key, one in found.items() if one.subject.host in hosts]


# The engine keeps what rules name, and none names the memory's temperature here.
@given(HONEST, LIES, impossible().filter(lambda lie: "memory" not in lie[0]))
@settings(max_examples=40)
def test_the_rule_of_peers_leaves_out_the_whole_host(
    honest: tuple[list[Values], ...], lies: list[Values], lie: tuple[str, float]
) -> None:
    sound = list(zip(OTHERS, honest, strict=True))
    strange = [{**lies[0], lie[0]: lie[1]}, *lies[1:]]
    assert on(findings(*sound, (STRANGE, strange)), OTHERS) == on(findings(*sound), OTHERS)


def test_gpus_that_a_host_does_not_have_are_nobodys_peers() -> None:
    engine = RuleEngine(rule(HOTTER, alert="{where} {value} {peers} {median}"))
    like = {"gpu_temperature_celsius": 60.0, "gpu_power_watts": 300.0}
    cold = readings(STRANGE, [{**like, "gpu_temperature_celsius": 31.0}] * 20, T0)
    said = [*cold, *(one for host in OTHERS for one in readings(host, [like] * 4, T0))]
    surplus = frozenset(one.gpu.uuid for one in cold)
    assert on({one.subject.key: one for one in engine.step(Inputs(T0, said, surplus=surplus)).active}, OTHERS) == []
    assert on({one.subject.key: one for one in RuleEngine(rule(HOTTER)).step(Inputs(T0, said)).active}, OTHERS) != []


def features(*hosts: tuple[str, list[Values]], surplus: Collection[str] = ()) -> dict[tuple[str, str], float]:
    """By feature and UUID, what is told of GPUs by others after an hour of the same values, and an XID on each host's
    first GPU."""
    gpus = [one.gpu for host, values in hosts for one in readings(host, values, T0)]
    rows = [one for _, values in hosts for one in values]
    steps = [T0 + PLAN.step_ms * n for n in range(8)]
    table = np.array([[row.get(metric, np.nan) for metric in RANGED] for row in rows])
    # Values that stand still are frozen: a hair of movement.
    moved = np.concatenate([table + 0.01 * n for n in range(len(steps))])
    columns = Columns(
        tuple(one.uuid for one in gpus),
        RANGED,
        np.tile(np.arange(len(gpus), dtype=np.int32), len(steps)),
        np.repeat(np.array(steps, dtype=np.int64), len(gpus)),
        moved,
    )
    builder = FeatureBuilder(PLAN, gpus)
    builder.update(columns, [xid(79, gpu, steps[-1] + 1) for gpu in gpus if gpu.index == 0 or gpu.uuid in surplus])
    builder.leave_out(surplus)
    made = builder.table(steps[-1] + 2)
    compared = [name for name in made.names if OF_OTHERS.search(name)]
    return {
        (name, uuid): value
        for name in compared
        for uuid, value in zip(made.gpus, made.column(name).tolist(), strict=True)
        if np.isfinite(value)
    }


@given(HONEST, LIES, impossible())
@settings(max_examples=12, deadline=None)
def test_features_that_compare_leave_out_the_whole_host(
    honest: tuple[list[Values], ...], lies: list[Values], lie: tuple[str, float]
) -> None:
    sound = list(zip(OTHERS, honest, strict=True))
    strange = [{**lies[0], lie[0]: lie[1]}, *lies[1:]]
    alone = compared(features(*sound))
    assert alone
    assert of_others(compared(features(*sound, (STRANGE, strange)))) == alone


def compared(found: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """What is compared with others' values; their events are counted, whatever their host says besides."""
    return {key: value for key, value in found.items() if "vs_" in key[0] or "score" in key[0]}


def of_others(found: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return {key: value for key, value in found.items() if STRANGE not in key[1]}


@given(HONEST, LIES)
@settings(max_examples=12, deadline=None)
def test_features_that_compare_leave_out_gpus_that_their_host_does_not_have(
    honest: tuple[list[Values], ...], lies: list[Values]
) -> None:
    sound = list(zip(OTHERS, honest, strict=True))
    surplus = {one.gpu.uuid for one in readings(STRANGE, lies, T0)}
    alone = features(*sound)
    assert of_others(features(*sound, (STRANGE, lies), surplus=surplus)) == alone
    assert {name.partition(".")[0] for name, _ in alone} >= {"others", "burst", "temperature"}
