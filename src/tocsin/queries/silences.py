"""Silences as the API serves them: what people acknowledge, snooze and plan, over a running brain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tocsin.actions.model.silences import GpusOn, Silence, around, matchers_of
from tocsin.client.errors import NotFound
from tocsin.client.models_silences import AcknowledgeRequest, MaintenanceRequest, SilenceOut, SnoozeRequest
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.errors import Conflict
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.reading import Gpu
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin.queries.card_silences import silence_out
from tocsin.queries.cards import MadeCard
from tocsin.queries.live import LiveBrain


class SilenceService:
    """`made` gives every card, `find` the one of an id; it raises NotFound.

    What is said by the id of a part of a card of many places is said of that part alone.
    """

    def __init__(
        self, brain: LiveBrain, made: Callable[[], Sequence[MadeCard]], find: Callable[[str], MadeCard]
    ) -> None:
        self._brain = brain
        self._made = made
        self._all_of = find

    def _find(self, card_id: str) -> MadeCard:
        return _part_of(self._all_of(card_id), card_id)

    def acknowledge(
        self, card_id: str, request: AcknowledgeRequest, actor: str, *, personal: bool, request_id: str = ""
    ) -> SilenceOut:
        """A person takes a card on."""
        found, for_ms = self._open_card(card_id), _milliseconds(request.for_seconds)
        acknowledge, ids = self._brain.actions.silences.acknowledge, list(_levels_of(found))
        return self._out(
            acknowledge(found.card.id, ids, actor, for_ms, request.reason, personal=personal, request=request_id)
        )

    def resolve(self, card_id: str, for_seconds: float, reason: str, actor: str, request_id: str) -> SilenceOut:
        """Hide a card that another system takes for over, and end what it acknowledged of it."""
        found, for_ms = self._open_card(card_id), _milliseconds(for_seconds)
        hide, levels = self._brain.actions.silences.hide_once, _levels_of(found)
        try:
            return self._out(hide(found.card.id, levels, actor, for_ms, reason, request=request_id))
        finally:
            # Nobody works on it there any more, whether or not it may be hidden.
            self._withdraw(found, actor, SilenceKind.ACKNOWLEDGEMENT)

    def withdraw(self, card_id: str, actor: str) -> list[SilenceOut]:
        """End what `actor` said of a card."""
        found = self._open_card(card_id)
        kinds = (SilenceKind.ACKNOWLEDGEMENT, SilenceKind.SNOOZE)
        return [self._out(one) for kind in kinds for one in self._withdraw(found, actor, kind)]

    def _withdraw(self, found: MadeCard, actor: str, kind: SilenceKind) -> list[Silence]:
        ids, now_ms = _levels_of(found).keys(), self._brain.clock.now_ms()
        silences = self._brain.actions.controls().silences
        mine = [one for one in silences if one.kind is kind and one.actor == actor and now_ms < one.until_ms]
        names = [one.id for one in mine if one.causes & ids]
        return self._brain.actions.silences.end(kind, names, actor) if names else []

    def end_acknowledgement(self, card_id: str, actor: str) -> list[SilenceOut]:
        """The card is open again."""
        roots = {cause.id for cause in self._open_card(card_id).causes}
        silences = self._brain.actions.controls().silences
        names = [one.id for one in silences if one.kind is SilenceKind.ACKNOWLEDGEMENT and one.causes & roots]
        ended = self._brain.actions.silences.end(SilenceKind.ACKNOWLEDGEMENT, names, actor)
        return [self._out(one) for one in ended]

    def snooze(self, request: SnoozeRequest, actor: str) -> SilenceOut:
        """Hide a card, or what lies in a place, for a while."""
        matcher, for_ms = Matcher(request.kind, request.name), _milliseconds(request.for_seconds)
        calls = self._brain.actions.silences
        if request.kind is MatcherKind.CARD:
            levels = _levels_of(self._open_card(request.name))
            return self._out(calls.snooze(matcher, actor, for_ms, request.reason, causes=list(levels), levels=levels))
        self._gpus_in(matcher)
        gpus_on = self._lookup()
        levels = {
            cause.id: cause.level
            for made in self._made()
            for cause in made.causes
            if matcher in around(cause.subjects, gpus_on)
        }
        return self._out(calls.snooze(matcher, actor, for_ms, request.reason, levels=levels))

    def plan(self, request: MaintenanceRequest, actor: str) -> SilenceOut:
        """Plan maintenance of a place."""
        matcher = Matcher(request.kind, request.name)
        self._gpus_in(matcher)
        start_ms = None if request.start is None else from_iso(request.start)
        for_ms = _milliseconds(request.for_seconds)
        return self._out(self._brain.actions.silences.plan(matcher, actor, start_ms, for_ms, request.reason))

    def listed(self, kind: SilenceKind) -> list[SilenceOut]:
        """Those that stand or are planned, the next to end first."""
        now_ms = self._brain.clock.now_ms()
        found = [one for one in self._brain.actions.controls().silences if one.kind is kind and now_ms < one.until_ms]
        return [self._out(one) for one in sorted(found, key=lambda one: (one.until_ms, one.id))]

    def end(self, kind: SilenceKind, name: str, actor: str) -> SilenceOut:
        """End one before its time."""
        self._known(kind, name)
        return self._out(self._brain.actions.silences.end(kind, [name], actor)[0])

    def pools(self, kind: MatcherKind, name: str) -> Sequence[str]:
        """Pools of what a silence would cover, sorted; none where that is the fleet, or nobody knows."""
        if kind is MatcherKind.POOL:
            return (name,)
        if kind is not MatcherKind.CARD:
            return sorted({gpu.pool for gpu in self._gpus_in(Matcher(kind, name))})
        subjects = [subject for cause in self._find(name).causes for subject in cause.subjects]
        if any(subject.kind is SubjectKind.FLEET for subject in subjects):
            return ()
        gpus_on = self._lookup()
        return sorted({pool for subject in subjects for pool in _pools_of(subject, gpus_on)})

    def pools_of(self, kind: SilenceKind, name: str) -> Sequence[str]:
        """Pools of a silence that stands; none where its card is over."""
        matcher = self._known(kind, name).matcher
        try:
            return self.pools(matcher.kind, matcher.name)
        except NotFound:
            return ()

    def _known(self, kind: SilenceKind, name: str) -> Silence:
        for one in self._brain.actions.controls().silences:
            if one.kind is kind and one.id == name:
                return one
        lists = "maintenance list" if kind is SilenceKind.MAINTENANCE else "snoozes"
        raise NotFound(f"no {kind} {name}; tocsin {lists} lists them")

    def _open_card(self, card_id: str) -> MadeCard:
        found = self._find(card_id)
        if not found.causes:
            raise Conflict(f"card {card_id} is resolved: nothing to silence")
        return found

    def _gpus_in(self, matcher: Matcher) -> list[Gpu]:
        """The GPUs that `matcher` covers now; raises NotFound where there is none: a name may be misspelt."""
        found = [gpu for gpu in self._brain.gpus if matcher in matchers_of(gpu)]
        if not found:
            raise NotFound(f"no GPU has {matcher.kind} {matcher.name}; GET /v1/gpus lists them")
        return found

    def _lookup(self) -> GpusOn:
        """The GPUs of GPUs and hosts, as they are known now."""
        gpus = self._brain.gpus
        by_uuid, by_host = grouped((gpu.uuid, gpu) for gpu in gpus), grouped((gpu.host, gpu) for gpu in gpus)
        return lambda one: (by_host if one.kind is SubjectKind.HOST else by_uuid).get(one.name, ())

    def _out(self, one: Silence) -> SilenceOut:
        return silence_out(one, self._brain.clock.now_ms())


def _part_of(found: MadeCard, card_id: str) -> MadeCard:
    mine = tuple(one for one in found.causes if card_id in one.ids)
    if not found.many or not mine:
        return found
    return replace(found, card=found.card.model_copy(update={"id": card_id}), causes=mine)


def _levels_of(found: MadeCard) -> dict[str, AlertLevel]:
    """How bad the causes of a card are, by every id: the roots first, for a silence keeps so many and no more."""
    roots = {cause.id: cause.level for cause in found.causes}
    return roots | {name: cause.level for cause in found.causes for name in cause.findings if name not in roots}


def _pools_of(subject: Subject, gpus_on: GpusOn) -> set[str]:
    own = subject.name if subject.kind is SubjectKind.POOL else subject.pool
    return {gpu.pool for gpu in gpus_on(subject)} or {own}


def _milliseconds(seconds: float) -> int:
    return round(seconds * SECOND)
