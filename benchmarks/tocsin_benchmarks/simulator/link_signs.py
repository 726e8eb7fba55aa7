"""How often the shipped signs of links, bus and rows come before a fault in simulated fleets, and how early.

`python -m tocsin_benchmarks.simulator.link_signs`. The rules' own conditions over readings half an hour apart; the rest
of the service is left out. The seeds are none of the rehearsals' or the priors'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import click
import numpy as np

from tocsin.client.models_pager import WarningPolicy
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.finding import Category
from tocsin.queries.early_warnings import SignalTable, Warned, score_early
from tocsin.queries.pager_score import Truth
from tocsin.queries.statement_bars import pooled
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.rules.schema import RuleSet
from tocsin.runtime.fleet_rehearsal import LINKS, START_MS, causes_of
from tocsin.sim.fleet import SimulatedFleet
from tocsin.sim.spec import FleetSpec

STEP_MS = 30 * MINUTE
FAULT_SCALE = 30.0
ALL = "all of them"


@dataclass(frozen=True, slots=True)
class FleetSigns:
    """What each rule told of one fleet, and what was wrong there."""

    told: dict[str, list[Warned]]
    truth: Truth
    gpus: tuple[str, ...]

    def score(self, warnings: Iterable[Warned], name: str) -> WarningPolicy:
        struck = [cause for cause in self.truth.causes if cause.hard and not cause.benign]
        blank = SignalTable(np.zeros(0, np.int64), self.gpus, np.zeros((0, len(self.gpus))), 1.0)
        found = score_early(name, list(warnings), LINKS, self.truth, blank, 0, struck=struck)
        return found.service.model_copy(update={"name": name})


def signs(rules: RuleSet) -> RuleSet:
    """The rules that foretell hardware faults of metrics."""
    chosen = [one for one in rules if one.table.foretells and one.table.category is Category.HARDWARE]
    return replace(rules, rules=tuple(one for one in chosen if not one.expects))


def fleet_signs(seed: int, gpus: int, days: float, rules: RuleSet) -> FleetSigns:
    """One fleet with all its faults of hardware."""
    spec = FleetSpec(
        gpus, seed, START_MS, STEP_MS, fault_rate_scale=FAULT_SCALE, software_rate_scale=0.0, under_way=True
    )
    fleet, engine = SimulatedFleet(spec), RuleEngine(rules)
    told: dict[str, list[Warned]] = defaultdict(list)
    for _ in range(round(days * DAY / STEP_MS)):
        batch = fleet.step()
        for one in engine.step(Inputs(fleet.now_ms, batch.readings, tuple(batch.events))).opened:
            told[one.rule].append(Warned(fleet.now_ms, one.subject.name))
    truth = Truth(causes_of(fleet), fleet.now_ms, (), START_MS)
    return FleetSigns(dict(told), truth, tuple(gpu.uuid for gpu in fleet.gpus))


def table(fleets: Sequence[FleetSigns]) -> str:
    """A row for each rule over all fleets, and one for all rules together."""
    lines = ["| rule | warnings | right | faults | warned with half the lead |", "|---|---:|---:|---:|---:|"]
    for name in [*sorted({rule for one in fleets for rule in one.told}), ALL]:
        mine = pooled(
            [one.score([w for rule, ws in one.told.items() if name in (rule, ALL) for w in ws], name) for one in fleets]
        )
        right, early = (f"{share:.3f}" if share is not None else "-" for share in (mine.precision, mine.recall))
        lines.append(f"| {name} | {mine.warnings} | {right} | {mine.faults} | {early} |")
    return "\n".join(lines)


@click.command()
@click.option("--gpus", default=512, show_default=True)
@click.option("--days", default=14.0, show_default=True)
@click.option("--seeds", default=(501, 510), show_default=True, nargs=2, help="First and last.")
def main(gpus: int, days: float, seeds: tuple[int, int]) -> None:
    """Fleets one after the other; the table of all."""
    rules = signs(load_rules())
    click.echo(table([fleet_signs(seed, gpus, days, rules) for seed in range(seeds[0], seeds[1] + 1)]))


if __name__ == "__main__":
    main()
