"""Settings of the HTTP API: who may ask, how they prove it, and how much they may ask."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from tocsin.config.address import ListenAddress, is_loopback
from tocsin.config.section import Section
from tocsin.domain.finding import ActionKind

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
"""Signatures by a private key: those by a shared secret, and `none`, can be forged by whoever reads the public key."""

CONTROLS = ("pause", "resume", "release", "reset_breaker", "inject", "acknowledge", "snooze", "plan_maintenance")
"""What a scope may name beside the actions of decisions."""


class Role(StrEnum):
    """What a principal may do: `viewer` reads, `operator` also decides, `admin` may all, `agent` writes telemetry."""

    AGENT = "agent"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class AccessScope(Section):
    """Some actions in some pools, as `{ pools = ["train-*"], actions = ["throttle", "cordon"] }`."""

    pools: list[str] = Field(default_factory=lambda: ["*"], min_length=1)
    """Patterns of pool names; `*` alone stands for the whole fleet, also for what is in no pool."""
    actions: list[str] = Field(default_factory=lambda: ["*"], min_length=1)
    """Actions that may be decided, and `pause`, `resume`, `release`, `reset_breaker`, `inject`, `acknowledge`,
    `snooze`, `plan_maintenance`; `*`: all."""

    @field_validator("actions")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        known = ["*", *(kind.value for kind in ActionKind), *CONTROLS]
        for name in value:
            if name not in known:
                raise ValueError(f"there is no action {name!r}; known are {', '.join(known)}")
        return value


Namespaces = list[Annotated[str, Field(min_length=1, max_length=253)]]
_Tenant = TypeVar("_Tenant")


def _tenant_reads(section: _Tenant, role: Role, namespaces: Sequence[str]) -> _Tenant:
    if namespaces and role is not Role.VIEWER:
        raise ValueError(f"namespaces is for role viewer; {role.value} acts on the fleet")
    return section


class Token(Section):
    """One bearer token of the API."""

    name: str
    """Who holds it; recorded in the journal with what it does."""
    role: Role
    """`viewer`, `operator`, `agent` or `admin`."""
    secret: SecretStr = Field(min_length=16)
    """The token itself, at least 16 characters."""
    scopes: list[AccessScope] = Field(default_factory=list)
    """What it may decide, and where; empty: whatever its role may."""
    host: str = ""
    """The one node whose telemetry it may write; empty: any."""
    personal: bool = False
    """Whether one person alone has it: then an acknowledgement with it keeps its cause out of the breaker."""
    namespaces: Namespaces = Field(default_factory=list)
    """For role `viewer`: the Kubernetes namespaces and Slurm accounts whose GPUs, jobs and cost alone it reads; empty:
    the whole fleet."""

    @model_validator(mode="after")
    def _tenant_reads(self) -> Self:
        return _tenant_reads(self, self.role, self.namespaces)


class GroupRole(Section):
    """What the members of a group may do."""

    group: str
    """Name of the group, as the provider or the directory spells it; capitals do not matter."""
    role: Literal[Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    """`viewer`, `operator` or `admin`."""
    scopes: list[AccessScope] = Field(default_factory=list)
    """What they may decide, and where; empty: whatever the role may."""
    namespaces: Namespaces = Field(default_factory=list)
    """For role `viewer`: the Kubernetes namespaces and Slurm accounts whose GPUs, jobs and cost alone they read; empty:
    the whole fleet. Who is also in a group without reads the fleet."""

    @model_validator(mode="after")
    def _tenant_reads(self) -> Self:
        return _tenant_reads(self, self.role, self.namespaces)


class OidcSettings(Section):
    """Log-in of people by an OpenID Connect provider."""

    issuer: str = ""
    """URL of the provider, as its tokens spell it; empty: none."""
    client_id: str = ""
    """What the provider calls this service; `tocsin login` uses it too."""
    audiences: list[str] = Field(default_factory=list)
    """Audiences of which a token must name one; empty: `client_id`."""
    algorithms: list[Algorithm] = Field(default=["RS256", "ES256"], min_length=1)
    """Signatures that are taken."""
    name_claim: str = "preferred_username"
    """Claim that becomes the actor in the journal, behind `oidc:`; people must not be able to choose it freely."""
    groups_claim: str = "groups"
    """Claim that lists the groups."""
    groups: list[GroupRole] = Field(default_factory=list)
    """What each group may do; who is in none of them is refused."""
    scope: str = "openid profile"
    """What `tocsin login` asks the provider for."""
    leeway_seconds: int = Field(default=30, ge=0, le=300)
    """How far the provider's clock may be off."""
    keys_seconds: float = Field(default=300.0, gt=0)
    """How long the provider's keys are used before they are fetched again."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long one request to the provider may take."""
    ca: Path | None = None
    """CA file for the provider's certificate; unset: those of the system."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.issuer:
            return self
        require_safe(self.issuer, "issuer")
        if not self.client_id:
            raise ValueError("client_id is needed beside issuer")
        if not self.groups:
            raise ValueError("groups is empty: nobody could log in")
        return self


class LdapSettings(Section):
    """Log-in of people by a directory (`POST /v1/login`)."""

    url: str = ""
    """`ldaps://HOST`, or `ldap://HOST` with `start_tls`; empty: none."""
    start_tls: bool = True
    """Whether an `ldap://` connection is encrypted before anything is said; without it only loopback is allowed."""
    ca: Path | None = None
    """CA file for the directory's certificate; unset: those of the system."""
    user_dn: str = ""
    """DN of a person, `{user}` standing for the name; empty: the person is searched for."""
    search_base: str = ""
    """Where people are searched."""
    search_filter: str = "(uid={user})"
    """How a person is found."""
    bind_dn: str = ""
    """Account that searches; empty: anonymous, or the person where `user_dn` is set."""
    bind_password: SecretStr = SecretStr("")
    """Its password."""
    name_attribute: str = "uid"
    """Attribute that becomes the actor in the journal, behind `ldap:`."""
    group_base: str = ""
    """Where groups are searched."""
    group_filter: str = "(&(objectClass=groupOfNames)(member={dn}))"
    """How the groups of a person are found, by `{dn}` or `{user}`."""
    group_attribute: str = "cn"
    """Attribute that names a group."""
    groups: list[GroupRole] = Field(default_factory=list)
    """What each group may do; who is in none of them is refused."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long each step of a log-in may take."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.url:
            return self
        parts = urlsplit(self.url)
        if parts.scheme not in {"ldap", "ldaps"} or not parts.hostname:
            raise ValueError("url must be ldap://HOST or ldaps://HOST")
        if parts.scheme == "ldap" and not self.start_tls and not is_loopback(parts.hostname):
            raise ValueError("passwords would travel in the clear: use ldaps:// or start_tls = true")
        if bool(self.user_dn) == bool(self.search_base):
            raise ValueError("give either user_dn or search_base")
        if self.user_dn and "{user}" not in self.user_dn:
            raise ValueError("user_dn needs {user} in it")
        if self.search_base and "{user}" not in self.search_filter:
            raise ValueError("search_filter needs {user} in it")
        if not self.group_base or not self.groups:
            raise ValueError("group_base and groups are needed: nobody could log in")
        return self


MIN_HOST_KEY = 32
"""Characters of a key of which others know messages that it signed; shorter ones can be guessed from these."""


class DeskSettings(Section):
    """A ticket system that may send back what becomes of its tickets (`POST /v1/desk`)."""

    name: str = Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")
    """Its name behind `ticket:` in the journal: lower case, digits, single underscores."""
    secret: SecretStr = Field(min_length=MIN_HOST_KEY)
    """Key of its signatures, 32 characters or more; it belongs to this one alone."""
    previous_secret: SecretStr = SecretStr("")
    """The key before, taken as well while it is being changed; empty: none."""
    acknowledge_seconds: float = Field(default=14_400.0, ge=60, le=86_400)
    """How long a card is acknowledged when a person takes its ticket on."""
    resolve_seconds: float = Field(default=14_400.0, ge=60, le=604_800)
    """How long a card is hidden at most whose ticket is resolved while its fault is still there, counted from the first
    time."""
    scopes: list[AccessScope] = Field(default_factory=list)
    """The pools whose cards it may acknowledge (`acknowledge`) and hide (`snooze`); empty: all."""

    @model_validator(mode="after")
    def _previous_is_long(self) -> Self:
        if 0 < len(self.previous_secret.get_secret_value()) < MIN_HOST_KEY:
            raise ValueError(f"previous_secret has less than {MIN_HOST_KEY} characters")
        if self.name == "slack":
            raise ValueError("slack is the name of something else")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that is taken."""
        both = (self.secret.get_secret_value(), self.previous_secret.get_secret_value())
        return tuple(key for key in both if key)


