"""Writing limits so that they can always be given back.

Before a limit is changed, what it was lies in a marker file; after it is changed, the driver is asked what is in force.
A limit never rises above the one that was found, and one that somebody else has changed meanwhile is theirs. Where
several orders hold a limit of one GPU the lowest is in force, and what was found comes back with the end of the last.
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
CLOCKS_HELD = "its clocks are locked by another setting already, which our unlock would remove"


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


class LimitWriter:
    """Changes and gives back the limits of a node. Belongs to one thread.

    What must hold at every instant, since the process may be killed at any:

    - The marker is durable before the driver is asked. A marker of a change that never came costs nothing: giving it
      back finds the limit as it was. A change without a marker would never be given back.
    - `prior_mw` is written with the first change and copied from then on. Read anew under a limit of ours, it would
      make that limit the one to come back to.
    - `ours_mw` names every value that the driver may have by our doing: during a write the old one and the new one.
      Only so is a value near none of them known to be somebody else's, and left alone.
    - A marker goes only after the driver was read back. Until then every later attempt, of this process or of the
      next, begins from the marker and not from memory.

    `boot` names this boot of the machine; a marker of an earlier one is only removed where the driver forgot the limit.
    `observer` gets every write, done or refused, for counts.
    """

    def __init__(
        self,
        port: PowerPort,
        folder: MarkerFolder,
        clock: Clock,
        boot: str,
        observer: Callable[[Write], None] = lambda _write: None,
    ) -> None:
        self._port = port
        self._folder = folder
        self._clock = clock
        self._boot = boot
        self._observer = observer
        self._markers = {marker.gpu: marker for marker in folder.all()}
        self._asked: dict[str, dict[str, int]] = {}
        self._locked_by: dict[str, str] = {}

    @property
    def held(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose limits are changed, or may be."""
        return tuple(self._markers)

    def holds(self, order: Order) -> bool:
        """Whether a limit or a lock of `order` stands."""
        return order.key in self._asked.get(order.gpu, {}) or self._locked_by.get(order.gpu) == order.key

    def cap(self, order: Order) -> int | None:
        """The lowest limit, in milliwatts, that other orders hold on the GPU of `order`; None where none does."""
        asked = self._asked.get(order.gpu, {})
        return min((milliwatts for key, milliwatts in asked.items() if key != order.key), default=None)

    def found(self, gpu: str) -> PowerLimits:
        """The limits with `current_mw` as it was before the first change. Raises LimitFailure."""
        limits, marker = self._port.limits(gpu), self._markers.get(gpu)
        prior = None if marker is None else marker.prior_mw
        return limits if prior is None else replace(limits, current_mw=prior)

    def hold(self, order: Order, milliwatts: int) -> Write:
        """Hold the GPU's power limit at `milliwatts` or less, as far as its range and the limit found before allow.

        Raises LimitFailure where it is not in force afterwards; what holds without this order is then back, or the
        marker stays for another attempt. One that somebody else has set ends what every order holds of the GPU's power.
        """
        before = self._port.limits(order.gpu)
        cap = self.cap(order)
        marker = self._marker(order)
        if marker.prior_mw is None:
            marker = replace(marker, prior_mw=before.current_mw)
        elif not any(near(before.current_mw, ours) for ours in marker.ours_mw):
            self._disown(order.gpu)
            raise self._failed(_overruled(order.gpu, before), before)
        # Until the new limit is read back this order holds nothing: a failure falls back to what the others hold.
        self._asked.get(order.gpu, {}).pop(order.key, None)
        target = _target(milliwatts if cap is None else min(milliwatts, cap), marker.prior_mw, before)
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
        self._asked.setdefault(order.gpu, {})[order.key] = _target(milliwatts, marker.prior_mw, before)
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
        self._locked_by[order.gpu] = order.key
        return self._done(Write(order.gpu, "written", f"SM clock locked to {clocks.low_mhz} to {top} MHz"))

    def release(self, order: Order) -> None:
        """`order` holds nothing any more; `settle` is to follow."""
        self._asked.get(order.gpu, {}).pop(order.key, None)
        if self._locked_by.get(order.gpu) == order.key:
            del self._locked_by[order.gpu]

    def settle(self, gpu: str) -> Write | None:
        """Give back what no order holds any more; None where there is none. Raises LimitFailure; its marker stays."""
        marker = self._markers.get(gpu)
        if marker is None:
            return None
        try:
            write = self._settle(marker)
        except LimitFailure as failure:
            raise self._failed(failure, None) from None
        return self._done(write)

    def restore(self, gpu: str) -> Write | None:
        """`settle` with no order left: all that was changed is given back."""
        self._asked.pop(gpu, None)
        self._locked_by.pop(gpu, None)
        return self.settle(gpu)

    def restore_all(self) -> tuple[str, ...]:
        """Give back everything; UUIDs of what could not be given back now, whose markers stay."""
        left = []
        for gpu in self.held:
            try:
                self.restore(gpu)
            except LimitFailure:
                left.append(gpu)
        return tuple(left)

    def _settle(self, marker: Marker) -> Write:
        if not self._asked.get(marker.gpu) and marker.gpu not in self._locked_by:
            write = self._forgotten(marker) or self._give_back(marker)
            self._forget(marker.gpu)
            return write
        if marker.clocks_mhz is not None and marker.gpu not in self._locked_by:
            self._port.unlock_clocks(marker.gpu)
            marker = replace(marker, clocks_mhz=None)
            self._remember(marker)
        return self._fall_back(marker)

    def _fall_back(self, marker: Marker) -> Write:
        """Set the power limit to what the orders that are left hold. Raises LimitFailure."""
        gpu, asked = marker.gpu, self._asked.get(marker.gpu, {})
        if marker.prior_mw is None:
            return Write(gpu, "kept", "other orders hold what they held")
        before = self._port.limits(gpu)
        if not any(near(before.current_mw, ours) for ours in marker.ours_mw):
            self._disown(gpu)
            return Write(
                gpu, "overruled", f"limit {_watts(before.current_mw)} was set by someone else; left as is", before
            )
        target = _target(min(asked.values()), marker.prior_mw, before) if asked else marker.prior_mw
        if before.current_mw != target:
            self._remember(replace(marker, ours_mw=(before.current_mw, target)))
            self._port.set_limit(gpu, target)
        after = self._port.limits(gpu)
        if not near(after.current_mw, target):
            raise _ignored(gpu, target, after)
        if asked:
            self._remember(replace(marker, ours_mw=(after.current_mw,)))
        else:
            self._remember(replace(marker, prior_mw=None, ours_mw=()))
        return Write(gpu, "written", f"limit {_watts(after.current_mw)}, as other orders have it", before, after)

    def _disown(self, gpu: str) -> None:
        """The power limit is somebody else's now: no order holds it. A lock of the clocks stays."""
        self._asked.pop(gpu, None)
        if gpu not in self._locked_by:
            self._drop(gpu)
            return
        self._remember(replace(self._markers[gpu], prior_mw=None, ours_mw=()))

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
            detail = f"limit {_watts(before.current_mw)} was set by someone else; left as is"
            return Write(marker.gpu, "overruled", detail, before, before)
        self._port.set_limit(marker.gpu, marker.prior_mw)
        after = self._port.limits(marker.gpu)
        if not near(after.current_mw, marker.prior_mw):
            raise _ignored(marker.gpu, marker.prior_mw, after)
        return Write(marker.gpu, "restored", f"limit {_watts(after.current_mw)} as before", before, after)

    def _back_out(self, gpu: str) -> None:
        """Undo a half-made change; where even that fails the marker stays, and the next attempt is due again."""
        try:
            if self._asked.get(gpu) or gpu in self._locked_by:
                self._settle(self._markers[gpu])
                return
            self._give_back(self._markers[gpu])
        except LimitFailure as failure:
            _log.error("a limit is not restored yet", gpu=gpu, problem=str(failure))
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
        self._observer(write)
        return write

    def _failed(
        self, failure: LimitFailure, before: PowerLimits | None, after: PowerLimits | None = None
    ) -> LimitFailure:
        write = Write("", failure.obstacle.value, str(failure), before, after)
        _log.warning("limit not changed", outcome=write.outcome, detail=write.detail, **_numbers(write))
        self._observer(write)
        return failure


def _numbers(write: Write) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, limits in (("before", write.before), ("after", write.after)):
        if limits is not None:
            found |= {f"requested_{name}_mw": limits.current_mw, f"enforced_{name}_mw": limits.enforced_mw}
    return found


def _target(milliwatts: int, prior_mw: int | None, now: PowerLimits) -> int:
    return min(max(milliwatts, now.min_mw), now.max_mw, now.current_mw if prior_mw is None else prior_mw)


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:g} W"


def _overruled(gpu: str, now: PowerLimits) -> LimitFailure:
    return LimitFailure(
        Obstacle.OVERRULED, f"{gpu}: someone else set its power limit to {_watts(now.current_mw)}; left as is"
    )


def _ignored(gpu: str, target: int, after: PowerLimits) -> LimitFailure:
    return LimitFailure(
        Obstacle.REFUSED,
        f"{gpu}: the driver took a power limit of {_watts(target)} without an error, but {_watts(after.enforced_mw)} "
        f"is in force and {_watts(after.current_mw)} is set",
    )
