"""What one yes may be to: decisions for the same action about the same cause that wait for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.domain.finding import ActionKind, Incident
from tocsin.rules.symptoms import is_standing

Yes = tuple[str, ActionKind]
"""An action about the cause of an incident."""


def of_one_cause(incidents: Iterable[Incident]) -> frozenset[str]:
    """Ids of the incidents whose members have one cause: what merely stands on many GPUs, as full memory does, has
    none."""
    return frozenset(one.id for one in incidents if not is_standing(one.root))


def yes_to(status: DecisionStatus, shared: Collection[str]) -> Yes | None:
    """What a yes to it is to; None where it waits for none, or for one of its own. `shared` is of `of_one_cause`."""
    decision = status.decision
    waits = status.waits_for_person and decision.incident in shared
    return (decision.incident, decision.action) if waits else None


def yeses(statuses: Iterable[DecisionStatus], incidents: Iterable[Incident]) -> Counter[Yes]:
    """How many of `statuses` wait for each yes."""
    shared = of_one_cause(incidents)
    return Counter(yes for one in statuses if (yes := yes_to(one, shared)))


def others(status: DecisionStatus, counted: Counter[Yes]) -> int:
    """How many more wait as `status` does; 0 where it waits for nobody."""
    decision = status.decision
    return max(0, counted[decision.incident, decision.action] - 1) if status.waits_for_person else 0
