"""What runs beside the agent's source: opened by settings, watched over, and never at the cost of a reading."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast

from tocsin.collector.source import Companion
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import Clock
from tocsin.plugins import Kind, load, plugins
from tocsin.telemetry.log import logger
from tocsin.telemetry.metrics import OwnMetrics

_log = logger("companions")

RETRY_SECONDS = 300.0
"""Pause between two attempts to open a companion that could not be opened."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an opener may need."""

    settings: Settings
    clock: Clock
    own: OwnMetrics
    source: str = ""
    """Name of the source that the companions run beside."""
    alarm: Callable[[], None] = lambda: None
    """Called by a companion, from any thread, when it has events that should not wait for the next reading."""

    @property
    def is_this_node(self) -> bool:
        """Whether the source reads this node's GPUs, of which kernel and processes here can say something."""
        return self.source not in ("simulated", "replay")


Opener = Callable[[Context], Companion | None]
"""Opens a companion; None where the settings do not want it. What it raises says why it cannot be had."""


def companion_frozen(context: Context) -> Companion:
    """Marks values that repeat while they cannot."""
    from tocsin.collector.frozen import FrozenValues

    return FrozenValues(context.own)


def companion_kernel_log(context: Context) -> Companion | None:
    """XID, SXid and verdicts of the kernel log."""
    if not context.is_this_node or context.settings.agent.kernel_log == "off":
        return None
    from tocsin.collector.kernel_log.companion import open_kernel_log

    return open_kernel_log(context.settings, context.clock, context.own, context.alarm)


def companion_hook(context: Context) -> Companion | None:
    """What training processes say through the hook."""
    if not context.is_this_node or not context.settings.agent.hook_socket:
        return None
    from tocsin.collector.training_hook.companion import open_hook

    return open_hook(context.settings.agent, context.clock, context.own)


def companion_vllm(context: Context) -> Companion | None:
    """Load and latency of inference servers."""
    if not context.is_this_node or not context.settings.agent.vllm_urls:
        return None
    from tocsin.collector.vllm import open_vllm

    return open_vllm(context.settings.agent, context.clock, context.own)


def companion_host_load(context: Context) -> Companion | None:
    """CPU, storage waits, pressure and memory of the node."""
    wanted = context.settings.agent
    if not context.is_this_node or not wanted.host_load:
        return None
    from tocsin.collector.host_load import HostLoad

    return HostLoad(wanted.proc, context.clock)


def companion_versions(context: Context) -> Companion | None:
    """Versions of kernel, libraries, packages and network cards of the node."""
    if not context.is_this_node or not context.settings.agent.versions:
        return None
    from tocsin.collector.versions.companion import open_versions

    return open_versions(context.settings, context.own)


def companion_network(context: Context) -> Companion | None:
    """InfiniBand, RoCE and Ethernet ports of the node."""
    if not context.is_this_node or not context.settings.agent.network:
        return None
    from tocsin.collector.network.companion import open_network

    return open_network(context.settings, context.clock, context.own)


def companion_host_errors(context: Context) -> Companion | None:
    """PCIe and memory errors of the node."""
    wanted = context.settings.agent
    if not context.is_this_node or not wanted.host_errors:
        return None
    from tocsin.collector.host_errors import HostErrors

    return HostErrors(wanted.sys, context.clock, wanted.host or socket.gethostname())


def companion_redfish(context: Context) -> Companion | None:
    """Leaks, coolant, fans and power supplies, by management controllers."""
    if not context.is_this_node or not context.settings.redfish.urls:
        return None
    from tocsin.collector.redfish.companion import open_redfish

    return open_redfish(context.settings, context.clock, context.own, context.alarm)


def companion_attribution(context: Context) -> Companion | None:
    """Who owns the processes."""
    wanted = context.settings.agent
    if not context.is_this_node or not wanted.attribution:
        return None
    from tocsin.collector.attribution import Attribution, AttributionCompanion

    return AttributionCompanion(Attribution(wanted.proc, wanted.pod_logs))


def companion_notices(context: Context) -> Companion | None:
    """Spot and maintenance notices of the cloud."""
    if not context.is_this_node or context.settings.cloud.notices == "off":
        return None
    from tocsin.collector.spot import open_notices

    return open_notices(context.settings, context.clock, context.own, context.alarm)


LAST = "attribution"
"""Owners are looked up last, for the processes that the others brought."""


