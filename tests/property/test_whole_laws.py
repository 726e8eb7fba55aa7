"""Laws of putting the answers of cells together: one alone stays as it is, the order of cells is nothing, sums hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.client.models import ActionScore, PredictionScore, RuleScore, Scoreboard
from tocsin.client.models_capacity import CostOut, FragmentationOut, GroupOut, HourOut, LostOut, MoneyOut
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_usage import RightSizeOption, RightSizeOut, RightSizeRow, UsageOut, UsageRow
from tocsin.client.whole_cost import whole_cost
from tocsin.client.whole_drift import whole_drift
from tocsin.client.whole_fragmentation import whole_fragmentation
from tocsin.client.whole_score import whole_scoreboard
from tocsin.client.whole_usage import whole_right_size, whole_usage
from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.decision import Mode
from tocsin.domain.finding import ActionKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.usage import Prices, Usage, money, total
from tocsin.domain.version_standing import LEAST_HOSTS, MOST_SHARE
from tocsin.domain.versions import COMPONENTS, Standing, VersionBefore
from tocsin.queries.drift import drift_groups
from tocsin_testing.builders import T0
from tocsin_testing.fake_ahead import fragmentation

MOST = 1_000
HOURS = st.integers(0, 4_000).map(lambda quarters: quarters / 4)
"""Quarters of hours: their sums are exact, so that sums may be compared as they are."""
COUNTS = st.integers(0, 50)
USES = ("used", "idle", "untold", "free", "stranded", "not_seen")


@st.composite
def usages(draw: st.DrawFn) -> UsageOut:
    """An answer about usage as a cell makes it: largest groups first, their sum the total."""
    keys = draw(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "c", ""])), unique=True, max_size=6))
    priced = draw(st.booleans())
    rows = sorted((draw(_rows({"team": team}, held=held, priced=priced)) for held, team in keys), key=_hours)
    names = [name for name in UsageRow.model_fields if name not in {"group", "held", "rest"}]
    known = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    for name in set(names) - {"cost", "energy_cost"}:
        sums[name] = sums[name] or 0.0
    whole = UsageRow(group={}, held=True, **sums)
    return UsageOut(
        start="2026-11-16",
        end="2026-11-18",
        by=["team"],
        counted=to_iso(T0 + draw(COUNTS) * HOUR),
        first=draw(st.sampled_from([None, "2026-11-01", "2026-11-17"])),
        currency="EUR",
        groups=len(rows),
        rows=rows,
        total=whole,
        late=draw(COUNTS),
    )


def _hours(row: UsageRow) -> float:
    return -row.gpu_hours


@st.composite
def _rows(draw: st.DrawFn, group: dict[str, str], *, held: bool, priced: bool) -> UsageRow:
    parts = {use: draw(HOURS) for use in USES}
    return UsageRow(
        group=group,
        held=held,
        gpu_hours=sum(parts.values()),
        **parts,
        kwh=draw(HOURS),
        unmetered=draw(HOURS),
        cost=draw(HOURS) if priced else None,
        unpriced=draw(HOURS),
        energy_cost=draw(HOURS) if priced else None,
        unpriced_kwh=draw(HOURS),
    )


@st.composite
def right_sizes(draw: st.DrawFn) -> RightSizeOut:
    """Jobs that less would do for, the most freed first."""
    freed = sorted(draw(st.lists(HOURS, max_size=5)), reverse=True)
    rows = [
        RightSizeRow(
            job=f"job {n}", key=f"k/{n}", model="H100", first="2026-11-16", last="2026-11-17", gpu_hours=10.0,
            bounded=False, gpus_max=1, known=1.0, options=[RightSizeOption(fit="card", name="L4", freed=one)],
        )
        for n, one in enumerate(freed)
    ]  # fmt: skip
    more = draw(COUNTS)
    return RightSizeOut(
        start="2026-11-16", end="2026-11-18", least_hours=6.0, jobs=len(rows) + more, fitting=len(rows), short=more,
        untold=0, needed=0, rows=rows,
    )  # fmt: skip


def _usage_of(draw: st.DrawFn) -> Usage:
    return Usage(*(draw(HOURS) for _ in range(10)))


@st.composite
def costs(draw: st.DrawFn) -> CostOut:
    """An answer about cost as a cell makes it, out of the usage of its groups by hour."""
    prices = Prices(currency="EUR", gpu_hour={"H100": draw(st.sampled_from([2.0, 3.0]))}, kwh=0.25, pue=1.5)
    names = draw(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from(["H100", "L4"])), unique=True, max_size=4))
    groups = {name: _usage_of(draw) for name in names}
    made = [
        _out(GroupOut, one, pool=pool, model=model, gpu_hour=(price := prices.of_model(model)),
             idle_cost=None if price is None else price * one.idle)
        for (pool, model), one in groups.items()
    ]  # fmt: skip
    at = sorted(draw(st.sets(st.integers(0, 5))))
    hours = [_out(HourOut, _usage_of(draw), at_ms=T0 + n * HOUR, sampled=draw(st.booleans())) for n in at]
    paid = money(groups, prices)
    sums = {name: getattr(paid, name) for name in ("busy", "held_idle", "stranded", "free", "energy", "idle_energy")}
    empty = draw(st.integers(0, 6 - len(hours)))
    return CostOut(
        now=to_iso(T0),
        start=to_iso(T0),
        end=to_iso(T0 + 6 * HOUR),
        simulated=draw(st.booleans()),
        hours_wanted=6,
        hours_read=len(hours) + empty,
        hours_empty=empty,
        usage=total(groups.values()),
        money=MoneyOut(**sums, unpriced=paid.unpriced, currency="EUR", kwh_price=0.25, pue=1.5),
        groups=sorted(made, key=lambda one: -one.gpu_hours),
        hours=hours,
        lost=LostOut(
            faults=(faults := draw(COUNTS)),
            at_work=faults,
            gpus_hit=faults * draw(st.integers(1, 8)),
            hours_each=draw(st.sampled_from([1.0, 2.5])),
        ),
    )


def _out(kind: Any, usage: Usage, **more: object) -> Any:
    return kind(**{name: getattr(usage, name) for name in Usage.__dataclass_fields__}, **more)


@st.composite
def boards(draw: st.DrawFn) -> Scoreboard:
    """A scoreboard of some rules and actions."""
    rules = [
        RuleScore(
            rule=name, action=ActionKind.DRAIN, decisions=draw(COUNTS), would_have_acted=draw(COUNTS),
            confirmed=draw(COUNTS), held_by=draw(st.dictionaries(st.sampled_from("gh"), st.integers(1, 9))),
        )
        for name in draw(st.lists(st.sampled_from("rst"), unique=True))
    ]  # fmt: skip
    effects = draw(st.dictionaries(st.sampled_from("uv"), HOURS))
    action = ActionScore(
        action=ActionKind.DRAIN, tried=draw(COUNTS), worked=draw(COUNTS), effects=effects,
        measured={name: draw(st.integers(1, 9)) for name in effects},
    )  # fmt: skip
    return Scoreboard(
        since=to_iso(T0),
        until=to_iso(T0 + draw(COUNTS)),
        mode=draw(st.sampled_from(Mode)),
        simulated=False,
        decisions=sum(rule.decisions for rule in rules),
        would_have_acted=sum(rule.would_have_acted for rule in rules),
        held_by=draw(st.dictionaries(st.sampled_from("gh"), st.integers(1, 9))),
        rules=rules,
        predictions=PredictionScore(hits=draw(COUNTS), lead_s=draw(st.lists(HOURS, max_size=3))),
        actions=[action],
    )


FLEETS = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from(["1", "2", "3", ""]), st.sampled_from(["1", "2", None, None])),
    min_size=1,
    max_size=14,
)
"""Hosts: pool, version of the driver now, and a day ago where it was another."""
LIMITS = dict.fromkeys(COMPONENTS, (LEAST_HOSTS, MOST_SHARE))


def drift(hosts: Mapping[int, tuple[str, str, str | None]]) -> DriftOut:
    """Hosts by number, as the brain judges them; the firmware of the GSP comes with the driver."""
    readings, before = [], []
    for n, (pool, version, ago) in hosts.items():
        labels = {COMPONENTS[key].label: version for key in ("driver", "gsp_firmware") if version}
        readings.append(Reading(Gpu(f"GPU-{n}", f"n{n:02}", 0, "H100", pool=pool, labels=labels), T0, {}))
        if ago is not None and version:
            before += [VersionBefore(f"n{n:02}", "H100", key, ago) for key in ("driver", "gsp_firmware")]
    groups = drift_groups(readings, before, LIMITS, "", list(COMPONENTS))
    shown = [one for group in groups for one in group.components]
    return DriftOut(
        at=to_iso(T0),
        drifting=sum(one.standing is Standing.DRIFT and not one.because for one in shown),
        rolling_out=sum(one.standing is Standing.ROLLOUT for one in shown),
        least_hosts=LEAST_HOSTS,
        groups=groups,
    )


FRAGMENTS = st.sampled_from([fragmentation(MOST, hosts, simulated=False) for hosts in (0, 1, 2, 5, 8)])
DRIFTS = FLEETS.map(lambda hosts: drift(dict(enumerate(hosts))))
MERGES: list[tuple[Any, Callable[[Mapping[str, Any]], Any]]] = [
    (usages(), lambda answers: whole_usage(answers, MOST)),
    (right_sizes(), lambda answers: whole_right_size(answers, MOST)),
    (costs(), whole_cost),
    (boards(), whole_scoreboard),
    (DRIFTS, whole_drift),
    (FRAGMENTS, lambda answers: whole_fragmentation(answers, MOST)),
]
NAMES = ["usage", "right-size", "cost", "scoreboard", "drift", "fragmentation"]


@pytest.mark.parametrize(("answers", "merge"), MERGES, ids=NAMES)
@given(data=st.data())
def test_one_answer_alone_stays_as_it_is(
    data: st.DataObject, answers: st.SearchStrategy[Any], merge: Callable[[Mapping[str, Any]], Any]
) -> None:
    one = data.draw(answers)
    assert merge({"east": one}) == one


@pytest.mark.parametrize(("answers", "merge"), MERGES, ids=NAMES)
@given(data=st.data())
def test_the_order_in_which_cells_come_is_nothing(
    data: st.DataObject, answers: st.SearchStrategy[Any], merge: Callable[[Mapping[str, Any]], Any]
) -> None:
    found = data.draw(st.lists(answers, min_size=2, max_size=4))
    named = [(f"c{n}", one) for n, one in enumerate(found)]
    assert merge(dict(named)) == merge(dict(data.draw(st.permutations(named))))


@given(st.lists(usages(), min_size=1, max_size=4), st.integers(1, 4))
def test_usage_adds_up_and_rows_are_at_most_as_many_as_asked_for(found: list[UsageOut], most: int) -> None:
    whole = whole_usage({f"c{n}": one for n, one in enumerate(found)}, most)
    for name in (*USES, "gpu_hours", "kwh", "unpriced"):
        wanted = sum(getattr(one.total, name) for one in found)
        assert getattr(whole.total, name) == wanted
        assert sum(getattr(row, name) for row in whole.rows) == wanted
    paid = [one.total.cost for one in found if one.total.cost is not None]
    assert whole.total.cost == (sum(paid) if paid else None)
    keys = {(row.held, row.group["team"]) for one in found for row in one.rows}
    assert whole.groups == len(keys)
    assert sum(not row.rest for row in whole.rows) == min(most, len(keys))


@given(st.lists(costs(), min_size=1, max_size=4))
def test_cost_adds_up(found: list[CostOut]) -> None:
    whole = whole_cost({f"c{n}": one for n, one in enumerate(found)})
    assert whole.usage == total(one.usage for one in found) == total(whole.groups)
    assert total(whole.hours) == total(hour for one in found for hour in one.hours)
    assert [hour.at_ms for hour in whole.hours] == sorted({hour.at_ms for one in found for hour in one.hours})
    idle = sum(one.money.free or 0.0 for one in found)
    assert (whole.money.free or 0.0) == idle
    assert len({(one.pool, one.model, one.gpu_hour) for one in whole.groups}) == len(whole.groups)
    assumed = sum(one.lost.hit * one.lost.hours_each for one in found)
    assert whole.lost.hit * whole.lost.hours_each == pytest.approx(assumed)


@given(st.lists(boards(), min_size=1, max_size=4))
def test_scores_add_up(found: list[Scoreboard]) -> None:
    whole = whole_scoreboard({f"c{n}": one for n, one in enumerate(found)})
    assert whole.decisions == sum(rule.decisions for rule in whole.rules) == sum(one.decisions for one in found)
    assert sum(whole.held_by.values()) == sum(sum(one.held_by.values()) for one in found)
    assert len(whole.predictions.lead_s) == sum(len(one.predictions.lead_s) for one in found)
    for name in ("u", "v"):
        wanted = sum(one.actions[0].effects.get(name, 0.0) * one.actions[0].measured.get(name, 0) for one in found)
        told = whole.actions[0]
        assert told.effects.get(name, 0.0) * told.measured.get(name, 0) == pytest.approx(wanted)


@given(st.lists(FRAGMENTS, min_size=1, max_size=4), st.integers(1, 5))
def test_free_gpus_add_up_and_the_worst_come_first(found: list[FragmentationOut], most: int) -> None:
    whole = whole_fragmentation({f"c{n}": one for n, one in enumerate(found)}, most)
    for name in ("gpus", "free", "fragmented", "unusable", "stranded"):
        assert getattr(whole.fleet, name) == pytest.approx(sum(getattr(one.fleet, name) for one in found))
    for name in ("pools_total", "hosts_total", "mig_gpus", "mig_slices", "mig_free_slices", "mig_unknown"):
        assert getattr(whole, name) == sum(getattr(one, name) for one in found)
    assert whole.fleet.largest == max(one.fleet.largest for one in found)
    hosts = sum(count for one in found for _, count in one.holes)
    assert sum(count for _, count in whole.holes) == hosts
    assert sum(free * count for free, count in whole.holes) == whole.fleet.free
    assert max(len(whole.hosts), len(whole.mig), len(whole.pools)) <= most
    worst = max((one.unusable for part in found for one in part.hosts), default=None)
    assert worst == (whole.hosts[0].unusable if whole.hosts else None)
    if len(found) > 1:
        assert all(one.host.partition("/")[0] in {f"c{n}" for n in range(len(found))} for one in whole.hosts)


def test_jobs_of_cells_that_differ_are_not_told_as_one() -> None:
    one = fragmentation(MOST, 2, simulated=False)
    other = one.model_copy(update={"mix": one.mix[:1]})
    assert whole_fragmentation({"a": one, "b": one}, MOST).mix == one.mix
    assert whole_fragmentation({"a": one, "b": other}, MOST).mix == []


@given(FLEETS, st.data())
def test_versions_of_a_fleet_in_parts_are_those_of_the_fleet(
    hosts: list[tuple[str, str, str | None]], data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.sampled_from("abc"), min_size=len(hosts), max_size=len(hosts)))
    numbered = list(enumerate(hosts))
    parts = {
        name: drift({n: host for (n, host), cell in zip(numbered, cells, strict=True) if cell == name})
        for name in set(cells)
    }
    assert whole_drift(parts) == drift(dict(numbered))
