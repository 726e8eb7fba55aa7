"""`tocsin scan` on this node: opens the source that the settings name, and looks once."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.rules.load import load_rules
from tocsin.runtime.scan import ScanReport, scan
from tocsin.runtime.sources import open_source


def scan_node(
    settings: Settings, source_name: str, clock: Clock, pause: Callable[[float], object], back_ms: int
) -> ScanReport:
    """Scan by source `source_name` and the rules of the settings, with the kernel's XIDs of the last `back_ms`.

    Raises InputError for a source that does not exist and Unavailable where it cannot be opened.
    """
    rules = load_rules(settings.rules.path)
    source = open_source(source_name, settings, clock)
    try:
        return scan(source, rules, clock, pause)
    finally:
        source.close()
