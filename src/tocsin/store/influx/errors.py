"""What the refusals of an InfluxDB server mean: which setting is wrong, or which lines of a write."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tocsin.config.settings import StoreSettings
from tocsin.domain.errors import TocsinError
from tocsin.store.port import StoreMisconfigured, StoreRejected, StoreUnavailable

_UNPARSED = re.compile(r"unable to parse '(.*?)': ([^\n]*)", re.DOTALL)
_UNAUTHORIZED = (401, 403)
_NOT_FOUND = 404
_NO_SUCH_PATH = (404, 405)
_TOO_LARGE = 413
_UNUSABLE = (400, _TOO_LARGE, 422)
_MAX_SHOWN = 300


class LinesParked(StoreRejected):
    """The server refuses some lines and has the others. `lines` are (line, reason)."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self.lines = tuple(lines)
        shown = "; ".join(f"{line[:200]!r}: {reason[:_MAX_SHOWN]}" for line, reason in self.lines[:3])
        super().__init__(f"InfluxDB refuses {len(self.lines)} lines, the others are stored: {shown}")


def refusal(settings: StoreSettings, status: int | None, message: str) -> TocsinError:
    """The error for an answer that is no success: StoreMisconfigured with the remedy where only a setting can help."""
    answer = f"InfluxDB at {settings.url} answers {status}: {message.strip()}"
    if status in _UNAUTHORIZED:
        what = f"bucket {settings.bucket!r} of organisation {settings.org!r}"
        return StoreMisconfigured(f"store.token: {answer}; set a token that may read and write {what}")
    if status == _NOT_FOUND and "organization" in message:
        return unknown_organisation(settings, answer)
    if status == _NOT_FOUND and "bucket" in message:
        return StoreMisconfigured(f"store.bucket = {settings.bucket!r}: {answer}; create it with `tocsin store init`")
    if status in _NO_SUCH_PATH or "unsupported path" in message:
        remedy = "name an InfluxDB 2.x (release 1 answers like this; for VictoriaMetrics set store.kind)"
        return StoreMisconfigured(f"store.url = {settings.url!r}: {answer}; {remedy}")
    return StoreRejected(answer) if status in _UNUSABLE else StoreUnavailable(answer)


def unknown_organisation(settings: StoreSettings, problem: str) -> StoreMisconfigured:
    """The error where `store.org` names nothing that the token may see."""
    remedy = "name an organisation that is there and that store.token may see"
    return StoreMisconfigured(f"store.org = {settings.org!r}: {problem}; {remedy}")


def blames_lines(status: int | None, message: str) -> bool:
    """Whether a refused write may pass without some of its lines.

    Release 2.x answers 422 to a field of another type than before, 2.0 beta 500; both say "partial write".
    """
    return status in (_TOO_LARGE, 422) or is_partial(message) or (status == 400 and "unable to parse" in message)


def is_partial(message: str) -> bool:
    """Whether the server says that it has stored the lines that it does not refuse."""
    return "partial write" in message


def named_lines(message: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Those of `lines` that the answer names, each with its reason."""
    reasons = dict(_UNPARSED.findall(message))
    return [(line, reasons[line]) for line in lines if line in reasons]
