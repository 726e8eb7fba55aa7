"""Which structural signs make an alert, chosen on other nodes, and what the alerts are worth on the ticket clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import HOUR
from tocsin.forecaster.anomaly.structural import FROZEN, LOST, SILENT, XID, NodeRecord, signs
from tocsin.forecaster.evaluation.ticket_clock import (
    BAR_PER_NODE_DAY,
    Instants,
    LoggedIncident,
    TicketScore,
    episode_starts,
    score,
)
from tocsin.forecaster.features.examples import Mask

Union = tuple[str, ...]

UNIONS: Sequence[Union] = (
    (XID, LOST, SILENT, FROZEN),
    (XID, LOST, FROZEN),
    (LOST, SILENT, FROZEN),
    (XID, LOST),
    (XID,),
)
"""What may become the alert. The first stays unless another is better on other nodes. The signs themselves were drawn
up after all development windows had been looked at, so leaving a node out tests the choice among them, not the list."""
LEAST_PRECISION = 0.85
SHARES = {"found": 1.0, "found_24h": 6 / 7, "found_48h": 4 / 7}
"""Least shares of the scorable incidents: at any lead, with 24 h and with 48 h."""


@dataclass(frozen=True, slots=True)
class Node:
    """A record with its signs."""

    record: NodeRecord
    signs: Mapping[str, Mask]

    def alerts(self, union: Union) -> Instants:
        """Instants at which any sign of `union` holds."""
        held = np.zeros(self.record.at_ms.size, np.bool_)
        for name in union:
            held |= self.signs[name]
        return self.record.at_ms[held]

    def causes(self, union: Union, at_ms: int) -> str:
        """Which signs of `union` held at `at_ms`."""
        row = int(np.searchsorted(self.record.at_ms, at_ms))
        return ", ".join(name for name in union if self.signs[name][row])


def nodes_of(records: Sequence[NodeRecord]) -> list[Node]:
    """Records with their signs."""
    return [Node(record, signs(record)) for record in records]


def observed(nodes: Sequence[Node]) -> dict[str, Instants]:
    """The instants at which each node was seen."""
    return {node.record.node: node.record.at_ms for node in nodes}


def judged(nodes: Sequence[Node], unions: Mapping[str, Union], incidents: Sequence[LoggedIncident]) -> TicketScore:
    """Score the alerts of `nodes`, each by its own union."""
    names = {node.record.node for node in nodes}
    own = [incident for incident in incidents if incident.node in names]
    return score({node.record.node: node.alerts(unions[node.record.node]) for node in nodes}, own, observed(nodes))


def choose(others: Sequence[Node], incidents: Sequence[LoggedIncident]) -> Union:
    """The union that does best on `others`: within the budget and precise, then most found, then with most lead; the
    first of `UNIONS` where they tie or there is nothing to go by."""

    def worth(union: Union) -> tuple[bool, int, int, int]:
        told = judged(others, {node.record.node: union for node in others}, incidents)
        precise = told.precision is None or told.precision >= LEAST_PRECISION
        fits = precise and told.per_node_day <= BAR_PER_NODE_DAY
        return fits, told.count(), told.count(24 * HOUR), told.count(48 * HOUR)

    return max(UNIONS, key=worth) if others else UNIONS[0]


def leave_one_out(nodes: Sequence[Node], incidents: Sequence[LoggedIncident]) -> dict[str, Union]:
    """The union of each node, chosen on all others."""
    return {node.record.node: choose([other for other in nodes if other is not node], incidents) for node in nodes}


def bar_of(scored: TicketScore) -> dict[str, float]:
    """What must be reached at once, in counts of the incidents that could be scored."""
    total = len(scored.found)
    return {**{name: round(share * total) for name, share in SHARES.items()}, "precision": LEAST_PRECISION}


def start_rows(nodes: Sequence[Node], unions: Mapping[str, Union]) -> list[tuple[str, int, str]]:
    """Every start: node, instant, signs that held."""
    rows: list[tuple[str, int, str]] = []
    for node in nodes:
        union = unions[node.record.node]
        starts = episode_starts(node.alerts(union)).tolist()
        rows += [(node.record.node, at_ms, node.causes(union, at_ms)) for at_ms in starts]
    return rows
