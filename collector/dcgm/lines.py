"""Lines of the Prometheus text format, split fast: what a line is about is parsed once and then known by its text.

prometheus_client parses the labels (quoting, escapes, blanks after commas). A scrape repeats the same names and labels
every time, so that after the first one a line costs a dictionary look-up and a float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tocsin.collector.dcgm.fields import blank_number, blank_text
from tocsin.collector.dcgm.labels import DCGM_PREFIXES, PROCESS_START, Head, head_of
from tocsin.domain.missing import Missing

MAX_HEADS = 200_000
"""Most remembered heads, some 100 MB: a fleet's dump; a node has some hundred."""
_OURS = (*DCGM_PREFIXES, PROCESS_START)
_NAN = float("nan")
_BLANKS = " \t"


class BadLine(ValueError):
    """A line that is no sample."""


class Sample(NamedTuple):
    """One line. `raw` is as DCGM printed it, NaN where `blank` gives the reason; `at_ms` None where it has no time."""

    head: Head
    raw: float
    blank: Missing | None
    at_ms: int | None


def _parse_head(text: str) -> Head:
    try:
        found = [s for family in text_string_to_metric_families(f"{text} 0") for s in family.samples]
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise BadLine(str(error)) from None
    if len(found) != 1:
        raise BadLine(text)
    return head_of(found[0].name, found[0].labels)


class Heads:
    """Heads by their text. `dress` changes each once, when it is first met."""

    def __init__(self, dress: Callable[[Head], Head] | None = None) -> None:
        self._dress = dress
        self._known: dict[str, Head] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, text: str) -> Head:
        """The head written as `text`. Raises BadLine where it is none."""
        head = self._known.get(text)
        if head is None:
            head = _parse_head(text)
            if self._dress is not None:
                head = self._dress(head)
            if len(self._known) >= MAX_HEADS:
                self._known.clear()
            self._known[text] = head
        return head

    def keep(self, least: int) -> None:
        """Forget all where far more than `least` are known: pods come and go, and each leaves its labels behind."""
        if len(self._known) > 4 * least + 1000:
            self._known.clear()

    def sample(self, line: str) -> Sample:
        """The sample on `line`, which is neither empty nor a comment. Raises BadLine."""
        brace = line.rfind("}")
        cut = brace + 1 if brace >= 0 else line.find(" ")
        rest = line[cut:].split()
        if cut <= 0 or not 1 <= len(rest) <= 2:
            raise BadLine(line[:200])
        head = self.of(line[:cut])
        text = rest[0]
        at_ms = _instant(rest[1]) if len(rest) == 2 else None
        try:
            raw = float(text)
        except ValueError:
            reason = blank_text(text)
            if reason is None:
                raise BadLine(line[:200]) from None
            return Sample(head, _NAN, reason, at_ms)
        reason = blank_number(raw, text)
        return Sample(head, raw if reason is None else _NAN, reason, at_ms)


def _instant(text: str) -> int:
    """The Prometheus text format has milliseconds, OpenMetrics seconds with a fraction."""
    try:
        return round(float(text) * 1000) if "." in text else int(text)
    except ValueError:
        raise BadLine(text) from None


def samples(text: str, heads: Heads, bad: Callable[[str], None]) -> Iterator[Sample]:
    """Samples of dcgm-exporter, and of its process, in `text`; a line that cannot be used goes to `bad`."""
    for line in text.split("\n"):
        line = line.strip(_BLANKS + "\r")
        if not line.startswith(_OURS):
            continue
        try:
            sample = heads.sample(line)
        except BadLine:
            bad(line)
            continue
        yield sample
