"""Writing limits so that they can always be given back.

Before a limit is changed, what it was lies in a marker file; after it is changed, the driver is asked what is in force.
A limit never rises above the one that was found, and one that somebody else has changed meanwhile is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tocsin.actions.node.markers import Marker, MarkerFolder
from tocsin.actions.node.ports import PowerPort
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError
from tocsin.domain.order import Order
from tocsin.domain.power import LimitFailure, Obstacle, PowerLimits
from tocsin.telemetry.log import logger

_log = logger("limits")

TOLERANCE_MW = 1_000
"""Drivers round a limit; half a step of the controller is far more (own choice)."""
CLOCKS_HELD = "its clocks are held by somebody's setting already, which an unlock of ours would end"


@dataclass(frozen=True, slots=True)
class Write:
    """One change, or attempt at one, of one GPU: milliwatts before and after, None where they are not known."""

    gpu: str
    outcome: str
    detail: str
    before: PowerLimits | None = None
    after: PowerLimits | None = None


def near(one: int, other: int) -> bool:
    """Whether two limits are the same but for rounding."""
    return abs(one - other) <= TOLERANCE_MW


class LimitKeeper:
    """Changes and gives back the limits of a node. Belongs to one thread.

    `boot` names this boot of the machine; a marker of an earlier one is only removed where the driver forgot the limit.
    `told` gets every write, done or refused, for counts.
    """

    def __init__(
        self,
        port: PowerPort,
        folder: MarkerFolder,
        clock: Clock,
        boot: str,
        told: Callable[[Write], None] = lambda _write: None,
    ) -> None:
        self._port = port
        self._folder = folder
        self._clock = clock
        self._boot = boot
        self._told = told
        self._markers = {marker.gpu: marker for marker in folder.all()}

    @property
    def held(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose limits are changed, or may be."""
        return tuple(self._markers)

    def found(self, gpu: str) -> PowerLimits:
        """The limits with `current_mw` as it was before the first change. Raises LimitFailure."""
        limits, marker = self._port.limits(gpu), self._markers.get(gpu)
        prior = None if marker is None else marker.prior_mw
        return limits if prior is None else replace(limits, current_mw=prior)

    def hold(self, order: Order, milliwatts: int) -> Write:
        """Hold the GPU's power limit at `milliwatts`, as far as its range and the limit found before allow.

        Raises LimitFailure where it is not in force afterwards; what was there before the call is then back, or the
        marker stays for another attempt.
        """
        before = self._port.limits(order.gpu)
        marker = self._marker(order)
        if marker.prior_mw is None:
            marker = replace(marker, prior_mw=before.current_mw)
        elif not any(near(before.current_mw, ours) for ours in marker.ours_mw):
            self._drop(order.gpu)
            raise self._failed(_overruled(order.gpu, before), before)
        prior = before.current_mw if marker.prior_mw is None else marker.prior_mw
        target = min(max(milliwatts, before.min_mw), before.max_mw, prior)
        self._remember(replace(marker, ours_mw=(before.current_mw, target)))
        try:
            self._port.set_limit(order.gpu, target)
            after = self._port.limits(order.gpu)
        except LimitFailure as failure:
            self._back_out(order.gpu)
            raise self._failed(failure, before) from None
        if not near(after.current_mw, target) or after.enforced_mw > target + TOLERANCE_MW:
            self._remember(replace(marker, ours_mw=(before.current_mw, target, after.current_mw)))
            self._back_out(order.gpu)
            raise self._failed(_ignored(order.gpu, target, after), before, after)
        self._remember(replace(marker, ours_mw=(after.current_mw,)))
        return self._done(Write(order.gpu, "written", f"limit {_watts(after.current_mw)}", before, after))

    def lock(self, order: Order, high_mhz: int) -> Write:
        """Keep the SM clock of the GPU at `high_mhz` or below. Raises LimitFailure."""
        clocks = self._port.clocks(order.gpu)
        marker = self._marker(order)
        if clocks.held and marker.clocks_mhz is None:
            failure = LimitFailure(Obstacle.OVERRULED, f"{order.gpu}: {CLOCKS_HELD}")
            raise self._failed(failure, None)
        top = min(max(high_mhz, clocks.low_mhz), clocks.high_mhz)
        self._remember(replace(marker, clocks_mhz=(clocks.low_mhz, top)))
        try:
            self._port.lock_clocks(order.gpu, clocks.low_mhz, top)
        except LimitFailure as failure:
            self._back_out(order.gpu)
            raise self._failed(failure, None) from None
        return self._done(Write(order.gpu, "written", f"SM clock locked to {clocks.low_mhz} to {top} MHz"))

    def restore(self, gpu: str) -> Write | None:
        """Give back what was changed; None where nothing was. Raises LimitFailure; the marker then stays."""
        marker = self._markers.get(gpu)
        if marker is None:
            return None
        try:
            write = self._forgotten(marker) or self._give_back(marker)
            self._forget(gpu)
        except LimitFailure as failure:
            raise self._failed(failure, None) from None
        return self._done(write)

    def restore_all(self) -> tuple[str, ...]:
        """Give back everything; UUIDs of what could not be given back now, whose markers stay."""
        left = []
        for gpu in self.held:
            try:
                self.restore(gpu)
            except LimitFailure:
                left.append(gpu)
        return tuple(left)

    def _forgotten(self, marker: Marker) -> Write | None:
        """The marker of an earlier boot, where the driver has none of its limits any more."""
        if not (marker.boot and self._boot and marker.boot != self._boot):
            return None
        if marker.prior_mw is not None:
            now = self._port.limits(marker.gpu)
            if any(near(now.current_mw, ours) for ours in marker.ours_mw):
                return None
        return Write(marker.gpu, "rebooted", "the machine was restarted since, and the driver forgot the limit")

    def _give_back(self, marker: Marker) -> Write:
        if marker.clocks_mhz is not None:
            self._port.unlock_clocks(marker.gpu)
        if marker.prior_mw is None:
            return Write(marker.gpu, "restored", "SM clock unlocked")
        before = self._port.limits(marker.gpu)
        if before.current_mw == marker.prior_mw:
            return Write(marker.gpu, "restored", f"limit {_watts(before.current_mw)} as before", before, before)
        if not any(near(before.current_mw, ours) for ours in marker.ours_mw):
            detail = f"limit {_watts(before.current_mw)} is somebody else's and stays"
            return Write(marker.gpu, "overruled", detail, before, before)
        self._port.set_limit(marker.gpu, marker.prior_mw)
        after = self._port.limits(marker.gpu)
        if not near(after.current_mw, marker.prior_mw):
            raise _ignored(marker.gpu, marker.prior_mw, after)
        return Write(marker.gpu, "restored", f"limit {_watts(after.current_mw)} as before", before, after)

    def _back_out(self, gpu: str) -> None:
        """Undo a half-made change; where even that fails the marker stays, and the next restore tries again."""
        try:
            self._give_back(self._markers[gpu])
        except LimitFailure as failure:
            _log.error("a limit could not be given back yet", gpu=gpu, problem=str(failure))
        else:
            self._drop(gpu)

    def _marker(self, order: Order) -> Marker:
        old = self._markers.get(order.gpu)
        fresh = Marker(order.gpu, order.key, self._boot, self._clock.now_ms(), order.expires_ms)
        if old is None:
            return fresh
        return replace(fresh, prior_mw=old.prior_mw, ours_mw=old.ours_mw, clocks_mhz=old.clocks_mhz)

    def _remember(self, marker: Marker) -> None:
        try:
            self._folder.put(marker)
        except InputError as error:
            raise LimitFailure(Obstacle.REFUSED, str(error)) from None
        self._markers[marker.gpu] = marker

    def _forget(self, gpu: str) -> None:
        """Remove a marker that is not needed any more. Raises LimitFailure, and the marker then stays here too."""
        try:
            self._folder.take_away(gpu)
        except OSError as error:
            why = error.strerror or str(error)
            text = f"{gpu}: its marker in {self._folder.path} cannot be removed ({why}), make the folder writable"
            raise LimitFailure(Obstacle.REFUSED, text) from None
        del self._markers[gpu]

    def _drop(self, gpu: str) -> None:
        """`_forget` on the way to another failure: one of its own is counted, and the next restore tries again."""
        try:
            self._forget(gpu)
        except LimitFailure as failure:
            self._failed(failure, None)

    def _done(self, write: Write) -> Write:
        _log.info("limit", gpu=write.gpu, outcome=write.outcome, detail=write.detail, **_numbers(write))
        self._told(write)
        return write

    def _failed(
        self, failure: LimitFailure, before: PowerLimits | None, after: PowerLimits | None = None
    ) -> LimitFailure:
        write = Write("", failure.obstacle.value, str(failure), before, after)
        _log.warning("limit not changed", outcome=write.outcome, detail=write.detail, **_numbers(write))
        self._told(write)
        return failure


def _numbers(write: Write) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, limits in (("before", write.before), ("after", write.after)):
        if limits is not None:
            found |= {f"requested_{name}_mw": limits.current_mw, f"enforced_{name}_mw": limits.enforced_mw}
    return found


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:g} W"


def _overruled(gpu: str, now: PowerLimits) -> LimitFailure:
    text = f"{gpu}: somebody else has set its power limit to {_watts(now.current_mw)}, which stays"
    return LimitFailure(Obstacle.OVERRULED, text)


def _ignored(gpu: str, target: int, after: PowerLimits) -> LimitFailure:
    text = (
        f"{gpu}: the driver took a power limit of {_watts(target)} without an error, but {_watts(after.enforced_mw)} "
        f"is in force and {_watts(after.current_mw)} is set"
    )
    return LimitFailure(Obstacle.REFUSED, text)
