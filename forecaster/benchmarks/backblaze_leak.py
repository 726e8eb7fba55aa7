"""What a row-random split of the same snapshots would have claimed."""

from __future__ import annotations

from tocsin.domain.clock import DAY
from tocsin.forecaster.benchmarks.backblaze_drives import Drives
from tocsin.forecaster.benchmarks.backblaze_folds import Sizes, cut_day, starts
from tocsin.forecaster.benchmarks.backblaze_models import HORIZON_MS, QUICK
from tocsin.forecaster.benchmarks.backblaze_record import record
from tocsin.forecaster.benchmarks.backblaze_snapshots import Sampling, examples, snapshots
from tocsin.forecaster.benchmarks.result import Request, Section
from tocsin.forecaster.evaluation.leak import Fit, leak_factor
from tocsin.forecaster.evaluation.split import by_time_and_device
from tocsin.forecaster.features.examples import Examples, Floats
from tocsin.forecaster.hazard import registry

SETTINGS: dict[str, object] = {
    "balance": 0.0,
    "folds": 2,
    "max_iter": 100,
    "max_features": 0.15,
    "min_samples_leaf": 40,
}
"""One small boosting for both ways of splitting."""
SIZES = (20_000, 10_000)
FOLDS = 2


def leak_section(drives: Drives, sizes: Sizes, request: Request) -> Section:
    """The same boosting on the same snapshots, split as the protocol has it and split by row."""
    hot, cold = (min(pair) for pair in zip(SIZES, sizes.learn[:2], strict=True))
    chosen = snapshots(drives, starts(drives), Sampling(hot, cold, request.seed))
    rows = examples(drives, record(drives), chosen)
    cut_ms = int(cut_day(drives) * DAY)
    honest = tuple(by_time_and_device(rows, cut_ms, HORIZON_MS, FOLDS, request.seed))
    return leak_factor(_fit(request), rows, honest, HORIZON_MS, seed=request.seed, draws=request.draws)


def _fit(request: Request) -> Fit:
    settings = QUICK["boosting"] if request.quick else SETTINGS

    def fit(train: Examples, test: Examples) -> Floats:
        scorer = registry.build("boosting", horizons_ms=(HORIZON_MS,), seed=request.seed, **settings)
        scorer.fit(train)
        return scorer.score(test)[:, -1]

    return fit
