"""The tables of strings, one module a page: key, then English, then Chinese."""

from __future__ import annotations

from tocsin.dashboard.words import audit, common, cost, decisions, forecast, fragmentation, frame, gpu, now, scoreboard

TABLES = (common, frame, now, gpu, decisions, scoreboard, audit, forecast, fragmentation, cost)

STRINGS: dict[str, tuple[str, str]] = {key: words for table in TABLES for key, words in table.STRINGS.items()}
"""Every string. A key stands in one table alone, which a test sees to."""
