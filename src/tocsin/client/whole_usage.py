"""Who used what in all cells as one: groups of one name are one row, jobs stay each cell's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.client.models_usage import RightSizeOut, RightSizeRow, UsageOut, UsageRow
from tocsin.client.usage_csv import NUMBERS
from tocsin.client.whole_money import added, currencies_of, one_currency

_MONEY = ("cost", "energy_cost")
_ADDED = tuple(name for name in NUMBERS if name not in _MONEY)
_DIGITS = 6
"""Hours are compared to so many digits: sums of the same seconds differ behind them."""


def currencies(answers: Mapping[str, UsageOut]) -> list[str]:
    """The currencies in which cells have costs; where they are several no money is added up."""
    told = [(one.currency, any(getattr(one.total, name) is not None for name in _MONEY)) for one in answers.values()]
    return currencies_of(told)


def whole_usage(answers: Mapping[str, UsageOut], most: int) -> UsageOut:
    """Usage of all cells, the `most` groups with most GPU-hours; `answers` has at least one, all over the same days.

    Groups with the same values are one. What a cell has in its rest stays there, so that a group which one cell shows
    and another does not has the shown part alone, and counts twice in `groups`. Of several currencies every cost is
    None. `first` is the earliest day of any cell, `counted` the instant up to which all have counted.
    """
    every = [answers[name] for name in sorted(answers)]
    paid = len(currencies(answers)) < 2
    groups: dict[tuple[object, ...], list[UsageRow]] = {}
    rest: list[UsageRow] = []
    for row in (row for one in every for row in one.rows):
        (rest if row.rest else groups.setdefault((row.held, *sorted(row.group.items())), [])).append(row)
    made = sorted((_together(rows, paid=paid) for rows in groups.values()), key=_weight)
    rest += made[most:]
    shown = made[:most]
    if rest:
        shown.append(_together(rest, paid=paid).model_copy(update={"group": {}, "held": True, "rest": True}))
    hidden = sum(one.groups - sum(not row.rest for row in one.rows) for one in every)
    return UsageOut(
        start=min(one.start for one in every),
        end=max(one.end for one in every),
        by=every[0].by,
        counted=min(one.counted for one in every),
        first=min((one.first for one in every if one.first is not None), default=None),
        currency=one_currency([one.currency for one in every], currencies(answers)),
        simulated=any(one.simulated for one in every),
        groups=len(groups) + hidden,
        rows=shown,
        total=_together([one.total for one in every], paid=paid),
        late=sum(one.late for one in every),
    )


def _weight(row: UsageRow) -> float:
    return -round(row.gpu_hours, _DIGITS)


def _together(rows: Sequence[UsageRow], *, paid: bool) -> UsageRow:
    told: dict[str, object] = {name: sum(getattr(row, name) for row in rows) for name in _ADDED}
    told |= {name: added([getattr(row, name) for row in rows]) if paid else None for name in _MONEY}
    return rows[0].model_copy(update=told)


_ORDER = {None: 0, "untold": 1, "needed": 2, "short": 3}


def whole_right_size(answers: Mapping[str, RightSizeOut], most: int) -> RightSizeOut:
    """Jobs of all cells, the most freed first, at most `most` of them; `answers` has at least one.

    Work of one name in two cells is two jobs: what it needed is known of each alone. Of several cells each has its cell
    before its name, as ``cell/job``.
    """
    every = [answers[name] for name in sorted(answers)]
    rows = [
        row.model_copy(update={"job": f"{name}/{row.job}"}) if len(answers) > 1 else row
        for name in sorted(answers)
        for row in answers[name].rows
    ]
    return RightSizeOut(
        start=min(one.start for one in every),
        end=max(one.end for one in every),
        least_hours=min(one.least_hours for one in every),
        simulated=any(one.simulated for one in every),
        jobs=sum(one.jobs for one in every),
        fitting=sum(one.fitting for one in every),
        short=sum(one.short for one in every),
        untold=sum(one.untold for one in every),
        needed=sum(one.needed for one in every),
        rows=sorted(rows, key=_freed)[:most],
    )


def _freed(row: RightSizeRow) -> tuple[int, float, float]:
    freed = max((option.freed for option in row.options), default=0.0)
    return _ORDER[row.unfit], -round(freed, _DIGITS), -round(row.gpu_hours, _DIGITS)