class SlackPerson(Section):
    """Somebody who may press buttons in Slack."""

    user: str = Field(pattern=r"^[UW][A-Z0-9]{2,30}$")
    """Slack's id of the member, such as `U02ABCDEF`: its menu *Copy member ID*."""
    name: str = Field(min_length=1, max_length=100, pattern=r"^[^\s:]+$")
    """Who that is; recorded in the journal behind `slack:`."""
    role: Literal[Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    """`viewer`, `operator` or `admin`."""
    scopes: list[AccessScope] = Field(default_factory=list)
    """What this person may decide, and where; empty: whatever the role may."""


class SlackSettings(Section):
    """Buttons in Slack (`POST /v1/slack/interactive`)."""

    signing_secret: SecretStr = SecretStr("")
    """Signing secret of the Slack app whose webhook a channel with `buttons` posts to; empty: no buttons."""
    team: str = Field(default="", pattern=r"^([TE][A-Z0-9]{2,30})?$")
    """Id of the workspace that presses may come from, such as `T01ABCDEF`; empty: whichever has the app."""
    people: list[SlackPerson] = Field(default_factory=list)
    """Who may press them. Whoever is not named here changes nothing, and is told so."""
    acknowledge_seconds: float = Field(default=3600.0, ge=60, le=86_400)
    """How long a card is acknowledged by a press."""
    timeout_seconds: float = Field(default=5.0, gt=0, le=30)
    """How long each step of an answer to Slack may take."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        secret = self.signing_secret.get_secret_value()
        if 0 < len(secret) < MIN_HOST_KEY:
            raise ValueError(
                f"signing_secret has less than {MIN_HOST_KEY} characters: copy it from *Basic Information*"
            )
        if bool(secret) != bool(self.people):
            raise ValueError("signing_secret and people go together: nobody could press a button")
        users = [person.user for person in self.people]
        if len(set(users)) < len(users):
            raise ValueError("two people have the same user")
        return self

    @property
    def key(self) -> str:
        return self.signing_secret.get_secret_value()


class RequestLimits(Section):
    """How much may be asked of the API. Rates are per principal and address."""

    requests_per_second: float = Field(default=50.0, gt=0)
    """Requests of a person or a tool, on average."""
    request_burst: int = Field(default=200, ge=1)
    """Requests at once."""
    agent_requests_per_second: float = Field(default=200.0, gt=0)
    """The same of agents."""
    agent_request_burst: int = Field(default=2000, ge=1)
    """The same of agents; a tenth of it for one with a token of its own node."""
    refused_per_second: float = Field(default=2.0, gt=0)
    """Requests without a good token that one address may send, on average."""
    refused_burst: int = Field(default=50, ge=1)
    """The same at once."""
    login_attempts: int = Field(default=5, ge=1)
    """Wrong passwords in a row, for one person or from one address, before log-ins wait."""
    login_lock_seconds: float = Field(default=30.0, gt=0)
    """The first wait; each further wrong password doubles it."""
    login_lock_max_seconds: float = Field(default=900.0, gt=0)
    """The longest wait."""
    concurrent_requests: int = Field(default=256, ge=1)
    """Requests in work at once: half for agents, half for people who read, an eighth each for probes, for log-ins, for
    what ticket systems and Slack send back and for what people change. One caller gets a quarter of a part; more are
    answered 503."""
    connections: int = Field(default=4000, ge=1)
    """Open connections, as far as there are file descriptors; beyond, idle ones make room, else new ones get 503."""
    gpus_per_host: int = Field(default=256, ge=1)
    """GPUs and MIG instances that one host may report; 16 GPUs of seven instances are 128."""
    header_bytes: int = Field(default=32 * 1024, ge=1024)
    """Longest request line with headers."""
    header_seconds: float = Field(default=10.0, gt=0)
    """How long a client may take from its first byte, or its connection, to the end of the headers."""
    body_seconds: float = Field(default=60.0, gt=0)
    """How long a client may take to send a body, and to read on in an answer."""
    body_bytes_per_second: float = Field(default=1024.0, gt=0)
    """Slowest pace of a body after its first 5 seconds."""
    body_bytes_in_flight: int = Field(default=128 * 1024 * 1024, ge=1024)
    """Bytes of all bodies in memory, as they came; more are answered 429. At least four times `max_body_bytes`."""


_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
ServiceAccount = Annotated[str, Field(pattern=rf"^system:serviceaccount:{_NAME}:{_NAME}(\.{_NAME})*$", max_length=340)]
"""User name of a service account, as the API server spells it."""


class ReadAuditSettings(Section):
    """Whose reads of the API are put on record in the journal: who, what path, when, how often."""

    roles: list[Role] = Field(default_factory=list)
    """Roles whose reads are; empty: none by role."""
    tenants: bool = False
    """Whether those of tenants are, who are bound to namespaces."""
    paths: list[str] = Field(default_factory=lambda: ["*"], min_length=1)
    """Patterns of paths, such as `/v1/gpus/*`, that count."""
    every_seconds: float = Field(default=60.0, ge=1, le=3600)
    """Time that one entry covers: a brain that is killed loses the reads of that long."""


class ApiSettings(Section):
    """The brain's HTTP API."""

    listen: ListenAddress = "127.0.0.1:8470"
    """Address of the API; port 0 takes a free one."""
    tokens: list[Token] = Field(default_factory=list)
    """Bearer tokens. Without any, and without other ways to log in, only loopback is served, as admin."""
    host_key: SecretStr = Field(default=SecretStr(""))
    """Key of the nodes' own tokens (`tocsin token issue --host NODE`), 32 characters or more; empty: none."""
    revoked_hosts: list[str] = Field(default_factory=list)
    """Nodes whose own tokens are refused."""
    node_service_accounts: list[ServiceAccount] = Field(default_factory=list)
    """Service accounts of Kubernetes, such as `system:serviceaccount:tocsin:tocsin-agent`, whose pods are agents: each
    by the token that its kubelet projects, good for its node alone. The API server of `kubernetes` is asked; empty: no
    such tokens."""
    node_audience: str = Field(default="tocsin", min_length=1, max_length=253)
    """Audience of these tokens."""
    node_token_seconds: float = Field(default=120.0, gt=0, le=600)
    """How long the API server's word about such a token is believed, and at most until the token expires."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body that is read."""
    tls_certificate: Path | None = None
    """PEM file of the certificate with its chain; unset: plain HTTP. It is read again when it changes."""
    tls_key: Path | None = None
    """PEM file of its key, unencrypted."""
    client_ca: Path | None = None
    """PEM file of the CAs whose certificates make a client an agent; unset: none."""
    client_own_host: bool = True
    """Whether such an agent may write only telemetry of the node that its certificate names."""
    session_seconds: float = Field(default=3600.0, gt=0)
    """How long a log-in by password lasts."""
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    """Log-in by an OpenID Connect provider."""
    ldap: LdapSettings = Field(default_factory=LdapSettings)
    """Log-in by a directory."""
    desks: list[DeskSettings] = Field(default_factory=list, max_length=16)
    """Ticket systems that may send back what becomes of their tickets."""
    slack: SlackSettings = Field(default_factory=SlackSettings)
    """Buttons in Slack."""
    limits: RequestLimits = Field(default_factory=RequestLimits)
    """How much may be asked."""
    audit_reads: ReadAuditSettings = Field(default_factory=ReadAuditSettings)
    """Whose reads are put on record."""

    @model_validator(mode="after")
    def _host_key_is_long(self) -> Self:
        if 0 < len(self.host_key.get_secret_value()) < MIN_HOST_KEY:
            raise ValueError(f"host_key has less than {MIN_HOST_KEY} characters; make one with: openssl rand -hex 32")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.client_ca is not None and self.tls_certificate is None:
            raise ValueError("client_ca needs tls_certificate and tls_key")
        return self

    @model_validator(mode="after")
    def _desks_are_told_apart(self) -> Self:
        names = [desk.name for desk in self.desks]
        keys = [key for desk in self.desks for key in desk.keys]
        if len(set(names)) < len(names):
            raise ValueError("two desks have the same name")
        if len(set(keys)) < len(keys):
            raise ValueError("two secrets of desks are the same: whose a call is shows by the secret alone")
        return self

    @property
    def open_to_loopback(self) -> bool:
        """Whether nobody has to prove anything: no way to do so is configured."""
        ways = (self.tokens, self.host_key.get_secret_value(), self.oidc.issuer, self.ldap.url, self.client_ca)
        return not any((*ways, self.node_service_accounts))


def require_safe(url: str, name: str) -> None:
    """Raise ValueError where `url` is no https address; http is taken on the loopback address, for tests."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname):
        return
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"{name} must be an https:// address")
