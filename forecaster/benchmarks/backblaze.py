"""Backblaze drives: the nearest public stand-in for error counters before a device failure, judged at 48 h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.domain.clock import DAY, to_iso
from tocsin.domain.progress import track
from tocsin.forecaster.benchmarks.backblaze_drives import Drives, read_drives
from tocsin.forecaster.benchmarks.backblaze_folds import Fold, Sizes, given_fold, own_folds, parts
from tocsin.forecaster.benchmarks.backblaze_leak import leak_section
from tocsin.forecaster.benchmarks.backblaze_models import ENSEMBLE, FULL_SIZES, HORIZON_MS, QUICK_SIZES, judge
from tocsin.forecaster.benchmarks.backblaze_pool import Pool, pool_of, pooled
from tocsin.forecaster.benchmarks.backblaze_sections import BARS, sections
from tocsin.forecaster.benchmarks.result import Request, Result, Section, Table
from tocsin.forecaster.evaluation.figures import Panel

QUICK_FOLDS = 2

SOURCE = "Backblaze drive statistics in the counting-process format of the R package dynamichazard; cite Backblaze"
PROTOCOL = (
    "Daily snapshots at whole days (date = min_date + (hour - min_hours) / 24), never at row starts. Label: the drive"
    " fails within 48 h; snapshots whose 48 h were not observed are left out. All snapshots before a failure are kept,"
    " the others are sub-sampled in two strata (with and without a sector counter above zero) with exact weights; to"
    " learn from, counters that grew within 72 h are a third. Boosting and LSTM learn from the sample as it is, and"
    " their odds are then divided by the weight of the stratum."
    " Models learn from drives that are not judged, up to a day before everything that is judged; ranks,"
    " probabilities and thresholds come from further drives of that earlier part. Intervals are bootstraps by drive."
    " The multiple of the base rate is that of the split. A drive counts as hit when it fails within 48 h after its"
    " first alarm in the test period."
)
NOTES = (
    "`silent_share` is the share of the failing drives without a sector counter above zero at the newest decision: of"
    " these the counters give no warning.",
    "The recency rule ranks drives by the time since a sector counter last changed: a drive fails once only, so there"
    " is no earlier failure to be recent.",
    "The day of the week is a feature: a drive fails when people take it out, more rarely at weekends.",
    "The ensemble, a mean of log-odds with weights, and all settings were chosen on drives and days before the cut.",
)


def run(request: Request) -> Result:
    """Judge the product's scorers. Raises InputError for unusable folders, NotEnoughData for too few failures."""
    sizes = QUICK_SIZES if request.quick else FULL_SIZES
    drives = read_drives(request.train)
    folds = _folds(request, drives)
    pools = [_judged(fold, sizes, request) for fold in track(folds, "folds")]
    pool = pooled(pools)
    made = sections(pool, request.draws, request.seed, given=request.test is not None)
    made[0] = _with_folds(made[0], folds, pools)
    if request.leak:
        made.append(leak_section(drives, sizes, request))
    return Result("backblaze", PROTOCOL, SOURCE, made, NOTES)


def _folds(request: Request, drives: Drives) -> Sequence[Fold]:
    if request.test is not None:
        return (given_fold(request.train, request.test),)
    return tuple(own_folds(drives, QUICK_FOLDS) if request.quick else own_folds(drives))


def _judged(fold: Fold, sizes: Sizes, request: Request) -> Pool:
    made = parts(fold, sizes, request.seed)
    return pool_of(fold, made, judge(made, request.seed, quick=request.quick))


def _with_folds(section: Section, folds: Sequence[Fold], pools: Sequence[Pool]) -> Section:
    """What was learned from, and how the ensemble does on each fold alone."""
    rows: list[tuple[str | float | int | None, ...]] = []
    for fold, pool in zip(folds, pools, strict=True):
        panel = Panel(pool.rows, HORIZON_MS, draws=0)
        found = panel.draws(pool.scores[ENSEMBLE])
        learned = (
            fold.name,
            len(fold.train),
            int(fold.train.failed.sum()),
            _date(fold.cut),
            int(fold.test.failed.sum()),
        )
        rows.append((*learned, *(float(found[name][0]) for name in BARS)))
    head = ("fold", "drives learned from", "failures learned from", "cut", "failures judged", *BARS)
    return replace(section, tables=(Table("Folds, ensemble", head, rows), *section.tables))


def _date(day: float) -> str:
    return to_iso(int(day * DAY))[:10]
