"""Settings of notification channels."""

from __future__ import annotations

import re
from datetime import UTC, time, tzinfo
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from tocsin.config.section import Section
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import Category, Severity
from tocsin.plugins import Kind, known

ChannelKind = Annotated[str, AfterValidator(partial(known, Kind.CHANNEL))]
"""A channel of Tocsin or of another package."""

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
"""https://developer.pagerduty.com/docs/events-api-v2-overview; accounts in Europe have a host of their own."""

_URL = re.compile(r"https?://[^\s/@?#]+(/\S*)?(\?\S*)?")
_ADDRESS = re.compile(r"[!-~]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_BARRED = re.compile(r"[<>(),;:\\\"\[\]]")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class MailSettings(Section):
    """The mail server of a channel of kind `email`."""

    host: str = Field(min_length=1)
    """Mail server."""
    port: int = Field(default=587, ge=1, le=65_535)
    """Its port: 587 for STARTTLS, 465 for implicit TLS."""
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    """How the connection is protected; the server's certificate is checked."""
    user: str = ""
    """Name to log in with, the password is the channel's `secret`; empty: no log-in."""
    sender: str
    """Address that messages come from."""
    to: list[str] = Field(min_length=1)
    """Addresses that they go to."""

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        for address in (self.sender, *self.to):
            if not _ADDRESS.fullmatch(address) or _BARRED.search(address):
                raise ValueError(f"{address!r} is no plain mail address such as oncall@example.com")
        if self.tls == "none" and self.user:
            raise ValueError("a password is never sent without TLS: set tls to starttls or implicit")
        return self


class TicketSettings(Section):
    """The tickets of a channel of kind `ticket`."""

    template: str = Field(min_length=1)
    """The ticket system's requests: `jira_cloud`, `jira_data_center`, `servicenow`, or the path of a TOML file."""
    values: dict[str, str] = Field(default_factory=dict)
    """The site's own words of the template, such as `{ project = "GPU" }`."""
    categories: list[Category] = Field(default=[Category.HARDWARE])
    """Categories of findings that open a ticket; empty: all."""
    evidence: bool = True
    """Whether the evidence bundle of the GPU is attached to its ticket."""
    evidence_days: float = Field(default=7.0, gt=0, le=35)
    """Days that it goes back."""
    evidence_owners: bool = False
    """Whether it names owners, processes and people."""
    evidence_bytes: int = Field(default=8 * 1024 * 1024, ge=1)
    """Most bytes of a bundle; a bigger one is not attached, which the ticket says. Jira takes 10 MB unless set."""

    def takes(self, category: Category) -> bool:
        """Whether findings of `category` open a ticket."""
        return not self.categories or category in self.categories


class ChannelSettings(Section):
    """One notification channel, and what is sent through it."""

    name: str = Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")
    """Name in the journal, in metrics and in `tocsin notify test --channel`: lower case, digits, single underscores."""
    kind: ChannelKind
    """`cloudevents`, `slack`, `teams`, `alertmanager`, `pagerduty`, `ticket`, `feishu`, `dingtalk` or `email`."""
    url: SecretStr = SecretStr("")
    """Where messages are posted; for `alertmanager` and `ticket` its base URL, for `pagerduty` its events API by
    default. A chat room's URL is a secret: better in `notify.urls`."""
    secret: SecretStr = SecretStr("")
    """Routing key (`pagerduty`), key of the signature (`cloudevents`, `feishu`, `dingtalk`), bearer token
    (`alertmanager`), `${secret}` of the templates (`ticket`) or password (`email`); better in `notify.secrets`."""
    min_severity: Severity = Severity.WARNING
    """Lowest severity to send: `info`, `warning` or `critical`. A page comes whatever its severity."""
    min_level: AlertLevel = AlertLevel.WARNING
    """Lowest level to send: `page` for what needs a person now alone, `warning` for the working day as well."""
    pools: list[str] = Field(default_factory=list)
    """Pools to notify about; empty: all. Notifications about the whole fleet are always sent."""
    rules: list[str] = Field(default_factory=list)
    """Rules to notify about, with `*` for any letters, such as `xid_*`; empty: all."""
    simulated: bool = True
    """Whether notifications of a simulated fleet go out too; they say that they are."""
    language: Literal["en", "zh"] = "en"
    """Language of the fixed words, and of sentences that there are in Chinese."""
    resolved: bool | None = None
    """Whether to notify when a fault ends; default: yes for `alertmanager`, `pagerduty`, `cloudevents` and `ticket`."""
    per_minute: int = Field(default=12, ge=1)
    """Most messages in a minute; what is more goes together as one, tickets wait. DingTalk takes 20."""
    buttons: bool = False
    """Whether messages of a channel of kind `slack` have buttons to approve, decline and acknowledge; `api.slack` says
    who may press them."""
    refresh_seconds: float = Field(default=60.0, gt=0)
    """Interval at which active alerts are sent to `alertmanager` again; each expires after five times as long."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long one request may take."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Further labels of every alert (`alertmanager`), such as `{ cluster = "a" }`."""
    ca_file: Path | None = None
    """File of certificate authorities in place of the usual ones."""
    mail: MailSettings | None = None
    """The mail server (`email`)."""
    ticket: TicketSettings | None = None
    """The tickets (`ticket`)."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.name in {"webhook", "journal"}:
            raise ValueError(f"{self.name} is the name of something else")
        if (self.mail is not None) != (self.kind == "email"):
            raise ValueError("a table `mail` belongs to kind email, and to no other")
        if self.buttons and self.kind != "slack":
            raise ValueError("buttons belong to kind slack")
        if (self.ticket is not None) != (self.kind == "ticket"):
            raise ValueError("a table `ticket` belongs to kind ticket, and to no other")
        if self.labels and self.kind != "alertmanager":
            raise ValueError("labels belong to kind alertmanager")
        if self.kind == "alertmanager" and self.resolved is False:
            raise ValueError("alertmanager needs to know when a fault ends: the alert would stay active")
        for label in self.labels:
            if not _LABEL.fullmatch(label) or label.startswith("__"):
                raise ValueError(f"{label!r} is no label name: letters, digits and underscores")
        return self

    @property
    def endpoint(self) -> str:
        """The URL to post to; empty for mail."""
        return self.url.get_secret_value() or (PAGERDUTY_URL if self.kind == "pagerduty" else "")

    @property
    def key(self) -> str:
        return self.secret.get_secret_value()


def _zone(name: str) -> tzinfo:
    # Known without the system's table of time zones, which small images do not have.
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("is no time zone that this system knows, such as Europe/Berlin or UTC") from None


class NotifySettings(Section):
    """Notification channels, beside the webhook."""

    channels: list[ChannelSettings] = Field(default_factory=list)
    """The channels."""
    pages_per_12h: int = Field(default=2, ge=0)
    """Most pages to one receiver in 12 hours, whatever the fleet: two incidents a shift are what a person can see
    through (Google's SRE book). Hard faults page always and use it up first; what else would page beyond it is told
    in one summary page, and as warnings after that."""
    report_at: str = Field(default="", pattern=r"^(([01]\d|2[0-3]):[0-5]\d)?$")
    """When the morning report is sent each day, such as `07:00`; empty: never. It goes to every channel but
    `alertmanager`, `pagerduty` and `ticket`, whatever its `min_level`."""
    report_zone: str = "UTC"
    """Time zone of `report_at`, such as `Europe/Berlin`."""
    urls: dict[str, SecretStr] = Field(default_factory=dict)
    """URLs of channels by name, so that each can be a secret file, such as `notify__urls__chat`."""
    secrets: dict[str, SecretStr] = Field(default_factory=dict)
    """Secrets of channels by name, such as secret file `notify__secrets__oncall`."""
    runbooks_url: str = ""
    """Where the runbooks (docs/operations/runbooks) can be read; messages link to a page below it. Empty: no link."""
    console_url: str = ""
    """Where the dashboard can be opened; messages link to it. Empty: no link."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [channel.name for channel in self.channels]
        if len(set(names)) < len(names):
            raise ValueError("two channels have the same name")
        stray = sorted((self.urls.keys() | self.secrets.keys()) - set(names))
        if stray:
            raise ValueError(f"urls or secrets name {stray[0]!r}, which is no channel")
        for link in (self.runbooks_url, self.console_url):
            if link and not _URL.fullmatch(link):
                raise ValueError(f"{link!r} is no URL that starts with https:// or http://")
        self.channels = [self._with_secrets(channel) for channel in self.channels]
        return self

    @field_validator("report_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        _zone(name)
        return name

    @property
    def report_time(self) -> time | None:
        """When the morning report is due each day; None: never."""
        return time.fromisoformat(self.report_at) if self.report_at else None

    @property
    def report_tz(self) -> tzinfo:
        """The time zone of `report_time`."""
        return _zone(self.report_zone)

    def _with_secrets(self, channel: ChannelSettings) -> ChannelSettings:
        found = {"url": self.urls.get(channel.name), "secret": self.secrets.get(channel.name)}
        filled = channel.model_copy(update={key: value for key, value in found.items() if value is not None})
        # Messages below name no value: a URL of a chat room is a secret.
        if filled.kind != "email" and not _URL.fullmatch(filled.endpoint):
            raise ValueError(f"channel {channel.name} needs a url that starts with https:// or http://")
        if filled.kind == "pagerduty" and not filled.key:
            raise ValueError(f"channel {channel.name} needs a secret: the routing key of its integration")
        if filled.mail is not None and filled.mail.user and not filled.key:
            raise ValueError(f"channel {channel.name} needs a secret: the password of {filled.mail.user}")
        return filled
