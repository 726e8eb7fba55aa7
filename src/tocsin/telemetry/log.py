"""Tocsin's own log: structured, to standard error, so that standard output stays free for results."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]


def configure_logging(level: Level = "info", fmt: Format = "console", stream: TextIO | None = None) -> None:
    """Set up the log of this process; safe to repeat.

    `fmt` is ``json`` (one object a line, keys ``event``, ``level``, ``at`` and what the caller gives) or ``console``.
    `stream` takes the place of standard error.
    """
    target = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
    ]
    if fmt == "json":
        rendering: list[Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=True),
        ]
    else:
        # The default shows what the variables of each frame hold: tokens and passwords among them.
        plain = structlog.dev.plain_traceback
        rendering = [
            structlog.dev.ConsoleRenderer(colors=target.isatty(), timestamp_key="at", exception_formatter=plain)
        ]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )


def logger(part: str) -> FilteringBoundLogger:
    """The log of one part of Tocsin, such as ``agent`` or ``nvml``."""
    bound: FilteringBoundLogger = structlog.get_logger(part=part)
    return bound
