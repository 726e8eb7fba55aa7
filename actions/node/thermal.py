"""The thermal controller of one GPU: lowers its power limit while it is nearly too hot, and gives back what it can.

A limit some per cent lower buys degrees at once: steady temperature is inlet plus resistance times power, and the last
watts of a GPU bring the least throughput. The controller is pure: samples in, the wanted limit out. It knows nothing
of drivers, files and clocks, and whoever writes its limits restores them when it ends, however it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.errors import InputError
from tocsin.domain.power import Heat, PowerLimits

UNDER_LOAD = 0.9
"""Share of the limit that a GPU must draw for its margin to tell that the limit may rise: a GPU that idles is cool
under any limit, and would be capped anew with its next job (own choice)."""


@dataclass(frozen=True, slots=True)
class ThermalSettings:
    """Degrees, seconds, and shares of the default limit. All own choices; see docs/thermal.md."""

    engage_margin_c: float = 5.0
    engage_samples: int = 3
    step_share: float = 0.075
    floor_share: float = 0.60
    step_seconds: float = 20.0
    release_margin_c: float = 12.0
    release_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.release_margin_c <= self.engage_margin_c:
            raise InputError(
                "node.release_margin_c",
                self.release_margin_c,
                "is not above node.engage_margin_c, so that limits would swing",
                "leave several degrees between the two",
            )


class ThermalPhase(StrEnum):
    """What the controller does now."""

    ARMED = "armed"
    """Watches; no limit is changed."""
    ENGAGED = "engaged"
    """A lowered limit is in force."""
    EXHAUSTED = "exhausted"
    """The limit is at its floor and the GPU is still too hot: something else has to be done."""


class ThermalController:
    """Keeps one GPU below its slowdown temperature.

    `found` are the limits as they were before anything was changed: no limit rises above `found.current_mw`, and none
    falls below the floor, which is the larger of the GPU's least limit and a share of its default. An episode goes
    down, may go up once where the GPU stays cool under load, and where that was too much goes down for good: it turns
    twice at most before it ends.

    `cap_mw` is a limit that another order holds meanwhile, None where there is none: steps are taken from it where it
    is the lower, and what the GPU does under it proves nothing about a higher one. It asks for no limit below
    `floor_mw` or above `ceiling_mw`.
    """

    def __init__(self, found: PowerLimits, settings: ThermalSettings) -> None:
        self._settings = settings
        self.ceiling_mw = found.current_mw
        floor = max(found.min_mw, round(settings.floor_share * found.default_mw))
        self.floor_mw = min(floor, self.ceiling_mw)
        self._step = max(1, round(settings.step_share * found.default_mw))
        self.limit_mw = self.ceiling_mw
        self.cap_mw: int | None = None
        self._hot = self._drawn_mw = 0
        self._stepped_s: float | None = None
        self._cool_since_s: float | None = None
        self._risen = False
        self._latched = False

    @property
    def phase(self) -> ThermalPhase:
        if self.limit_mw == self.floor_mw and self._hot >= self._settings.engage_samples:
            return ThermalPhase.EXHAUSTED
        return ThermalPhase.ENGAGED if self.limit_mw < self.ceiling_mw else ThermalPhase.ARMED

    def sample(self, now_s: float, heat: Heat) -> int:
        """The limit in milliwatts that ought to hold after a look at `now_s`, seconds on a scale that never steps back.

        A GPU that does not report how far it is from slowing down changes nothing.
        """
        margin = heat.margin
        if margin is None:
            self._hot, self._drawn_mw, self._cool_since_s = 0, 0, None
            return self.limit_mw
        self._note_heat(margin, heat)
        capped = self._in_force < self.limit_mw
        if margin < self._settings.release_margin_c or capped or not self._loaded(heat):
            self._cool_since_s = None
        elif self._cool_since_s is None:
            self._cool_since_s = now_s
        if self._hot >= self._settings.engage_samples and self._rested(now_s, self._settings.step_seconds):
            self._lower(now_s)
        elif self._may_rise(now_s):
            self._raise(now_s)
        return self.limit_mw

    def _note_heat(self, margin: float, heat: Heat) -> None:
        if margin > self._settings.engage_margin_c:
            self._hot = self._drawn_mw = 0
            return
        self._hot += 1
        self._drawn_mw = max(self._drawn_mw, round((heat.power_w or 0.0) * 1000.0))

    @property
    def _in_force(self) -> int:
        return self.limit_mw if self.cap_mw is None else min(self.limit_mw, self.cap_mw)

    def _loaded(self, heat: Heat) -> bool:
        return heat.power_w is not None and heat.power_w * 1000.0 >= UNDER_LOAD * self._in_force

    def _rested(self, now_s: float, seconds: float) -> bool:
        return self._stepped_s is None or now_s - self._stepped_s >= seconds

    def _lower(self, now_s: float) -> None:
        # A limit above what is drawn cools nothing: the step is taken from the draw.
        base = min(self._in_force, self._drawn_mw or self._in_force)
        lower = max(self.floor_mw, base - self._step)
        if lower < self.limit_mw:
            self.limit_mw, self._stepped_s = lower, now_s
            self._latched = self._risen

    def _may_rise(self, now_s: float) -> bool:
        since, seconds = self._cool_since_s, self._settings.release_seconds
        if self._latched or self.limit_mw >= self.ceiling_mw or since is None:
            return False
        return now_s - since >= seconds and self._rested(now_s, seconds)

    def _raise(self, now_s: float) -> None:
        self.limit_mw = min(self.ceiling_mw, self.limit_mw + self._step)
        self._stepped_s = self._cool_since_s = now_s
        self._risen = True
