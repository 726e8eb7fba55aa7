"""The table of GPUs of Titan at decision instants, from histories of events alone."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import DAY
from tocsin.forecaster.features.examples import NEVER, Examples, Floats, Ints, Mask
from tocsin_benchmarks.tally import Tally, numbered, pairs
from tocsin_benchmarks.titan.data import EVENTS, PLACE_PARTS, Fleet
from tocsin_benchmarks.titan.own_rate import own_rate
from tocsin_benchmarks.titan.snapshots import HORIZON_MS, Snapshots, blades
from tocsin_benchmarks.titan.walk import Pace, walk

LEAST_RATE = 1e-12
"""Onsets per day, where a logarithm of none would be needed."""
RECENT_DAYS, USUAL_DAYS = 7, 60


def examples(fleet: Fleet, rows: Snapshots, teachers: Mask | None = None, pace: Pace | None = None) -> Examples:
    """One row per snapshot; a device is a serial number, a group a cabinet. `log_rate` is the whole rate as log onsets
    in 48 h, the other features its parts and what lies behind them. Rates are learned from `teachers`, bool[devices],
    all unless given, and `pace`."""
    taught = np.ones(len(fleet.devices), dtype=np.bool_) if teachers is None else teachers
    columns = {
        **_rates(fleet, rows, taught, pace or Pace()),
        **_own(fleet, rows),
        **_near(fleet, rows),
        **_place(fleet, rows),
    }
    slot = fleet.life_slot[rows.life]
    cabinet = numbered(fleet.place[:, 0], fleet.place[:, 1])
    names = {number: f"c{column}-{row}" for number, column, row in zip(cabinet, *fleet.place.T[:2], strict=True)}
    happened = rows.next_ms <= rows.at_ms + HORIZON_MS
    kinds = np.asarray([*EVENTS, ""])
    following = Tally(fleet.event_device, fleet.event_ms).next(fleet.life_device[rows.life], rows.at_ms)
    kind = np.append(fleet.event_kind, len(EVENTS))[np.where(happened, following, -1)]
    return Examples(
        devices=fleet.devices,
        device=fleet.life_device[rows.life],
        groups=tuple(names[number] for number in range(len(names))),
        group=cabinet[slot].astype(np.int32),
        at_ms=rows.at_ms,
        names=tuple(columns),
        features=np.stack(list(columns.values()), axis=1).astype(np.float32),
        seen_ms=rows.at_ms,
        history_ms=rows.at_ms - int(fleet.insert_ms.min()),
        event_ms=rows.next_ms,
        until_ms=np.where(rows.next_ms < NEVER, np.maximum(rows.until_ms, rows.next_ms), rows.until_ms),
        event_class=np.where(rows.next_ms < NEVER, kinds[kind], ""),
        weight=rows.weight,
    )


def _rates(fleet: Fleet, rows: Snapshots, teachers: Mask, pace: Pace) -> dict[str, Floats]:
    walked = walk(fleet, rows.life, rows.at_ms, teachers, pace)
    own = own_rate(fleet, rows.life, rows.at_ms, teachers)
    return {
        "log_rate": np.log((np.exp(walked.log_rate) + own) * (HORIZON_MS / DAY)),
        "rate_of_place": walked.place,
        "rate_of_fleet": walked.level + walked.fleet,
        "rate_of_own": np.log(own + LEAST_RATE),
        **{f"ratio_of_{name}": logs for name, logs in walked.ratios.items()},
    }


def _own(fleet: Fleet, rows: Snapshots) -> dict[str, Floats]:
    device = fleet.life_device[rows.life]
    out: dict[str, Floats] = {}
    for code, kind in enumerate(EVENTS):
        chosen = fleet.event_kind == code
        tally = Tally(fleet.event_device[chosen], fleet.event_ms[chosen])
        out[f"own_{kind.lower()}_days"] = tally.days_since(device, rows.at_ms)
    tally = Tally(fleet.event_device[fleet.onset], fleet.event_ms[fleet.onset])
    out["own_onsets"] = tally.count(device, rows.at_ms).astype(np.float64)
    stays = Tally(fleet.life_device, fleet.insert_ms)
    out["stays"] = stays.count(device, rows.at_ms).astype(np.float64)
    first_ms = np.full(len(fleet.devices), NEVER)
    np.minimum.at(first_ms, fleet.life_device, fleet.insert_ms)
    out["age_days"] = (rows.at_ms - first_ms[device]) / DAY
    out["stay_days"] = (rows.at_ms - fleet.insert_ms[rows.life]) / DAY
    return out


def _near(fleet: Fleet, rows: Snapshots) -> dict[str, Floats]:
    """Errors of the other slots of the blade, and how the fleet's last days compare with its usual ones."""
    fleetwide = Tally(np.zeros(int(fleet.onset.sum()), dtype=np.int64), fleet.event_ms[fleet.onset])
    all_of_it = np.zeros(len(rows), dtype=np.int64)
    recent = fleetwide.count(all_of_it, rows.at_ms, RECENT_DAYS * DAY)
    usual = fleetwide.count(all_of_it, rows.at_ms, USUAL_DAYS * DAY) * RECENT_DAYS / USUAL_DAYS
    return {"blade_days": _blade_days(fleet, rows), "fleet_recent": np.log((recent + 1.0) / (usual + 1.0))}


def _blade_days(fleet: Fleet, rows: Snapshots) -> Floats:
    """Days since the newest error in another slot of the blade; NaN without one."""
    blade, slots = blades(fleet), np.arange(len(fleet.slots), dtype=np.int64)
    one, other = pairs(blade, blade)
    order = np.argsort(other, kind="stable")
    one, other = one[order], other[order]
    one, other = one[one != other], other[one != other]
    by_slot = Tally(fleet.event_slot, fleet.event_ms)
    low, count = np.searchsorted(other, slots, side="left"), np.bincount(other, minlength=slots.size)
    slot = fleet.life_slot[rows.life]
    days = np.full(len(rows), np.nan)
    for nth in range(int(count.max(initial=0))):
        has = np.flatnonzero(count[slot] > nth)
        days[has] = np.fmin(days[has], by_slot.days_since(one[low[slot[has]] + nth], rows.at_ms[has]))
    return days


def _place(fleet: Fleet, rows: Snapshots) -> dict[str, Floats]:
    place: Ints = fleet.place[fleet.life_slot[rows.life]].astype(np.int64)
    return {f"place_{part}": place[:, i].astype(np.float64) for i, part in enumerate(PLACE_PARTS)}
