"""What the brain asks of a node's agent, and what the agent says came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from tocsin.domain.decision import ThrottleKind
from tocsin.domain.finding import ActionKind
from tocsin.domain.parameters import Flag, Megahertz, Parameters, Share, Text, Watts, choice, decode, encode


class OrderState(StrEnum):
    """Where an order stands at its node."""

    PENDING = "pending"
    """Taken; not in effect yet."""
    APPLIED = "applied"
    REFUSED = "refused"
    """The node looked again and did not do it; nothing was changed."""
    OUTRANKED = "outranked"
    """Not taken: the node has heard of a newer brain. Under a higher epoch it is looked at anew."""
    FAILED = "failed"
    """It was tried; what was changed is back, or the detail says what is not."""
    RESTORED = "restored"
    """What it had changed is back as it was."""
    EXPIRED = "expired"
    """Its time ran out; what it had changed is back as it was."""

    @property
    def ended(self) -> bool:
        """Whether it is over: nothing of it is in effect any more, or ever will be."""
        return self not in (OrderState.PENDING, OrderState.APPLIED, OrderState.OUTRANKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderParameters(Parameters):
    """What every order may have: with `dry_run` the node looks as for the real thing, says what it would do, and leaves
    it."""

    dry_run: Flag = False

    @property
    def throttle_kind(self) -> ThrottleKind:
        """Which kind of throttle the order sets: CAP where it has a number; HEAT for one that sets none."""
        return ThrottleKind.HEAT


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleOrderParameters(OrderParameters):
    """A fixed limit, or the heat of the GPU, or that of the GPU which the order named `lead` is for.

    `limit_share` is the share of its default limit that the lead is at, above 0; the brain adds it to what follows.
    """

    power_limit_watts: Watts = None
    sm_clock_max_mhz: Megahertz = None
    lead: Text = ""
    limit_share: Share = None

    @property
    def throttle_kind(self) -> ThrottleKind:
        heat = self.power_limit_watts is None and self.sm_clock_max_mhz is None
        return ThrottleKind.HEAT if heat else ThrottleKind.CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOrderParameters(OrderParameters):
    """`of` is the kind of throttle that is ended; None ends all of the GPU."""

    of: Annotated[ThrottleKind | None, choice(ThrottleKind, "kind of throttle")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOrderParameters(OrderParameters):
    """`drained` where the brain saw the whole node out of service."""

    drained: Flag = False


_KINDS: Mapping[ActionKind, type[OrderParameters]] = {
    ActionKind.THROTTLE: ThrottleOrderParameters,
    ActionKind.RESTORE: RestoreOrderParameters,
    ActionKind.RESET_GPU: ResetOrderParameters,
}


def order_parameters_of(action: ActionKind, texts: Mapping[str, str]) -> OrderParameters:
    """The parameters of an order for `action` from their flat mapping; see `decode`."""
    return decode(_KINDS.get(action, OrderParameters), texts)


@dataclass(frozen=True, slots=True)
class Order:
    """One action for one GPU of one host.

    `key` is unique for an order and the same after a restart of the brain. `expires_ms` is the instant, on the brain's
    clock, up to which it may be begun. `lease_seconds` is how long the node keeps its effect without hearing of it
    again; 0 for what leaves no effect. `epoch` is the instant, in milliseconds, at which its brain began to act: a node
    follows no brain that is older than one it has heard of, but gives back for any.
    """

    key: str
    decision: str
    host: str
    gpu: str
    action: ActionKind
    issued_ms: int
    expires_ms: int
    lease_seconds: float = 0.0
    epoch: int = 0
    simulated: bool = False
    parameters: OrderParameters = field(default_factory=OrderParameters)

    def __post_init__(self) -> None:
        # As for a decision: of the action's own kind, always.
        if type(self.parameters) is not _KINDS.get(self.action, OrderParameters):
            object.__setattr__(self, "parameters", order_parameters_of(self.action, encode(self.parameters)))

    @property
    def id(self) -> str:
        """Stable 16-digit name made from the key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class OrderReport:
    """How an order stands. Limits are milliwatts, None where they are not known or not concerned.

    `requested` is what was set, `enforced` what the driver says is in force, each before the first write of the order
    and after the last. `figures` are what was measured, by name with its unit. `order` repeats the order, so that a
    brain that has forgotten it can go on with it.
    """

    order: Order
    state: OrderState
    detail: str
    at_ms: int
    requested_before_mw: int | None = None
    enforced_before_mw: int | None = None
    requested_after_mw: int | None = None
    enforced_after_mw: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
