"""Wire models of errors, log-in, control by people, and writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, SecretStr

from tocsin.client.wire import Count, Instant, RequestBody, Wire, Wired
from tocsin.domain.finding import Subject

# Wire models of what a person did by hand, past the guards; see `tocsin.client.models`.

Text = Annotated[str, Field(max_length=4000)]
Name = Annotated[str, Field(max_length=300)]


class ManualAction(RequestBody):
    """One half of a deed: that it begins, or how it ended."""

    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    """The same for both halves."""
    phase: Literal["begun", "ended"]
    action: str = Field(pattern=r"^[a-z_]{1,40}$")
    subject: Wired[Subject]
    reason: Text = ""
    parameters: dict[Name, Text] = Field(default_factory=dict, max_length=50)
    manager: Name = ""
    """Which cluster it was done to."""
    by: Name = ""
    """Account and machine, as the sender has them; the journal's actor is the name of the sender's token."""
    status: Literal["", "succeeded", "failed"] = ""
    """How it ended; empty while it begins."""
    detail: Text = ""


class ManualActionOut(Wire):
    """Where it is on record."""

    seq: int
    """Number of the journal's entry."""


class ErrorBody(Wire):
    """What went wrong."""

    code: str
    """Stable name of the error, in snake case."""
    message: str
    """What happened and what to do about it."""
    details: dict[str, JsonValue] = Field(default_factory=dict)
    """Field, value, problem and remedy of bad input; `rejected` lines of a write."""


class ErrorOut(Wire):
    """The one shape of every error."""

    error: ErrorBody


class Readiness(Wire):
    """Whether the brain can do its work, and if not, why not."""

    ready: bool
    reasons: list[str] = Field(default_factory=list)


class Whoami(Wire):
    """The holder of the token that a request carried."""

    name: str
    role: str
    """`viewer`, `operator`, `agent` or `admin`: the furthest that is held."""
    scopes: list[str] = Field(default_factory=list)
    """What may be decided where, as `pools: actions`; empty: whatever the role may."""
    hosts: list[str] = Field(default_factory=list)
    """Nodes whose telemetry may be written; empty: any."""
    namespaces: list[str] = Field(default_factory=list, exclude_if=lambda names: not names)
    """Whose GPUs, jobs and cost alone are read; not there: the whole fleet. Clients of before know no such field."""


class OidcMethod(Wire):
    """An OpenID Connect provider, and what to ask it for."""

    issuer: str
    client_id: str
    scope: str


class LoginMethods(Wire):
    """How people log in."""

    password: bool
    """Whether `POST /v1/login` takes passwords."""
    oidc: OidcMethod | None = None


class LoginRequest(RequestBody):
    """A name and its password in the directory."""

    user: Annotated[str, Field(min_length=1, max_length=200)]
    password: Annotated[SecretStr, Field(min_length=1, max_length=1000)]


class LoginOut(Wire):
    """A log-in; the token is shown this once."""

    token: str
    name: str
    role: str
    expires: Instant


class BreakerOut(Wire):
    """The breaker: trips at `limit` distinct root causes within its window, and stays so until a person resets it."""

    tripped: bool
    root_causes: Count = 0
    limit: Count = 0
    since: Instant | None = None
    reason: str = ""


class ControlState(Wire):
    """What people have set: pause and breaker."""

    paused: bool
    paused_by: str = ""
    paused_reason: str = ""
    breaker: BreakerOut


class RejectedLine(Wire):
    """A line of a write that was not kept; `number` counts from 1."""

    number: Annotated[int, Field(ge=1)]
    problem: str


class IngestResult(Wire):
    """What became of a write: how much is durable, and what was refused: the first lines, and how many more."""

    readings: Count = 0
    events: Count = 0
    findings: Count = 0
    predictions: Count = 0
    rejected: list[RejectedLine] = Field(default_factory=list)
    rejected_more: Count = 0
    warnings: list[str] = Field(default_factory=list)

    @property
    def records(self) -> int:
        """How much is kept, of whatever kind."""
        return self.readings + self.events + self.findings + self.predictions


class InjectionRequest(RequestBody):
    """Rehearse a failure on a simulated GPU."""

    kind: Annotated[str, Field(min_length=1, max_length=100)]
    gpu: Annotated[str, Field(min_length=1, max_length=200)]


class InjectionOut(Wire):
    """The failure that was started."""

    kind: str
    gpu: str
    at: Instant
    sentence: str


class ControlRequest(RequestBody):
    """Why; kept in the journal."""

    reason: Annotated[str, Field(max_length=500)] = ""


class OverruleRequest(ControlRequest):
    """Why a person overrules a decision; `right` where its statement was right all the same, so that it does not count
    against the record of its rule."""

    right: bool = False


class ReleaseRequest(RequestBody):
    """Give a node or a GPU back to service."""

    kind: Literal["host", "gpu"]
    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the host, or UUID of the GPU."""
    reason: Annotated[str, Field(max_length=500)] = ""
    right: bool = False
    """Whether what was done here lately had a right statement; else giving it back soon counts against the rule."""


class ReleaseOut(Wire):
    """What was given back; it is left alone until `held_off_until`.

    `given_up` are its GPUs that another host may report from now on: their own host is silent about them. Of those
    `still_reported` what another host says stays refused.
    """

    subject: Wired[Subject]
    held_off_until: Instant
    given_up: int = 0
    still_reported: int = 0


class OrderTaken(Wire):
    """Whether the brain knows the order of a report."""

    known: bool
