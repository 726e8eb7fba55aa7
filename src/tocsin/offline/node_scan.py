"""`tocsin scan` on this node: opens the source that the settings name and the kernel log, and looks once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.offline.scan import ScanReport, scan
from tocsin.rules.load import load_rules
from tocsin.runtime.companions import COMPANIONS, Companions, Context
from tocsin.runtime.sources import open_source
from tocsin.telemetry.metrics import OwnMetrics

BESIDE = ("kernel_log", "attribution")
"""Companions that have something to say within seconds."""


def scan_node(
    settings: Settings, source_name: str, clock: Clock, pause: Callable[[float], object], back_ms: int
) -> ScanReport:
    """Scan by source `source_name` and the rules of the settings, with the kernel's XIDs of the last `back_ms`.

    Raises InputError for a source that does not exist and Unavailable where it cannot be opened.
    """
    rules = load_rules(settings.rules.path, settings.rules.xid_overrides)
    source = open_source(source_name, settings, clock)
    try:
        with tempfile.TemporaryDirectory(prefix="tocsin-scan-") as folder:
            around = Context(apart(settings, Path(folder)), clock, OwnMetrics(), source.name)
            beside = Companions(around, [(name, COMPANIONS[name]) for name in BESIDE])
            try:
                wanted = settings.agent.kernel_log != "off" and around.is_this_node
                blind = ("the kernel log",) if wanted and "kernel_log" not in beside.names else ()
                report = scan(source, rules, clock, pause, enrich=recent(beside, back_ms))
                return replace(report, blind=blind)
            finally:
                beside.close()
    finally:
        source.close()


def apart(settings: Settings, folder: Path) -> Settings:
    """`settings` with the agent's state elsewhere: a scan reads this boot's log from its start, an agent goes on."""
    return settings.model_copy(update={"agent": settings.agent.model_copy(update={"spool": folder / "spool.db"})})


def recent(beside: Companions, back_ms: int) -> Callable[[Batch, int], Batch]:
    """Adds what the companions know, events of the last `back_ms` alone: the kernel log goes back to the boot."""

    def enrich(batch: Batch, now_ms: int) -> Batch:
        made = beside.enrich(batch, now_ms)
        return replace(made, events=[event for event in made.events if event.at_ms >= now_ms - back_ms])

    return enrich
