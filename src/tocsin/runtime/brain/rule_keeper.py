"""The rule engine that a brain judges by, and what it knows of the past."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import structlog

from tocsin.config.settings import Settings, StoreKind
from tocsin.domain.clock import SECOND, Clock
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.versions import VersionBefore
from tocsin.rules.engine import RuleEngine
from tocsin.rules.past import Past
from tocsin.rules.schema import RuleSet
from tocsin.runtime.brain.warm_up import WarmUp, warm_up
from tocsin.store.port import Store

log = structlog.get_logger()

OF_THIS_HOST = frozenset({StoreKind.MEMORY, StoreKind.SQLITE})
"""Stores of which the past is read before a brain begins."""


class RuleKeeper:
    """An engine that has gone through the past; or one that does without, while `warming` makes the one that has.

    For the thread that evaluates, but for `hear_past`.
    """

    def __init__(self, ruleset: RuleSet) -> None:
        self.ruleset = ruleset
        self.engine = RuleEngine(ruleset)
        self.warming: WarmUp | None = None
        self._told: list[Past] = []

    def warm(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        known: Callable[[], AbstractSet[str]],
        repaired: Mapping[str, int],
        versions: Sequence[VersionBefore],
        open_: Iterable[Finding],
    ) -> None:
        """Let the rules know the past of the GPUs that are `known`: now where the store is on this host, else while the
        brain runs; what is `open_` goes on until then. Raises StoreUnavailable."""
        step_ms = round(settings.rules.evaluate_seconds * SECOND)
        if settings.store.kind in OF_THIS_HOST:
            past = warm_up(store, known(), clock.now_ms(), step_ms, repaired)
            self.engine.warm(replace(inputs, versions=versions) for inputs in past)
        else:
            self.warming = WarmUp(store, self.ruleset, clock, step_ms, known, repaired, versions, open_)

    def go_on(self, store: Store, open_: Iterable[Finding]) -> None:
        """In another brain, over `store`, where `open_` is on record by now."""
        if self.warming is not None:
            self.warming.go_on(store, open_)

    def hear_past(self, past: Past) -> None:
        """What rules wanted of the past: they judge by it from the next evaluation on."""
        self._told.append(past)

    def turn(self, events: Callable[[], Sequence[Event]], adopted: Callable[[], Iterable[Finding]]) -> bool:
        """Before an evaluation: take the engine that knows the past where it is done, with the `events` of late and the
        findings that it takes up, and what was heard of the past. Whether the engine is another one now."""
        while self._told:
            past = self._told.pop()
            self.engine.recall(past)
            if self.warming is not None:
                self.warming.hear_past(past)
        if self.warming is None or not (self.warming.done or self.warming.given_up()):
            return False
        warming, self.warming = self.warming, None
        if not warming.done:
            log.warning("rules do without the past: the store did not tell it in time")
            warming.end()
            self.engine.adopt(adopted())
            return False
        self.engine = warming.engine(events(), adopted())
        return True

    def leave(self, gpus: Iterable[str]) -> None:
        """These GPUs have left the fleet."""
        uuids = list(gpus)
        self.engine.leave(uuids)
        if self.warming is not None:
            self.warming.leave(uuids)

    def with_open(self, active: Sequence[Finding]) -> Sequence[Finding]:
        """`active`, with what goes on until the past is known."""
        return active if self.warming is None else self.warming.with_open(active)
