"""The silences of an Alertmanager, asked for again and again, for the notifications that they cover.

What must hold: a server that is away silences nobody for long, and one that is slow holds up no evaluation, which is
why this has a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import httpx2
import structlog

from tocsin.actions.model.alert_silences import AlertSilences, Labels, check_installed
from tocsin.actions.notifications.alertmanager_silences import (
    AlertmanagerClient,
    Answer,
    NotAlertmanager,
    Refused,
    TooLong,
)
from tocsin.config.alertmanager import AlertmanagerSettings
from tocsin.config.notify import NotifySettings
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.grouping import grouped
from tocsin.http_client import ClientTls
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.follower import Patience
from tocsin.telemetry.metrics import OwnMetrics

log = structlog.get_logger()

HELD_ROUNDS = 4
"""An answer holds for so many intervals (own choice): a server that restarts must not let go of what is silenced."""
MOST_NAMED = 5
"""Silences that cannot be used of which the log names the reason."""


class AlertSilenceFollower:
    """Implements `tocsin.runtime.brain.follower.Follower`: one question after the other; `tell` gets what stands."""

    name = "silences"
    on_standby = False
    before_start = True
    # What was silenced before the start must not go out with it.

    def __init__(
        self,
        client: AlertmanagerClient,
        settings: AlertmanagerSettings,
        labels: Labels,
        tell: Callable[[AlertSilences], None],
        clock: Clock,
        metrics: OwnMetrics,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._labels = labels
        self._tell = tell
        self._clock = clock
        self._metrics = metrics
        self._refresh = refresh
        self._answered = clock.monotonic()
        self._patience = Patience(settings.every_seconds, clock)
        self.every_seconds = settings.every_seconds
        self._unusable: tuple[str, ...] = ()

    def look(self) -> None:
        """Ask, unless the server rests. What it cannot give is said once, until that changes."""
        if not self._patience.rests():
            outcome, problem = self._ask()
            self._count(outcome)
            self._say(problem)
        if self._clock.monotonic() - self._answered > HELD_ROUNDS * self._settings.every_seconds:
            self._tell(AlertSilences())
            self._show(Answer())

    def close(self) -> None:
        """Let go of the connection; safe to repeat."""
        self._client.close()

    def _ask(self) -> tuple[str, str]:
        """How it went, and what was wrong in words."""
        try:
            self._refresh()
            answer = self._client.silences(self._clock.now_ms())
        except TooLong as error:
            return "too_long", str(error)
        except Unavailable as error:
            return "unreachable", str(error)
        except Refused as error:
            return "access", str(error)
        except NotAlertmanager as error:
            return "not_alertmanager", str(error)
        except InputError as error:
            return "access", str(error)
        self._answered = self._clock.monotonic()
        self._tell(AlertSilences(answer.standing, self._labels))
        self._show(answer)
        return "taken", ""

    def _show(self, answer: Answer) -> None:
        numbers = {"standing": len(answer.standing), "unusable": len(answer.problems), "beyond": answer.beyond}
        for state, number in numbers.items():
            self._metrics.set("tocsin_alertmanager_silences", number, state=state)
        if answer.problems != self._unusable and answer.problems:
            shown, number = answer.problems[:MOST_NAMED], len(answer.problems)
            log.warning("silences of Alertmanager cannot be used and hold nothing back", number=number, reasons=shown)
        self._unusable = answer.problems

    def _count(self, outcome: str) -> None:
        taken = outcome == "taken"
        self._metrics.count("tocsin_alertmanager_looks_total", outcome=outcome)
        self._metrics.set("tocsin_alertmanager_up", float(taken), server=self._settings.url)
        if taken:
            self._patience.answered()
        else:
            self._patience.failed()

    def _say(self, problem: str) -> None:
        if not self._patience.news(problem):
            return
        if problem:
            log.warning("silences of Alertmanager are not known: notifications go out", problem=problem)
        else:
            log.info("silences of Alertmanager are respected", server=self._settings.url)


def open_alert_silences(brain: Brain, transport: httpx2.BaseTransport | None = None) -> AlertSilenceFollower | None:
    """What the settings name; None where they name no server. A server that does not answer is no error: it is asked
    again. Raises InputError for what is wrong in the settings, Unavailable where google-re2 is not installed."""
    wanted = brain.settings.alertmanager
    if not wanted.url:
        return None
    check_installed()
    token = wanted.token.get_secret_value()
    headers = {name: value.get_secret_value() for name, value in wanted.headers.items()}
    tls = ClientTls.of(wanted.ca_file, wanted.certificate, wanted.key)
    client = AlertmanagerClient(
        wanted.url,
        headers | ({"Authorization": f"Bearer {token}"} if token else {}),
        brain.clock,
        timeout_seconds=wanted.timeout_seconds,
        tls=None if tls is None else tls.context,
        transport=transport,
    )
    return AlertSilenceFollower(
        client,
        wanted,
        further_labels(wanted.labels, brain.settings.notify),
        brain.hear_silences,
        brain.clock,
        brain.metrics,
        refresh=(lambda: None) if tls is None else tls.refresh,
    )


def further_labels(labels: Mapping[str, str], notify: NotifySettings) -> dict[str, Sequence[str]]:
    """The labels that notifications have at Alertmanager beside their own: of its channels, and of the settings."""
    channels = [one.labels for one in notify.channels if one.kind == "alertmanager"]
    return {
        name: sorted(set(values))
        for name, values in grouped(pair for one in (*channels, labels) for pair in one.items()).items()
    }
