"""What people may silence: acknowledgements, snoozes and planned maintenance, each with an end."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tocsin.actions.loop.operator import named_person
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.silences import (
    ENTRY_OF,
    MOST_CAUSES,
    MOST_STANDING,
    Silence,
    payload_of,
)
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock, to_iso
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin.domain.words import clean

SHORTEST_MS = MINUTE
LONGEST_MS = {SilenceKind.ACKNOWLEDGEMENT: DAY, SilenceKind.SNOOZE: 7 * DAY, SilenceKind.MAINTENANCE: 7 * DAY}
FURTHEST_AHEAD_MS = 14 * DAY
"""How far ahead maintenance is planned at most."""
BREAKER_MS = 4 * HOUR
"""How long an acknowledgement keeps its cause out of the breaker at most, from the first one on."""
MOST_REASON = 500
"""Characters of a reason."""


class SilenceCalls:
    """Safe to call from other threads than the one that steps.

    Methods raise InputError for bad spans, reasons and names, and where `MOST_STANDING` are reached; Conflict where
    there is nothing to end. What came as a `request` of another system has that as its name: the same request again, or
    another one while the first stands, changes nothing and gives what is known.
    """

    def __init__(self, decision_log: DecisionLog, clock: Clock) -> None:
        self._decision_log = decision_log
        self._clock = clock

    def acknowledge(
        self,
        card: str,
        causes: Collection[str],
        actor: str,
        for_ms: int,
        reason: str = "",
        *,
        personal: bool = False,
        request: str = "",
    ) -> Silence:
        """A person has taken on the causes of a card. By a `personal` token they are kept out of the breaker until the
        end, for no longer than `BREAKER_MS` from the first acknowledgement of any of them."""
        named = frozenset(list(causes)[:MOST_CAUSES])
        with self._decision_log.lock:
            if (known := self._known(request, SilenceKind.ACKNOWLEDGEMENT, actor, named)) is not None:
                return known
            made = self._made(SilenceKind.ACKNOWLEDGEMENT, Matcher(MatcherKind.CARD, card), actor, for_ms, reason)
            earlier = [
                one.starts_ms
                for one in self._decision_log.controls().silences
                if one.breaker_until_ms and one.causes & named
            ]
            limit_ms = min([made.starts_ms, *earlier]) + BREAKER_MS
            # An exemption that has run out stays on record, so that the next one counts from the first as well.
            exempt_ms = max(made.starts_ms, min(made.until_ms, limit_ms)) if personal else 0
            return self._begin(replace(made, causes=named, breaker_until_ms=exempt_ms), request)

    def snooze(
        self,
        matcher: Matcher,
        actor: str,
        for_ms: int,
        reason: str = "",
        *,
        causes: Collection[str] = (),
        levels: Mapping[str, AlertLevel] | None = None,
        request: str = "",
    ) -> Silence:
        """Hide what lies in `matcher` until the end, or until it gets worse than it is now.

        `causes` are those of a card, `levels` what is known there now, by id. What comes later is hidden up to the
        worst of them, a warning at least.
        """
        known = dict(list((levels or {}).items())[:MOST_CAUSES])
        worst = max([AlertLevel.WARNING, *known.values()], key=lambda level: level.rank)
        with self._decision_log.lock:
            made = self._made(SilenceKind.SNOOZE, matcher, actor, for_ms, reason)
            named = frozenset(list(causes)[:MOST_CAUSES])
            return self._begin(replace(made, causes=named, level=worst, levels=known), request)

    def hide_once(
        self, card: str, levels: Mapping[str, AlertLevel], actor: str, for_ms: int, reason: str, *, request: str
    ) -> Silence:
        """Snooze a card that `actor` takes for over, for `for_ms` from the first time that it said so of any of its
        causes: however often it is said, what is still there is shown again. Raises Conflict where that time is up.

        `levels` are those of its causes now, by id, as of `snooze`.
        """
        named = frozenset(list(levels)[:MOST_CAUSES])
        with self._decision_log.lock:
            if (known := self._known(request, SilenceKind.SNOOZE, actor, named)) is not None:
                return known
            now_ms, silences = self._clock.now_ms(), self._decision_log.controls().silences
            mine = [one for one in silences if one.kind is SilenceKind.SNOOZE and one.actor == actor]
            first_ms = min([now_ms, *(one.starts_ms for one in mine if one.causes & named)])
            left_ms = first_ms + for_ms - now_ms
            if left_ms < SHORTEST_MS:
                since = f"since {to_iso(first_ms)}, and is still there"
                raise Conflict(f"{actor} has hidden card {card} for as long as it may {since}")
            return self.snooze(
                Matcher(MatcherKind.CARD, card), actor, left_ms, reason, causes=named, levels=levels, request=request
            )

    def plan(self, matcher: Matcher, actor: str, start_ms: int | None, for_ms: int, reason: str = "") -> Silence:
        """Maintenance of the GPUs in `matcher`, from `start_ms`, now where it is None; a card is no place for one."""
        now_ms = self._clock.now_ms()
        if start_ms is not None and not now_ms - MINUTE <= start_ms <= now_ms + FURTHEST_AHEAD_MS:
            days = FURTHEST_AHEAD_MS // DAY
            raise InputError(
                "start", to_iso(start_ms), "lies in the past or too far ahead", f"plan up to {days} days ahead"
            )
        with self._decision_log.lock:
            made = self._made(SilenceKind.MAINTENANCE, matcher, actor, for_ms, reason, start_ms)
            return self._begin(made)

    def end(self, kind: SilenceKind, names: Iterable[str], actor: str) -> list[Silence]:
        """End the silences of `kind` with the ids `names` before their time."""
        named_person(actor)
        with self._decision_log.lock:
            now_ms, wanted = self._clock.now_ms(), set(names)
            silences = self._decision_log.controls().silences
            open_ones = [one for one in silences if one.kind is kind and one.id in wanted and now_ms < one.until_ms]
            if not open_ones:
                raise Conflict(f"no {kind} of that id stands or is planned")
            for one in open_ones:
                payload = {"id": one.id, "silence": str(kind), "subject": f"{one.matcher.kind}:{one.matcher.name}"}
                self._decision_log.note(EntryKind.SILENCE_ENDED, payload, actor=actor)
            return open_ones

    def _made(
        self, kind: SilenceKind, matcher: Matcher, actor: str, for_ms: int, reason: str, start_ms: int | None = None
    ) -> Silence:
        named_person(actor)
        if not SHORTEST_MS <= for_ms <= LONGEST_MS[kind]:
            longest = LONGEST_MS[kind] // HOUR
            raise InputError("for_seconds", for_ms / SECOND, "is too short or too long", f"1 minute to {longest} hours")
        if len(reason) > MOST_REASON:
            raise InputError("reason", reason, "is too long", f"use {MOST_REASON} characters at most")
        now_ms, silences = self._clock.now_ms(), self._decision_log.controls().silences
        if sum(now_ms < one.until_ms for one in silences) >= MOST_STANDING:
            problem = f"{MOST_STANDING} silences stand or are planned already"
            raise InputError("silences", MOST_STANDING, problem, "end some, or silence a rack or a pool in their place")
        starts_ms = now_ms if start_ms is None else start_ms
        text = f"{kind}|{matcher}|{now_ms}|{starts_ms}|{actor}|{len(silences)}"
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Silence(name, kind, matcher, starts_ms, starts_ms + for_ms, now_ms, actor, clean(reason))

    def _known(self, request: str, kind: SilenceKind, actor: str, causes: frozenset[str]) -> Silence | None:
        """What `request` began, though it may have ended, or what stands already of what it asks for."""
        if not request:
            return None
        if (begun := self._decision_log.ledger.silences.known.get(_name_of(request))) is not None:
            return begun
        now_ms = self._clock.now_ms()
        mine = [one for one in self._decision_log.controls().silences if one.actor == actor and one.kind is kind]
        return next((one for one in mine if one.stands(now_ms) and causes <= one.causes), None)

    def _begin(self, made: Silence, request: str = "") -> Silence:
        made = replace(made, id=_name_of(request)) if request else made
        self._decision_log.note(ENTRY_OF[made.kind], payload_of(made), actor=made.actor)
        return self._decision_log.ledger.silences.known[made.id]


def _name_of(request: str) -> str:
    return hashlib.sha256(f"request|{request}".encode()).hexdigest()[:16]
