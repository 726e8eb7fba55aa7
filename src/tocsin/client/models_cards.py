"""Wire models of cards: one cause, one card, one action."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from tocsin.client.models import GpuState
from tocsin.client.models_silences import SilenceOut
from tocsin.client.wire import Count, Instant, Ratio, Wire, Wired
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import ActionKind, Subject

HEADLINE_CHARACTERS = 100
"""Longest headline: a line of a phone held sideways."""

Amount = Annotated[float, Field(ge=0)]


class CardState(StrEnum):
    """Where a card stands; all but the last are open."""

    OPEN = "open"
    REOPENED = "reopened"
    """The same cause came again within 24 hours of its end."""
    ACKNOWLEDGED = "acknowledged"
    """A person has taken it on, and no action runs."""
    ACTING = "acting"
    """An action runs."""
    VERIFYING = "verifying"
    """An action ran, and its effect is waited for."""
    RESOLVED = "resolved"
    """It is over; it stays readable for 24 hours."""


class CardTouches(Wire):
    """What the cause touches: how many, and the first few names of each."""

    gpus: Count = 0
    hosts: Count = 0
    jobs: Count = 0
    owners: Count = 0
    gpu_names: list[str] = Field(default_factory=list)
    host_names: list[str] = Field(default_factory=list)
    job_names: list[str] = Field(default_factory=list)
    owner_names: list[str] = Field(default_factory=list)


class CardAction(Wire):
    """The one action of a card."""

    kind: ActionKind
    sentence: str
    cause_zh: str = ""
    """Why, in Chinese; empty where there is English alone."""
    decision: str
    """Id of the decision that it is."""
    cost_gpu_hours: Amount | None = None
    """Expected GPU-hours that the action itself costs; null where they are not known."""
    benefit_gpu_hours: float | None = None
    """Expected GPU-hours that it saves beside going on as before; null where they are not known."""
    can_approve: bool = False
    """Whether a yes would start it."""
    until: Instant | None = None
    """When it stops waiting."""
    alike: Count = 0
    """Other decisions for the same action about the same cause, such as of the other GPUs of a host, that wait too:
    `approve-alike` says yes to all."""


class CardEvidence(Wire):
    """One thing that a card rests on, or that was said about it."""

    kind: Literal["finding", "forecast", "guard", "decision", "earlier", "alert", "silence", "ticket"]
    text: str
    text_zh: str = ""
    """The same in Chinese; empty where there is English alone."""
    at: Instant | None = None
    name: str = ""
    """Of a finding its rule, of a guard its name, of a decision its action, of another's alert its name, of a silence
    at Alertmanager whose it is, of a ticket the channel that opened it."""
    decision: str = ""
    """Id of the decision that a guard or decision is about."""
    xid: int | None = None


class Card(Wire):
    """One cause. Instants stand in its sentences as instants, so that a card that is read late is still true."""

    id: str
    headline: Annotated[str, Field(max_length=HEADLINE_CHARACTERS)]
    headline_zh: str = ""
    state: CardState
    health: GpuState
    """How bad it is now: `ok` where it is only expected."""
    level: AlertLevel
    since: Instant | None = None
    """When it began; null for what is only expected."""
    place: str = ""
    """Where the cause sits, as `kind:name`; empty where nobody knows."""
    subject: Wired[Subject]
    index: int | None = None
    """Of the GPU, where it is about one."""
    touches: CardTouches = Field(default_factory=CardTouches)
    confidence: str = ""
    """How sure it is, in words."""
    confidence_zh: str = ""
    probability: Ratio | None = None
    """The same as a number, where there is one."""
    next: str = ""
    """What happens next, and when."""
    next_zh: str = ""
    action: CardAction | None = None
    """The best action that can run; null where there is none, which `obstacle` explains."""
    obstacle: str = ""
    obstacle_zh: str = ""
    """The same in Chinese; without what the guard says where it speaks English alone."""
    obstacle_guard: str = ""
    """The guard that holds the action; empty where none does."""
    waiting_gpu_hours: Amount | None = None
    """Expected GPU-hours lost if nobody acts; null where no chance of a loss is known."""
    waiting_money: Amount | None = None
    """The same in `currency`; null where no price is set."""
    currency: str = ""
    acknowledged_by: str = ""
    acknowledged_until: Instant | None = None
    """When it is open again; null where nobody has taken it on."""
    hidden: SilenceOut | None = None
    """The snooze or planned maintenance that hides it; null: none."""
    reopened_from: Instant | None = None
    """When the same cause ended before it came again."""
    resolved: Instant | None = None
    proof: str = ""
    """What showed that it is over."""
    proof_zh: str = ""
    evidence: list[CardEvidence] = Field(default_factory=list)
    simulated: bool = False


class Cards(Wire):
    """Cards, the most urgent first; `total` counts what `items` leaves out as well."""

    total: Count = 0
    items: list[Card] = Field(default_factory=list)
    waiting: Count = 0
    """Decisions that wait for a person: what a yes would start."""
    hidden: Count = 0
    """Open cards that are hidden, whether or not `items` has them."""
    snoozes: Count = 0
    """Snoozes that hide them."""
    maintenances: Count = 0
    """Planned maintenance that hides them."""