def find_companion(name: str) -> Opener:
    """The opener of companion `name`; raises InputError where there is none."""
    return cast("Opener", load(Kind.COMPANION, name, "companion"))


def every_companion() -> list[tuple[str, Opener]]:
    """Name and opener of all, in the order in which they are asked: Tocsin's, those of other packages, owners.

    Nobody names the companions that run, so that one of another package that does not load is met when it is opened,
    like one that does not open: the agent reads on without it.
    """
    names = [name for name in plugins(Kind.COMPANION) if name != LAST]
    return [(name, partial(_load_and_open, name)) for name in (*names, LAST)]


def _load_and_open(name: str, context: Context) -> Companion | None:
    return find_companion(name)(context)


class _Supervised:
    """One companion, open or not yet, and how it does."""

    def __init__(self, name: str, opener: Opener, context: Context) -> None:
        self.name = name
        self._opener = opener
        self._context = context
        self._warned = False
        self._failing = False
        self._retry_at = 0.0
        self.companion: Companion | None = None
        self.wanted = True
        self._open()

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` as the companion makes it; as it was where there is none, or where it fails."""
        own, clock = self._context.own, self._context.clock
        if self.companion is None:
            if clock.monotonic() < self._retry_at:
                return batch
            self._open()
            if self.companion is None:
                return batch
        begun = clock.monotonic()
        try:
            made = self.companion.enrich(batch, now_ms)
            broken = len(made.readings) < len(batch.readings)
        except Exception:  # noqa: BLE001  # the supervisor of companions: none may cost a reading
            self._fail("companion failed, its reading goes on without it", exc_info=True)
            made = batch
        else:
            if broken:
                self._fail("companion took readings away, they are kept")
                made = batch
            else:
                self._failing = False
        own.count("tocsin_companion_seconds_total", max(clock.monotonic() - begun, 0.0), companion=self.name)
        return made

    def close(self) -> None:
        """Close what is open; a companion that fails at it is only logged."""
        companion, self.companion = self.companion, None
        self._retry_at = float("inf")
        if companion is None:
            return
        try:
            companion.close()
        except Exception:  # noqa: BLE001  # the other companions, the spool and the source still have to be closed
            self._fail("companion did not close", exc_info=True)

    def _open(self) -> None:
        try:
            self.companion = self._opener(self._context)
        except Exception as error:  # noqa: BLE001  # what cannot be opened must not keep the agent from reading
            self._retry_at = self._context.clock.monotonic() + RETRY_SECONDS
            say = _log.debug if self._warned else _log.warning
            self._warned = True
            problem = str(error) or type(error).__name__
            say("companion cannot be opened, the agent goes on without it", companion=self.name, problem=problem)
        else:
            self.wanted = self.companion is not None
            if self._warned:
                _log.info("companion could be opened", companion=self.name)
        if self.wanted:
            self._context.own.set("tocsin_companion_up", float(self.companion is not None), companion=self.name)

    def _fail(self, text: str, *, exc_info: bool = False) -> None:
        self._context.own.count("tocsin_companion_failures_total", companion=self.name)
        say = _log.debug if self._failing else _log.error
        self._failing = True
        say(text, companion=self.name, exc_info=exc_info)


class Companions:
    """All companions that the settings want, asked one after another.

    One that cannot be opened is said once with its remedy, shown as ``tocsin_companion_up`` 0 and tried again every
    five minutes. One that raises, or takes readings away, is counted, said once until it works again, and left out of
    that reading.
    """

    def __init__(self, context: Context, openers: Iterable[tuple[str, Opener]] | None = None) -> None:
        self.context = context
        chosen = every_companion() if openers is None else openers
        supervised = [_Supervised(name, opener, context) for name, opener in chosen]
        self._supervised = [one for one in supervised if one.wanted]

    @property
    def names(self) -> list[str]:
        """Those that are open now, in order."""
        return [one.name for one in self._supervised if one.companion is not None]

    def find(self, name: str) -> Companion | None:
        """The companion of that name where it is open."""
        return next((one.companion for one in self._supervised if one.name == name), None)

    def enrich(self, batch: Batch, now_ms: int) -> Batch:
        """`batch` with what all of them know."""
        for one in self._supervised:
            batch = one.enrich(batch, now_ms)
        return batch

    def close(self) -> None:
        """Close all of them; safe to repeat."""
        for one in self._supervised:
            one.close()
