"""Who used which GPU time and what it costs, as the API shows it, and jobs that less would do for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.accounting.meter import Row, Use
from tocsin.accounting.prices import EnergyPrice, PriceList
from tocsin.accounting.right_size import RightSize, Unfit, right_sizes
from tocsin.accounting.table import DayGroup
from tocsin.client.models_usage import RightSizeOption, RightSizeOut, RightSizeRow, UsageBy, UsageOut, UsageRow
from tocsin.domain.clock import DAY, HOUR, SECOND, to_iso
from tocsin.queries.live import LiveBrain

_HOUR_S = HOUR / SECOND
_JOULES_PER_KWH = 3.6e6
_WITHIN = 10
"""Letters of an ISO day."""


def iso_day(day: int) -> str:
    """A day counted from the epoch as ``2026-11-21``."""
    return to_iso(day * DAY)[:_WITHIN]


@dataclass
class _Sum:
    """One group: its time and energy, and what has a price."""

    row: Row = field(default_factory=Row)
    cost: float | None = None
    unpriced_s: float = 0.0
    energy_cost: float | None = None
    unpriced_joules: float = 0.0

    def add(self, one: Row, hour: float | None, energy: EnergyPrice | None) -> None:
        """Take in the sums of a day, a GPU-hour of which costs `hour`."""
        self.row.merge(one)
        seconds = sum(one.seconds)
        if hour is None:
            self.unpriced_s += seconds
        elif seconds:
            self.cost = (self.cost or 0.0) + hour * seconds / _HOUR_S
        if energy is None:
            self.unpriced_joules += one.joules
        elif one.joules:
            self.energy_cost = (self.energy_cost or 0.0) + energy.kwh * energy.pue * one.joules / _JOULES_PER_KWH

    def merge(self, other: _Sum) -> None:
        self.row.merge(other.row)
        self.cost = _plus(self.cost, other.cost)
        self.energy_cost = _plus(self.energy_cost, other.energy_cost)
        self.unpriced_s += other.unpriced_s
        self.unpriced_joules += other.unpriced_joules

    def out(self, group: Mapping[str, str], *, held: bool, rest: bool = False) -> UsageRow:
        hours = [seconds / _HOUR_S for seconds in self.row.seconds]
        return UsageRow(
            group=dict(group),
            held=held,
            rest=rest,
            gpu_hours=sum(hours),
            **{use.name.lower(): hours[use] for use in Use},
            kwh=self.row.joules / _JOULES_PER_KWH,
            unmetered=self.row.unmetered_s / _HOUR_S,
            cost=self.cost,
            unpriced=self.unpriced_s / _HOUR_S,
            energy_cost=self.energy_cost,
            unpriced_kwh=self.unpriced_joules / _JOULES_PER_KWH,
        )


def _plus(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


_Group = tuple[bool, tuple[str, ...]]


def summed(found: Iterable[DayGroup], prices: PriceList) -> dict[_Group, _Sum]:
    """The days of each group together, each at its own price; time that nobody held is a group for itself."""
    sums: dict[_Group, _Sum] = {}
    for one in found:
        group = sums.setdefault((one.held, one.names), _Sum())
        group.add(one.row, prices.gpu_hour(one.model, one.kind, one.day), prices.kwh(one.day))
    return sums


class UsageQueries:
    """What the sums of a running brain say. Safe to use from several threads."""

    def __init__(self, brain: LiveBrain) -> None:
        self._brain = brain
        self._prices = brain.usage.prices

    def usage(
        self,
        first_day: int,
        last_day: int,
        by: Sequence[UsageBy],
        limit: int,
        whose: frozenset[str] | None = None,
    ) -> UsageOut:
        """Usage from `first_day` to `last_day` by `by`; of more than `limit` groups the smallest are one row.

        `whose` are the namespaces and accounts whose work alone is summed; None: everybody's.
        """
        keeper = self._brain.usage
        sums = summed(keeper.table.groups(first_day, last_day, by, whose), self._prices)
        order = sorted(sums.items(), key=lambda one: (-sum(one[1].row.seconds), one[0]))
        rows = [one.out(dict(zip(by, names, strict=True)), held=held) for (held, names), one in order[:limit]]
        if len(order) > limit:
            rest = _together(one for _, one in order[limit:])
            rows.append(rest.out({}, held=True, rest=True))
        return UsageOut(
            start=iso_day(first_day),
            end=iso_day(last_day + 1),
            by=list(by),
            counted=to_iso(keeper.counted_ms),
            first=None if (first := keeper.table.first_day()) is None else iso_day(first),
            currency=self._prices.currency,
            simulated=any(gpu.simulated for gpu in self._brain.gpus),
            groups=len(order),
            rows=rows,
            total=_together(sums.values()).out({}, held=True),
            late=len(keeper.table.late()) if whose is None else 0,
        )

    def right_size(
        self, first_day: int, last_day: int, limit: int, whose: frozenset[str] | None = None
    ) -> RightSizeOut:
        """What jobs seen from `first_day` to `last_day` would have needed; `whose` as for `usage`."""
        brain = self._brain
        least = brain.settings.usage.right_size_hours
        cards = _cards(brain)
        found = right_sizes(brain.usage.table.profiles(first_day, last_day, whose), cards, least)
        counts = Counter(one.unfit for one in found)
        order = sorted(found, key=_weight)
        return RightSizeOut(
            start=iso_day(first_day),
            end=iso_day(last_day + 1),
            least_hours=least,
            simulated=any(gpu.simulated for gpu in brain.gpus),
            jobs=len(found),
            fitting=counts[None],
            short=counts[Unfit.SHORT],
            untold=counts[Unfit.UNTOLD],
            needed=counts[Unfit.NEEDED],
            rows=[_right_size(one) for one in order[:limit]],
        )


def _together(parts: Iterable[_Sum]) -> _Sum:
    whole = _Sum()
    for one in parts:
        whole.merge(one)
    return whole


def _cards(brain: LiveBrain) -> dict[str, float]:
    """Memory in bytes of each model of the site: the least of its cards."""
    found: dict[str, float] = {}
    for reading in brain.memory.latest():
        total = reading.values.get("gpu_memory_total_bytes")
        if total and reading.gpu.model and not reading.gpu.is_mig:
            found[reading.gpu.model] = min(total, found.get(reading.gpu.model, total))
    return found


_ORDER = {None: 0, Unfit.UNTOLD: 1, Unfit.NEEDED: 2, Unfit.SHORT: 3}


def _weight(one: RightSize) -> tuple[int, float, float, str, str]:
    freed = max((option.freed_hours for option in one.options), default=0.0)
    return _ORDER[one.unfit], -freed, -one.job.profile.seconds, one.job.holder.key, one.job.model


def _right_size(one: RightSize) -> RightSizeRow:
    job, profile = one.job, one.job.profile
    return RightSizeRow(
        job=job.holder.job or job.holder.key,
        key=job.holder.key,
        namespace=job.holder.namespace,
        team=job.holder.team,
        account=job.holder.account,
        user=job.holder.user,
        model=job.model,
        first=iso_day(job.first_day),
        last=iso_day(job.last_day),
        gpu_hours=profile.seconds / _HOUR_S,
        memory_p99=profile.memory_p99(),
        memory_max=profile.memory_max,
        memory_total=profile.memory_total,
        activity_p99=profile.activity_p99(),
        activity_max=profile.activity_max,
        bounded=profile.bounded,
        nvlink_max=profile.link_max,
        gpus_max=profile.gpus_max,
        known=min(1.0, profile.known()),
        options=[RightSizeOption(fit=each.fit.value, name=each.name, freed=each.freed_hours) for each in one.options],
        unfit=None if one.unfit is None else one.unfit.value,
    )
