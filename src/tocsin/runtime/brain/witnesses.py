"""The witnesses of a brain's journal: a file on another volume, and the Lease object that makes it the active brain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tocsin.actions.kubernetes.api import Json, KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.config.settings import Settings
from tocsin.domain.entry import Entry, EntryKind
from tocsin.journal.port import LiveJournal
from tocsin.journal.witness import (
    FileWitness,
    Seen,
    Standing,
    Witness,
    WitnessAway,
    WitnessKeeper,
    load_seen,
)
from tocsin.telemetry.metrics import OwnMetrics

ANNOTATION = "tocsin.io/journal-"
"""Of a Lease, followed by the first `ID_LENGTH` digits of the hash of the journal's first entry."""
ID_LENGTH = 16
MOST_TRIES = 3
"""Tries at a write that another one came before: the holder renews the same object every few seconds."""


class LeaseWitness:
    """Annotations of the Lease that `place` (``namespace/name``) names, one for each journal."""

    pace_seconds = 2.0

    def __init__(self, cluster: Cluster, place: str) -> None:
        self._cluster = cluster
        self._namespace, _, self._name = place.partition("/")
        self.name = f"Lease {place}"

    def read(self) -> Mapping[str, Seen]:
        try:
            found = _annotations(self._cluster.lease(self._namespace, self._name))
        except KubeError as error:
            if error.status == 404:
                return {}
            raise WitnessAway(str(error)) from None
        try:
            own = {key: json.loads(text) for key, text in found.items() if key.startswith(ANNOTATION)}
            return {str(raw.pop("journal")): load_seen(raw) for raw in own.values()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WitnessAway(f"an annotation {ANNOTATION}* of {self.name} cannot be read: {error}") from None

    def write(self, journal: str, seen: Seen) -> None:
        text = json.dumps({"journal": journal, "epoch": seen.epoch, "seq": seen.seq, "hash": seen.hash})
        for left in reversed(range(MOST_TRIES)):
            try:
                lease = self._cluster.lease(self._namespace, self._name)
                notes = _annotations(lease) | {ANNOTATION + journal[:ID_LENGTH]: text}
                fresh = lease | {"metadata": lease["metadata"] | {"annotations": notes}}
                self._cluster.update_lease(self._namespace, fresh, lease.get("spec") or {})
                return
            except KubeError as error:
                # 409: the holder renewed between the two requests.
                if error.status != 409 or not left:
                    raise WitnessAway(str(error)) from None


def _annotations(lease: Json) -> dict[str, str]:
    return dict((lease.get("metadata") or {}).get("annotations") or {})


def open_witnesses(settings: Settings) -> list[Witness]:
    """What `settings` name as witnesses of the journal; raises InputError as a connection does."""
    found: list[Witness] = []
    if settings.journal.witness is not None:
        found.append(FileWitness(settings.journal.witness))
    if settings.kubernetes.lease:
        found.append(LeaseWitness(Cluster(connect(settings.kubernetes)), settings.kubernetes.lease))
    return found


def watch_journal(
    journal: LiveJournal, witnesses: Sequence[Witness], seconds: float, metrics: OwnMetrics
) -> list[WitnessKeeper]:
    """Compare `journal` with its `witnesses`, each for `seconds` at most; it is paused where one has seen more.

    To be called before the journal is folded. What `journal.on_append` did before is still done.
    """

    def failed() -> None:
        metrics.count("tocsin_journal_witness_failures_total")

    keepers = [WitnessKeeper(journal, witness, failed) for witness in witnesses]
    reasons = [reason for keeper in keepers if (reason := keeper.start(seconds))]
    before = journal.on_append

    def appended(entries: Sequence[Entry]) -> None:
        before(entries)
        for keeper in keepers:
            keeper.appended(entries)

    journal.on_append = appended
    for reason in reasons:
        journal.append(EntryKind.PAUSE, {"reason": reason})
    metrics.set_function(
        "tocsin_journal_witnesses",
        lambda: float(sum(keeper.standing is Standing.CURRENT and not keeper.trouble for keeper in keepers)),
    )
    metrics.set_function(
        "tocsin_journal_witness_behind", lambda: float(max((keeper.behind() for keeper in keepers), default=0))
    )
    return keepers
