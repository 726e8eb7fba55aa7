"""One order to throttle one GPU, as its node carries it out: by the thermal controller, to a given limit, or in step
with the hot GPU of the same job."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.actions.node.limit_writer import LimitWriter, Write
from tocsin.actions.node.ports import PowerPort
from tocsin.actions.node.thermal import ThermalController, ThermalPhase, ThermalSettings
from tocsin.domain.decision import ThrottleKind
from tocsin.domain.order import Order, OrderReport, OrderState, ThrottleOrderParameters
from tocsin.domain.power import Heat, LimitFailure, Obstacle, PowerLimits

CLOCK_SETTLES_SECONDS = 5.0
"""Clocks follow a lock within 4 s (12vhpwr-guard measured it)."""
CLOCK_TOLERANCE_MHZ = 30
SAMPLE_SECONDS = 1.0
"""Time between two samples of the controller."""


@dataclass
class ActiveThrottle:
    """An order in hand. Times are seconds on the agent's monotonic scale.

    `begin` looks at the GPU again and may refuse; `sample` does what is due. Both raise LimitFailure, after which the
    order has failed and its owner restores the GPU.
    """

    order: Order
    taken_s: float
    lease_until_s: float
    settings: ThermalSettings
    arm_seconds: float
    state: OrderState = OrderState.PENDING
    detail: str = "taken"
    found: PowerLimits | None = None
    now: PowerLimits | None = None
    hottest_c: float = field(default=-1e9)
    coolest_c: float = field(default=1e9)
    least_mw: int = 0
    clock_mhz: int = 0
    proved: bool = False
    _controller: ThermalController | None = None
    _sampled_s: float = -1e18
    _locked_s: float | None = None
    _wanted_mw: int | None = None
    _asked_mw: int | None = None

    @property
    def parameters(self) -> ThrottleOrderParameters:
        assert isinstance(self.order.parameters, ThrottleOrderParameters)
        return self.order.parameters

    @property
    def kind(self) -> ThrottleKind:
        return self.order.parameters.throttle_kind

    @property
    def limits(self) -> bool:
        """Whether it has set a power limit that, as far as it knows, still holds."""
        return self._asked_mw is not None

    @property
    def thermal(self) -> bool:
        """Whether the controller decides, rather than a number in the order."""
        return self.kind is ThrottleKind.HEAT and not self.parameters.lead

    def begin(self, port: PowerPort, writer: LimitWriter) -> None:
        self.found = self.now = writer.found(self.order.gpu)
        self.least_mw = self.found.current_mw
        heat = port.heat(self.order.gpu)
        self._note(heat)
        if not self.thermal:
            self._set_wanted()
            return
        margin = heat.margin
        if margin is None:
            text = f"{self.order.gpu} does not report how far it is from slowing down"
            raise LimitFailure(Obstacle.UNSUPPORTED, text)
        if margin >= self.settings.release_margin_c:
            text = f"{self.order.gpu} is not hot: {margin:g} C are left before it slows down"
            raise LimitFailure(Obstacle.REFUSED, text)
        self._controller = ThermalController(self.found, self.settings)
        self.detail = f"watches: {margin:g} C are left, it acts at {self.settings.engage_margin_c:g}"

    def rehearse(self, port: PowerPort, writer: LimitWriter) -> str:
        """Look at the GPU as `begin` and the first write do, and say what would be done. Raises LimitFailure."""
        self.begin(port, writer)
        assert self.found is not None
        now = f"{self.found.current_mw / 1000:g} W"
        highest = self.parameters.sm_clock_max_mhz
        if highest is not None:
            clocks = port.clocks(self.order.gpu)
            top = min(max(highest, clocks.low_mhz), clocks.high_mhz)
            return f"dry run: would lock the SM clock to {clocks.low_mhz} to {top:g} MHz"
        if self._controller is not None:
            floor = f"{self._controller.floor_mw / 1000:g} W"
            return f"dry run: would keep the limit between {now} and {floor} by the heat of the GPU"
        if self._wanted_mw is None:
            return f"dry run: would follow the limit of the job's hot GPU, from {now}"
        target = min(max(self._wanted_mw, self.found.min_mw), self.found.max_mw, self.found.current_mw)
        return f"dry run: would set the limit from {now} to {target / 1000:g} W"

    def renew(self, order: Order, now_s: float) -> None:
        """The brain still wants it; a follower takes its lead's present share."""
        self.order = order
        self.lease_until_s = now_s + order.lease_seconds
        if self.parameters.lead:
            self._set_wanted()

    def _set_wanted(self) -> None:
        assert self.found is not None
        watts, share = self.parameters.power_limit_watts, self.parameters.limit_share
        if watts is not None:
            self._wanted_mw = round(watts * 1000.0)
        elif share is not None:
            floor = max(self.found.min_mw, round(self.settings.floor_share * self.found.default_mw))
            self._wanted_mw = max(floor, round(share * self.found.default_mw))

    def lapsed(self, now_s: float) -> str:
        """Why its time is over; empty where it is not."""
        if now_s >= self.lease_until_s:
            return "the brain did not renew the order within its lease"
        if self.state is OrderState.PENDING and now_s - self.taken_s >= self.arm_seconds:
            return "it was not needed: the GPU never came so near to slowing down"
        return ""

    def sample(self, now_s: float, port: PowerPort, writer: LimitWriter) -> Write | None:
        """Do what is due at `now_s`; the write that was made, None where none was."""
        if now_s - self._sampled_s < SAMPLE_SECONDS:
            return None
        self._sampled_s = now_s
        heat = port.heat(self.order.gpu)
        self._note(heat)
        highest = self.parameters.sm_clock_max_mhz
        if highest is not None:
            return self._lock(highest, now_s, port, writer)
        if self._controller is not None:
            self._controller.cap_mw = writer.cap(self.order)
            self._wanted_mw = self._controller.sample(now_s, heat)
            if self._wanted_mw >= self._controller.ceiling_mw and self.state is OrderState.PENDING:
                return None
            if self._controller.phase is ThermalPhase.EXHAUSTED:
                self.detail = "the limit is at its floor and the GPU is still too hot: move its work away"
        return self._write(writer)

    def _write(self, writer: LimitWriter) -> Write | None:
        wanted = self._wanted_mw
        if wanted is None or wanted == self._asked_mw:
            return None
        self._asked_mw = None
        write = writer.hold(self.order, wanted)
        self._asked_mw = wanted
        self.state = OrderState.APPLIED
        if write.after is not None:
            self.see(write.after)
        return write

    def see(self, now: PowerLimits) -> None:
        """The limits are `now`, by this order or by another of the same GPU."""
        self.now = now
        if self._asked_mw is not None:
            self.least_mw = min(self.least_mw, now.current_mw)
            self.detail = f"limit {now.current_mw / 1000:g} W, {now.enforced_mw / 1000:g} W in force"

    def _lock(self, highest: float, now_s: float, port: PowerPort, writer: LimitWriter) -> Write | None:
        if self._locked_s is None:
            self._locked_s = now_s
            return writer.lock(self.order, round(highest))
        if now_s - self._locked_s < CLOCK_SETTLES_SECONDS:
            return None
        clocks = port.clocks(self.order.gpu)
        self.clock_mhz = max(self.clock_mhz, clocks.now_mhz)
        if clocks.now_mhz > max(highest, clocks.low_mhz) + CLOCK_TOLERANCE_MHZ:
            text = f"{self.order.gpu}: SM clock is {clocks.now_mhz} MHz in spite of a lock to {highest:g}"
            raise LimitFailure(Obstacle.REFUSED, text)
        self.proved = self.proved or clocks.held
        self.state = OrderState.APPLIED
        self.detail = f"SM clock locked to {highest:g} MHz, {self.clock_mhz} at most since; {self._proof()}"
        return None

    def _proof(self) -> str:
        if self.proved:
            return "the driver reports the lock"
        return "the driver does not report the lock, so the clock itself is watched"

    def _note(self, heat: Heat) -> None:
        self.hottest_c = max(self.hottest_c, heat.temperature_c)
        if self.state is OrderState.APPLIED:
            self.coolest_c = min(self.coolest_c, heat.temperature_c)

    def report(self, state: OrderState, detail: str, at_ms: int, now: PowerLimits | None) -> OrderReport:
        found = self.found
        return OrderReport(
            self.order,
            state,
            detail,
            at_ms,
            None if found is None else found.current_mw,
            None if found is None else found.enforced_mw,
            None if now is None else now.current_mw,
            None if now is None else now.enforced_mw,
            self._figures(),
        )

    def _figures(self) -> dict[str, float]:
        if self.found is None:
            return {}
        watts = (self.found.current_mw - self.least_mw) / 1000.0
        figures = {} if not self.clock_mhz else {"highest_sm_clock_mhz": float(self.clock_mhz)}
        figures |= {"default_limit_watts": self.found.default_mw / 1000.0, "limit_lowered_watts": watts}
        if self.hottest_c > -1e9:
            figures["hottest_celsius"] = self.hottest_c
        if self.coolest_c < 1e9:
            figures["coolest_celsius"] = self.coolest_c
            if watts > 0 and self.hottest_c > self.coolest_c:
                figures["celsius_per_watt"] = (self.hottest_c - self.coolest_c) / watts
        return figures
