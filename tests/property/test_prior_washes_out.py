"""Whatever a prior from simulated fleets says, a fleet's own outcomes outweigh it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.clock import HOUR
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.forecaster.live.recalibration import EDGES, PRIOR_WEIGHT, KindPrior, Recalibration
from tocsin_testing.builders import T0

KIND = "memory by line"
HOSTS = 5
shares = st.floats(0.0, 1.0)
cells = st.lists(st.tuples(st.floats(0.0, 1e6), shares), min_size=len(EDGES) - 1, max_size=len(EDGES) - 1)


def said(number: int, probability: float) -> Prediction:
    return Prediction(
        subject=Subject(SubjectKind.GPU, f"GPU-{number}", f"node-{number % HOSTS}"),
        target="memory",
        at_ms=T0,
        horizon_ms=HOUR,
        status=PredictionStatus.CROSSING,
        model="line",
        model_version="1",
        sentence="",
        metric="gpu_memory_used_ratio",
        threshold=0.9,
        value=0.5,
        probability=probability,
        eta_ms=T0 + HOUR // 2,
    )


@settings(max_examples=60, deadline=None)
@given(cells, st.tuples(st.floats(0.0, 1e6), shares), st.floats(0.0, 0.999), st.integers(0, 300), shares)
def test_own_outcomes_outweigh_any_prior(
    seen: list[tuple[float, float]], claimed: tuple[float, float], stated: float, cases: int, came: float
) -> None:
    counts = tuple(count for count, _ in seen), tuple(count * share for count, share in seen)
    prior = KindPrior(*counts, claimed[0], claimed[0] * claimed[1])
    kinds = Recalibration(0.5, {KIND: prior})
    right = round(cases * came)
    own = [said(number, stated) for number in range(cases)]
    kinds.follow(kinds.restated(own))
    # Spread over the hosts alike: none outvotes the others.
    due = sorted(kinds.take_due(T0 + HOUR, cases + 1), key=lambda one: int(one.subject.name[4:]) // HOSTS)
    kinds.settle([(one, number < right) for number, one in enumerate(due)])
    (again,) = kinds.restated([said(cases, stated)])
    assert again.probability is not None
    assert 0.0 <= again.probability <= 1.0
    if not cases:
        return
    # Ranges beside it, which nothing was seen of here, can hold it back by their prior alone.
    held = PRIOR_WEIGHT * len(seen)
    assert abs(again.probability - right / cases) <= held / (cases + held) + 1e-9
    (figures,) = kinds.figures(T0 + HOUR)
    known = PRIOR_WEIGHT + 2.0
    assert abs(figures.precision - right / cases) <= (known + HOSTS) / (cases + known) + 1e-9
