"""Kind ``drift``: a small part of a pool's hosts has another version than the rest."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from tocsin.domain.errors import InputError
from tocsin.domain.finding import Evidence, evidence_of
from tocsin.domain.phrase import say
from tocsin.domain.version_standing import LEAST_HOSTS, MOST_SHARE
from tocsin.domain.versions import COMPONENTS, Standing
from tocsin.domain.words import counted
from tocsin.rules.conditions.base import Condition, Probe, Report, World
from tocsin.rules.levels import Number
from tocsin.rules.sheet import VERSION_SHEET
from tocsin.rules.table import Bools
from tocsin.rules.version_groups import Judged, Share, judge_group
from tocsin.rules.version_sheet import VersionSheet

HOSTS_NAMED = 3


class Drift(Condition):
    """Holds for each component and each group of hosts (pool, GPU model, label `role`) of which a small part differs.

    While more hosts take up a version than a day ago, it is a roll-out and the condition does not hold; nor does it for
    what another component that drifts brings with it.
    """

    words = frozenset({"component", "odd", "common", "most", "total", "group"})
    wakes: ClassVar[bool] = False
    kind: Literal["drift"]
    components: list[str] = Field(default_factory=lambda: list(COMPONENTS), min_length=1)
    """What is compared, such as `driver` or `kernel`; all that is known by default."""
    hosts: int = Field(default=LEAST_HOSTS, ge=3, le=100_000)
    """Least hosts of a group: of fewer nothing is said."""
    share: Number = Field(default=MOST_SHARE, gt=0, lt=0.5)
    """Share of the hosts up to which those that differ are a small part."""

    def sheets(self) -> frozenset[str]:
        return frozenset({VERSION_SHEET})

    def check(self) -> None:
        for one in self.components:
            if one not in COMPONENTS:
                raise InputError("components", one, "has no version", f"use one of {', '.join(COMPONENTS)}")

    def bind(self, world: World) -> Probe:
        return DriftProbe(self, world.frame.versions)

    def meaning(self) -> str:
        what = "the version" if len(self.components) == len(COMPONENTS) else f"{', '.join(self.components)}"
        return f"{what} of up to {self.share * 100:g} % of {self.hosts} or more like hosts differs from the rest"


class DriftProbe(Probe):
    """Judges all rows anew whenever the sheet has counted anew."""

    heeds_events = False

    def __init__(self, condition: Drift, sheet: VersionSheet) -> None:
        self._condition = condition
        self._sheet = sheet
        self._judged: dict[int, Judged] = {}
        self._counted = -1
        self._wanted = frozenset(condition.components)

    def update(self) -> None:
        sheet = self._sheet
        if sheet.counted == self._counted:
            return
        self._counted = sheet.counted
        self._judged = {}
        limits = self._condition.hosts, self._condition.share
        for group, hosts in sheet.hosts.items():
            for one in judge_group(group, hosts, sheet.before, *limits):
                if one.component in self._wanted:
                    self._judged[sheet.table.rows[group, one.component]] = one

    def true(self) -> Bools:
        drifts = [row for row, one in self._judged.items() if one.standing is Standing.DRIFT and not one.because]
        return self._mask(drifts)

    def known(self) -> Bools:
        return self._mask(list(self._judged))

    def _mask(self, rows: list[int]) -> Bools:
        mask = np.zeros(len(self._sheet.table), dtype=np.bool_)
        mask[rows] = True
        return mask

    def report(self, row: int) -> Report:
        judged, (group, component) = self._judged[row], self._sheet.key(row)
        common, named = judged.shares[0], COMPONENTS[component]
        at_ms = int(self._sheet.table.at.v[row])
        words = {
            "component": named.name,
            "component_zh": named.chinese,
            "odd": "; ".join(f"{one.version} on {_hosts(one)}" for one in judged.odd),
            "odd_zh": "；".join(f"{one.version}（{_hosts(one, '、', ' 等 {n} 台')}）" for one in judged.odd),
            "common": common.version,
            "most": str(len(common.hosts)),
            "total": counted(judged.total, "host"),
            "total_zh": str(judged.total),
            "group": group.label,
        }
        return Report(
            value=float(sum(len(one.hosts) for one in judged.odd)), evidence=_evidence(judged, at_ms), words=words
        )


def _hosts(share: Share, comma: str = ", ", more: str = " and {n} more") -> str:
    shown = comma.join(share.hosts[:HOSTS_NAMED])
    left = len(share.hosts) - HOSTS_NAMED
    # In Chinese the number is that of all of them.
    n = len(share.hosts) if comma == "、" else left
    return shown + more.format(n=n) if left > 0 else shown


def _evidence(judged: Judged, at_ms: int) -> tuple[Evidence, ...]:
    label = COMPONENTS[judged.component].label
    return tuple(
        evidence_of(
            label,
            say("{version} on {n} hosts, {ago} a day ago", version=one.version, n=len(one.hosts), ago=one.ago),
            at_ms,
            float(len(one.hosts)),
        )
        for one in judged.shares[:8]
    )
