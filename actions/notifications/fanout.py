"""All channels together, each with a thread of its own while it sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tocsin.actions.notifications.line import Line, PlainChannel
from tocsin.actions.notifications.notifier import JournalNotifier, Notifier, WebhookNotifier
from tocsin.actions.notifications.registry import ChannelDependencies, build_channel
from tocsin.actions.notifications.sender import WebhookSender
from tocsin.actions.notifications.text import Links
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.telemetry.metrics import OwnMetrics

PATIENCE_SECONDS = 0.5
"""How long a step waits for channels that are sending: longer than a live one takes, and a dead one holds up nothing
for more. Own choice."""


class FanOut:
    """Lets each line work, one piece of work at a time; a line that is still at it is passed by.

    Without `threads` a line works in the thread that asks, as tests and a single notifier want it.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        metrics: OwnMetrics | None = None,
        *,
        threads: bool = True,
        patience: float | None = None,
    ) -> None:
        self.lines = tuple(lines)
        self._metrics = metrics
        self._patience = PATIENCE_SECONDS if patience is None else patience
        self._pool = ThreadPoolExecutor(len(self.lines), thread_name_prefix="notify") if threads and lines else None
        self._running: dict[str, Future[None]] = {}
        self._closed = False

    def idle(self, line: Line) -> bool:
        """Whether `line` may be given work; raises what its last work raised, such as a journal that takes nothing."""
        running = self._running.get(line.name)
        if running is None:
            return True
        if not running.done():
            return False
        del self._running[line.name]
        running.result()
        return True

    def begin(self, line: Line, work: Callable[[], None]) -> None:
        """Let `line` do `work`, beside the others where there are threads."""
        if self._pool is None:
            work()
        elif not self._closed:
            self._running[line.name] = self._pool.submit(work)

    def settle(self) -> None:
        """Wait, for no longer than patience lasts, for what was begun."""
        wait(self._running.values(), timeout=self._patience)

    def count(self, channel: str, outcome: str, amount: int = 1) -> None:
        """Count what became of messages."""
        if self._metrics is not None:
            self._metrics.count("tocsin_channel_deliveries_total", amount, channel=channel, outcome=outcome)

    def close(self) -> None:
        """Send nothing any more and wait for what is under way, a time-out at most; safe to repeat."""
        self._closed = True
        for line in self.lines:
            line.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def fan_out_of(notifier: Notifier | FanOut, clock: Clock) -> FanOut:
    """`notifier` as it is, or the one line that a single notifier makes."""
    if isinstance(notifier, FanOut):
        return notifier
    return FanOut([Line(PlainChannel(notifier), clock)], threads=False)


def build_notifier(
    settings: Settings, sender: WebhookSender | None, clock: Clock, metrics: OwnMetrics | None = None
) -> FanOut:
    """The webhook, where `sender` is one, and the channels of the settings; with neither, the journal alone."""
    links = Links(settings.notify.runbooks_url, settings.notify.console_url)
    lines = [Line(PlainChannel(WebhookNotifier(sender)), clock)] if sender is not None else []
    for channel in settings.notify.channels:
        made = build_channel(ChannelDependencies(channel, links, clock))
        lines.append(Line(made, clock, channel))
    if not lines:
        return FanOut([Line(PlainChannel(JournalNotifier()), clock)], metrics, threads=False)
    return FanOut(lines, metrics)
