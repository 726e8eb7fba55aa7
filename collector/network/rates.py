"""What a port did between two looks: how much of its speed it used, and what had to be sent again."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.collector.network.ports import RECEIVED, SENT, SPEED, PortSample

_RESENT = ("network_sequence_errors_total", "network_ack_timeouts_total")


@dataclass(frozen=True, slots=True)
class PortRates:
    """`used` is the share of the speed in the busier direction, 0 to 1; `resends` are packets a second. None where it
    cannot be told."""

    used: float | None = None
    resends: float | None = None


def rates_between(before: PortSample | None, now: PortSample, seconds: float) -> PortRates:
    """The rates over `seconds`; a counter that fell says nothing."""
    if before is None or seconds <= 0:
        return PortRates()
    speed = now.values.get(SPEED)
    sides = [rise for name in (RECEIVED, SENT) if (rise := _rise(before, now, name)) is not None]
    used = min(max(sides) / seconds / speed, 1.0) if speed and sides else None
    again = [rise for name in _RESENT if (rise := _rise(before, now, name)) is not None]
    return PortRates(used, sum(again) / seconds if again else None)


def _rise(before: PortSample, now: PortSample, name: str) -> float | None:
    old, new = before.values.get(name), now.values.get(name)
    return new - old if old is not None and new is not None and new >= old else None
