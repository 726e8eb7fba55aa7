"""Which incidents are told on one card: those of one place, and what shows on none but the GPUs of a graver one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import Category, Incident
from tocsin.domain.place import PlaceKind
from tocsin.queries.card_life import gpus_of, record_of
from tocsin.rules.symptoms import Symptom, symptom_of

Gravity = tuple[int, bool, int, bool, int, str]
"""The greatest heads a card."""


def gravity(incident: Incident, level: AlertLevel) -> Gravity:
    """How grave it is, where it wakes people as `level` has it: what holds is before what has ended, a GPU that is lost
    before what else is as bad, then the older."""
    root = incident.root
    lost = symptom_of(root) is Symptom.BUS
    return level.rank, not incident.cause_cleared, root.severity.rank, lost, -incident.opened_ms, incident.id


def of_one_cause(incidents: Iterable[Incident], how_grave: Callable[[Incident], Gravity]) -> list[list[Incident]]:
    """Incidents of one place together, the gravest first; with them what is less grave, shows on none but the GPUs of a
    graver one and had begun before that one's cause ended. So it stays where the wider one's cause has ended first."""
    made: list[tuple[set[str], list[Incident]]] = []
    places: dict[str, int] = {}
    for one in sorted(incidents, key=how_grave, reverse=True):
        where, gpus = record_of(one).where, gpus_of(one)
        into = places.get(where)
        if into is None and gpus:
            explained = (
                n
                for n, (touched, found) in enumerate(made)
                if (gpus <= touched and _may_explain(found[0], one))
                or (
                    one.cause_cleared and touched and touched <= gpus and all(_may_explain(one, each) for each in found)
                )
            )
            into = next(explained, None)
        if into is None:
            into = places[where] = len(made)
            made.append((set(), []))
        made[into][0].update(gpus)
        made[into][1].append(one)
    return [found for _, found in made]


def _may_explain(cause: Incident, other: Incident) -> bool:
    """Whether `other` may follow from `cause`: what begins after a cause has ended does not."""
    return not cause.cause_cleared or other.opened_ms <= cause.root.last_ms


def is_housekeeping(incident: Incident) -> bool:
    """Whether nothing is broken and nothing is announced: load, memory in use, fragmentation."""
    urgent = incident.alert_level is AlertLevel.PAGE
    return symptom_of(incident.root) is Symptom.ALONE and not incident.root.told and not urgent


def is_job_crash(incident: Incident) -> bool:
    """Whether a program failed on several GPUs of its job: a note to the operator of the fleet, not to its owner."""
    place = incident.place
    return place is not None and place.kind is PlaceKind.JOB and incident.root.category is Category.APPLICATION
