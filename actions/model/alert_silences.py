"""Silences that people set in Alertmanager, and which notifications of Tocsin's they cover.

What must hold: a silence covers what all of its matchers match, as Alertmanager has it (a label that is missing is
empty, expressions hold for the whole value); one with a matcher that cannot be evaluated covers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tocsin.actions.model.alert_labels import labels_of
from tocsin.actions.model.silences import GpusOn
from tocsin.domain.decision import Decision
from tocsin.domain.errors import InputError, Unavailable, install_extra
from tocsin.domain.finding import Subject
from tocsin.domain.phrase import Phrase, say
from tocsin.domain.reading import Gpu

MOST_CHARACTERS = 1_024
"""Characters of a matcher's value; own choice, Alertmanager knows no bound but that of the body."""
_MEMORY = 1 << 20
"""Bytes that one expression may take, compiled and while it is matched."""
_PORT = re.compile(r":\d+$")
_PORTS = ("", ":9400", ":9100")
"""What `instance` has behind the host: nothing, dcgm-exporter's port, node_exporter's."""
_HOST = ("host", "hostname", "node", "nodename", "kubernetes_node")
_UUID = ("gpu", "uuid", "gpu_uuid")
_INDEX = ("gpu", "gpu_index")

Labels = Mapping[str, Sequence[str]]
"""Values by label; several where exporters write one thing in different ways."""


@dataclass(frozen=True, slots=True)
class AlertMatcher:
    """One matcher: `expression` says whether a whole value fits, None where `value` itself is meant."""

    name: str
    value: str
    equal: bool
    expression: Callable[[str], bool] | None = None

    def matches(self, values: Sequence[str]) -> bool:
        """Whether one of `values` fits, or, of a matcher that excludes, none does."""
        fits = self.expression or self.value.__eq__
        return any(map(fits, values or ("",))) is self.equal


@lru_cache(maxsize=4_096)
def matcher_of(name: str, value: str, *, is_regex: bool, is_equal: bool) -> AlertMatcher:
    """The matcher of these four. Raises InputError for an expression that cannot be evaluated within bounds, and
    Unavailable where the package for expressions is not installed."""
    if len(value) > MOST_CHARACTERS:
        raise InputError("matcher", name, "has too long a value", f"use {MOST_CHARACTERS} characters at most")
    if not is_regex:
        return AlertMatcher(name, _PORT.sub("", value) if name == "instance" else value, is_equal)
    compiled = _compiled(name, value)

    @lru_cache(maxsize=64)
    def fits(text: str) -> bool:
        try:
            return compiled.fullmatch(text) is not None
        except UnicodeError:
            return False

    return AlertMatcher(name, value, is_equal, fits)


def check_installed() -> None:
    """Whether expressions can be evaluated here. Raises Unavailable where they cannot."""
    _re2()


def _re2() -> Any:
    """RE2 has the syntax of Alertmanager's own expressions, and takes no longer than the text is long."""
    try:
        import re2
    except ImportError:
        raise Unavailable(f"silences of Alertmanager need google-re2; {install_extra('brain')}") from None
    return re2


def _compiled(name: str, value: str) -> Any:
    re2 = _re2()
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    try:
        return re2.compile(value, options)
    except (re2.error, UnicodeError) as error:
        said = error.args[0] if error.args else error
        why = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        problem = f"has the expression {value[:100]!r}, which RE2 refuses: {why[:100]}"
        raise InputError("matcher", name, problem, "write it in RE2's syntax, and shorter") from None


@dataclass(frozen=True, slots=True)
class AlertSilence:
    """One that stands until `until_ms`; `by` and `comment` are a stranger's words, cleaned and clipped."""

    id: str
    matchers: tuple[AlertMatcher, ...]
    starts_ms: int
    until_ms: int
    by: str = ""
    comment: str = ""

    def stands(self, now_ms: int) -> bool:
        return self.starts_ms <= now_ms < self.until_ms

    def covers(self, labels: Labels) -> bool:
        """Whether all matchers match; without matchers it covers nothing."""
        return bool(self.matchers) and all(one.matches(labels.get(one.name, ())) for one in self.matchers)

    def in_words(self, until: str, *, hard_fault: bool = False) -> Phrase:
        """Who set it, until when and why."""
        values = {"who": self.by or "?", "at": until, "reason": self.comment}
        if hard_fault:
            template = "silenced at Alertmanager by {who} until {at}, though something is broken now"
        else:
            template = "silenced at Alertmanager by {who} until {at}"
        return say(f"{template}: {{reason}}" if self.comment else template, **values)


@dataclass(frozen=True, slots=True)
class AlertSilences:
    """What Alertmanager last said; empty while it is not heard of. `labels` are those that notifications have there
    beside their own."""

    known: tuple[AlertSilence, ...] = ()
    labels: Labels = field(default_factory=dict)

    def over(
        self, decision: Decision, subjects: Iterable[Subject], gpus_on: GpusOn, now_ms: int
    ) -> AlertSilence | None:
        """The silence that covers a notification at each of the places that its cause touches, of several the last to
        end; None where none does."""
        found = [one for one in self.known if one.stands(now_ms)]
        for subject in (decision.subject, *(each for each in subjects if each != decision.subject)):
            if not found:
                return None
            labels = self.of(replace(decision, subject=subject), gpus_on(subject))
            found = [one for one in found if one.covers(labels)]
        return _last(found)

    def over_alert(self, labels: Mapping[str, str], now_ms: int) -> AlertSilence | None:
        """The silence that covers somebody else's alert."""
        own = {name: (value,) for name, value in labels.items()}
        return _last([one for one in self.known if one.stands(now_ms) and one.covers(own)])

    def of(self, decision: Decision, gpus: Iterable[Gpu]) -> Labels:
        """The labels of a notification, under Tocsin's names and those of exporters; `gpus` are those of its subject.

        A GPU is known by UUID and by index, a host by its name with and without a port.
        """
        own = labels_of(decision, {})
        host, uuid = own.get("host", ""), own.get("gpu", "")
        indices = {str(one.index) for one in gpus if uuid and one.uuid == uuid and one.index is not None}
        found: dict[str, Sequence[str]] = {name: (value,) for name, value in own.items()}
        if host:
            found |= dict.fromkeys(_spellings(_HOST), (host,)) | {"instance": tuple(host + port for port in _PORTS)}
        if uuid:
            found |= dict.fromkeys(_spellings(_UUID), (uuid,))
            found |= {name: (*found.get(name, ()), *indices) for name in _spellings(_INDEX) if indices}
        return found | dict(self.labels)


def _spellings(names: Iterable[str]) -> Iterable[str]:
    """`names` in the cases that exporters write them in."""
    for name in names:
        yield from (name, name.capitalize(), name.upper())


def _last(found: Sequence[AlertSilence]) -> AlertSilence | None:
    return max(found, key=lambda one: (one.until_ms, one.id), default=None)
