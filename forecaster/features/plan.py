"""A plan: which channels a builder keeps, over which windows, on which grid of time."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.channels import CHANNELS, OWN_CHANNELS, SEQUENCE, Channel, Kind


@dataclass(frozen=True, slots=True)
class Plan:
    """What a builder keeps and gives.

    `step_ms` is the grid of the newest day and of sequences; older values are kept in steps of `coarse_ms`.
    `windows_ms` are the spans of the features, rising; of the step in which a window begins the part inside counts.
    `sequence` names the channels of the `steps` steps of a sequence. `sequence` and `channels` may be cut down where
    the metrics of a fleet are few. Raises InputError where these do not fit together.
    """

    step_ms: int = 10 * MINUTE
    coarse_ms: int = 6 * HOUR
    windows_ms: tuple[int, ...] = (HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY, 30 * DAY)
    steps: int = 96
    channels: tuple[Channel, ...] = CHANNELS
    sequence: tuple[str, ...] = SEQUENCE

    def __post_init__(self) -> None:
        if self.step_ms < 1 or self.coarse_ms % self.step_ms or DAY % self.coarse_ms:
            raise InputError(
                "step_ms", self.step_ms, "steps do not divide the coarse step and the day", "give 600000 or alike"
            )
        if list(self.windows_ms) != sorted(set(self.windows_ms)) or not self.windows_ms:
            raise InputError("windows_ms", self.windows_ms, "not rising", "give each window once, shortest first")
        if any(window % self.step_ms for window in self.windows_ms):
            raise InputError("windows_ms", self.windows_ms, "not made of whole steps", "give multiples of step_ms")
        if not 1 <= self.steps * self.step_ms <= DAY:
            raise InputError("steps", self.steps, "a sequence reaches back a day at most", "give fewer steps")
        if missing := [name for name in self.sequence if name not in self.names]:
            raise InputError("sequence", missing[0], "no such channel", f"there are {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Every channel: counters first, then means, then peaks."""
        every = [(channel.name, channel.kind) for channel in self.channels] + list(OWN_CHANNELS)
        return tuple(name for kind in Kind for name, its in every if its is kind)

    def of(self, kind: Kind) -> tuple[Channel, ...]:
        """The channels of one kind that are made of metrics, in the order of `names`."""
        return tuple(channel for channel in self.channels if channel.kind is kind)

    def count(self, kind: Kind) -> int:
        """How many channels of one kind there are, the builder's own among them."""
        return len(self.of(kind)) + sum(its is kind for _, its in OWN_CHANNELS)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The keys to ask a store for: canonical names and variants."""
        return tuple(dict.fromkeys(key for channel in self.channels for key in channel.keys))
