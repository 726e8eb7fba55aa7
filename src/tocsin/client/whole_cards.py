"""The cards of all cells as those of one fleet: a cause at a place that several cells share is one card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tocsin.client.models_cards import Card, Cards, CardState, CardTouches
from tocsin.domain.place import PlaceKind

_NAMES = 8
"""Names of each kind that a card of several cells keeps."""
_OWN = frozenset({PlaceKind.POOL, PlaceKind.RAIL})
"""Places whose names every cell has for its own: rails are numbered in each network."""
_SHARED = frozenset(kind.value for kind in PlaceKind if kind not in _OWN)


@dataclass(frozen=True, slots=True)
class FleetCard:
    """A card of the fleet. `card` is that of the cell where it is worst, with all that the others touch; `members` are
    the cards that it stands for, by cell, that one first."""

    card: Card
    members: tuple[tuple[str, Card], ...]

    @property
    def cells(self) -> str:
        """The cells that have it."""
        return ", ".join(sorted(name for name, _ in self.members))


def fleet_cards(answers: Mapping[str, Cards], most: int) -> tuple[list[FleetCard], int]:
    """The most urgent cards, page before warning before note, the newest first; and how many there are.

    Open cards of different cells about one place (a job, a rack, an NVLink domain, a host, a GPU that has moved) are
    one. What is told of a pool or of the fleet, which breaks nothing, stays each cell's own.
    """
    found: dict[tuple[str, ...], list[tuple[str, Card]]] = {}
    for name in sorted(answers):
        for card in answers[name].items:
            found.setdefault(_cause(name, card), []).append((name, card))
    joined = [_joined(sorted(members, key=_urgency, reverse=True)) for members in found.values()]
    joined.sort(key=lambda one: one.card.since or "", reverse=True)
    joined.sort(key=lambda one: one.card.level.rank, reverse=True)
    twice = sum(len(one.members) - 1 for one in joined)
    return joined[:most], sum(one.total for one in answers.values()) - twice


def _cause(cell: str, card: Card) -> tuple[str, ...]:
    """What makes two cards one: the place, where cells can share it."""
    kind, _, name = card.place.partition(":")
    if kind in _SHARED and name and card.state is not CardState.RESOLVED:
        return (card.place,)
    return cell, card.id


def _urgency(one: tuple[str, Card]) -> tuple[int, int, str]:
    _, card = one
    return card.level.rank, int(bool(card.action and card.action.can_approve)), card.since or ""


def _joined(members: Sequence[tuple[str, Card]]) -> FleetCard:
    worst = members[0][1]
    if len(members) == 1:
        return FleetCard(worst, tuple(members))
    cards = [card for _, card in members]
    told = {
        "touches": _touches([card.touches for card in cards]),
        "since": min((card.since for card in cards if card.since), default=None),
        "waiting_gpu_hours": _added([card.waiting_gpu_hours for card in cards]),
    }
    if len({card.currency for card in cards if card.waiting_money is not None}) == 1:
        told["waiting_money"] = _added([card.waiting_money for card in cards])
    # It is taken on where every cell's is.
    free = next((card for card in cards if card.state is not CardState.ACKNOWLEDGED), None)
    if free is not None and worst.state is CardState.ACKNOWLEDGED:
        told |= {"state": free.state, "acknowledged_by": "", "acknowledged_until": None}
    return FleetCard(worst.model_copy(update=told), tuple(members))


def _touches(every: Sequence[CardTouches]) -> CardTouches:
    """All that they touch: GPUs and hosts are of one cell each, a job and its owner may be of several."""
    names = {
        kind: list(dict.fromkeys(name for one in every for name in getattr(one, f"{kind}_names")))
        for kind in ("gpu", "host", "job", "owner")
    }
    shared = {kind: max(len(names[kind]), *(getattr(one, f"{kind}s") for one in every)) for kind in ("job", "owner")}
    return CardTouches(
        gpus=sum(one.gpus for one in every),
        hosts=sum(one.hosts for one in every),
        jobs=shared["job"],
        owners=shared["owner"],
        gpu_names=names["gpu"][:_NAMES],
        host_names=names["host"][:_NAMES],
        job_names=names["job"][:_NAMES],
        owner_names=names["owner"][:_NAMES],
    )


def _added(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
