"""The silences of `FakeService`: kept in a list, for cards and hosts of the fake fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tocsin.client.errors import NotFound
from tocsin.client.models_cards import Card, CardState
from tocsin.client.models_silences import AcknowledgeRequest, MaintenanceRequest, SilenceOut, SnoozeRequest
from tocsin.domain.clock import HOUR, SECOND, from_iso, to_iso
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.silence import MatcherKind, SilenceKind

if TYPE_CHECKING:
    from tocsin_testing.fake_service import FakeService


class FakeSilences:
    """`stand` are those that have not ended."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self.stand: list[SilenceOut] = []

    def marked(self, card: Card) -> Card:
        """A card with what was said of it."""
        for one in self.stand:
            mine = one.name in (card.id, card.subject.host)
            if mine and one.silence is SilenceKind.ACKNOWLEDGEMENT:
                update = {"state": CardState.ACKNOWLEDGED, "acknowledged_by": one.by, "acknowledged_until": one.until}
                card = card.model_copy(update=update)
            elif mine:
                card = card.model_copy(update={"hidden": one})
        return card

    def acknowledge(
        self, card_id: str, request: AcknowledgeRequest, actor: str, *, personal: bool, request_id: str = ""
    ) -> SilenceOut:
        card = self._service.card(card_id)
        mine = self._of(card.id, actor, SilenceKind.ACKNOWLEDGEMENT)
        if request_id and mine:
            return mine[0]
        made = self._made(
            SilenceKind.ACKNOWLEDGEMENT, MatcherKind.CARD, card.id, actor, request.for_seconds, request.reason
        )
        exempt = min(from_iso(made.until), from_iso(made.start) + 4 * HOUR)
        self.stand[-1] = made.model_copy(update={"breaker_until": to_iso(exempt) if personal else None})
        return self.stand[-1]

    def end_acknowledgement(self, card_id: str, actor: str) -> list[SilenceOut]:
        ended = [one for one in self.stand if one.name == card_id and one.silence is SilenceKind.ACKNOWLEDGEMENT]
        if not ended:
            raise Conflict("no acknowledgement of that id stands")
        self.stand = [one for one in self.stand if one not in ended]
        return ended

    def resolve(self, card_id: str, for_seconds: float, reason: str, actor: str, request_id: str) -> SilenceOut:
        card = self._service.card(card_id)
        mine = self._of(card.id, actor, SilenceKind.SNOOZE)
        if not mine:
            mine = [self._made(SilenceKind.SNOOZE, MatcherKind.CARD, card.id, actor, for_seconds, reason)]
        acknowledged = self._of(card.id, actor, SilenceKind.ACKNOWLEDGEMENT)
        self.stand = [one for one in self.stand if one not in acknowledged]
        return mine[0]

    def withdraw(self, card_id: str, actor: str) -> list[SilenceOut]:
        card = self._service.card(card_id)
        ended = [one for one in self.stand if one.name == card.id and one.by == actor]
        self.stand = [one for one in self.stand if one not in ended]
        return ended

    def _of(self, card_id: str, actor: str, kind: SilenceKind) -> list[SilenceOut]:
        return [one for one in self.stand if (one.name, one.by, one.silence) == (card_id, actor, kind)]

    def snooze(self, request: SnoozeRequest, actor: str) -> SilenceOut:
        self.pools(request.kind, request.name)
        return self._made(SilenceKind.SNOOZE, request.kind, request.name, actor, request.for_seconds, request.reason)

    def plan(self, request: MaintenanceRequest, actor: str) -> SilenceOut:
        self.pools(request.kind, request.name)
        given = request.for_seconds, request.reason, request.start
        return self._made(SilenceKind.MAINTENANCE, request.kind, request.name, actor, *given)

    def listed(self, kind: SilenceKind) -> list[SilenceOut]:
        return [one for one in self.stand if one.silence is kind]

    def end(self, kind: SilenceKind, name: str, actor: str) -> SilenceOut:
        found = self._known(kind, name)
        self.stand.remove(found)
        return found

    def pools(self, kind: MatcherKind, name: str) -> Sequence[str]:
        if kind is MatcherKind.POOL:
            return (name,)
        if kind is MatcherKind.CARD:
            return (self._service.card(name).subject.pool,)
        found = sorted({gpu.pool for gpu in self._service.gpus() if gpu.host == name})
        if not found:
            raise NotFound(f"no GPU has {kind} {name}")
        return found

    def pools_of(self, kind: SilenceKind, name: str) -> Sequence[str]:
        one = self._known(kind, name)
        return self.pools(one.kind, one.name)

    def _known(self, kind: SilenceKind, name: str) -> SilenceOut:
        found = next((one for one in self.listed(kind) if one.id == name), None)
        if found is None:
            raise NotFound(f"no {kind} {name}")
        return found

    def _made(
        self,
        silence: SilenceKind,
        kind: MatcherKind,
        name: str,
        actor: str,
        seconds: float,
        reason: str,
        start: str | None = None,
    ) -> SilenceOut:
        if seconds > 7 * 86_400:
            raise InputError("for_seconds", seconds, "is too long", "use 7 days at most")
        start_ms = self._service.now_ms() if start is None else from_iso(start)
        made = SilenceOut(
            id=f"{len(self.stand) + 1:016x}",
            silence=silence,
            kind=kind,
            name=name,
            by=actor,
            start=to_iso(start_ms),
            until=to_iso(start_ms + round(seconds * SECOND)),
            reason=reason,
        )
        self.stand.append(made)
        return made
