"""Mail against a real SMTP server in a thread: TLS with a checked certificate, log-in, threads, refusals."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from tocsin.actions.notifications.channel import Channel, ChannelDependencies, Delivery, Phase, build_channel
from tocsin.domain.errors import InputError
from tocsin_testing.notify_world import DECISION, LINKS, channel_settings, message
from tocsin_testing.servers import free_port


class Inbox:
    """Keeps what comes in; `answers` are given in place of taking it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.answers: dict[str, str] = {}

    async def handle_RCPT(  # noqa: N802
        self, server: object, session: object, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.answers:
            return self.answers[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:  # noqa: N802
        if "DATA" in self.answers:
            return self.answers["DATA"]
        made = message_from_bytes(envelope.original_content or b"", policy=policy.default)
        assert isinstance(made, EmailMessage)
        self.mails.append(made)
        return "250 taken"


def _login(server: object, session: object, envelope: object, mechanism: str, data: object) -> AuthResult:
    good = isinstance(data, LoginPassword) and (data.login, data.password) == (b"tocsin", b"5ecret")
    return AuthResult(success=good, handled=False)


class Post:
    """A server of one kind, and channels to it."""

    def __init__(self, folder: Path) -> None:
        self.inbox = Inbox()
        self.folder = folder
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert("localhost").configure_cert(self.context)
        self.controllers: list[Controller] = []

    def start(self, tls: str, *, login: bool = False, offers: bool = True) -> int:
        """A server with TLS as named; its port."""
        more: dict[str, Any] = {}
        if tls == "implicit":
            more["ssl_context"] = self.context
        elif offers and tls == "starttls":
            more |= {"tls_context": self.context, "require_starttls": True}
        if login:
            more |= {"authenticator": _login, "auth_required": True, "auth_require_tls": tls != "implicit"}
        controller = Controller(self.inbox, hostname="localhost", port=free_port(), **more)
        controller.start()
        self.controllers.append(controller)
        return int(controller.port)

    def channel(self, port: int, tls: str, *, to: tuple[str, ...] = ("oncall@example.com",), **more: Any) -> Channel:
        """A channel to the server at `port`."""
        mail = {"host": "localhost", "port": port, "tls": tls, "sender": "tocsin@example.com", "to": list(to)}
        if "secret" in more:
            mail["user"] = "tocsin"
        found = channel_settings("email", mail=mail, **({"ca_file": str(self.folder / "ca.pem")} | more))
        return build_channel(ChannelDependencies(found, LINKS))

    def stop(self) -> None:
        """End the servers."""
        for controller in self.controllers:
            controller.stop()


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    made = Post(tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize("tls", ["starttls", "implicit", "none"])
def test_delivered(post: Post, tls: str) -> None:
    port = post.start(tls)
    assert post.channel(port, tls).send([message()]) == Delivery(True, "taken by localhost", 1)
    (mail,) = post.inbox.mails
    assert mail["To"] == "oncall@example.com"
    assert mail["Message-ID"] == f"<tocsin.{DECISION.id}@example.com>"
    assert DECISION.sentence in mail.get_content()
    assert "https://docs.example.com/runbooks/actions/cordon.md" in mail.get_content()


NO_STARTTLS = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning")
"""The server does not know that it is spoken to over TLS already."""


@NO_STARTTLS
@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_login(post: Post, tls: str) -> None:
    port = post.start(tls, login=True)
    assert post.channel(port, tls, secret="5ecret").send([message()]).ok
    refused = post.channel(port, tls, secret="wr0ng").send([message()])
    assert (refused.ok, refused.again) == (False, False)
    assert refused.detail.startswith("answered 535")
    assert "wr0ng" not in refused.detail
    assert len(post.inbox.mails) == 1


@NO_STARTTLS
@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_a_certificate_of_somebody_else_stops_it_before_the_password(post: Post, tls: str, tmp_path: Path) -> None:
    port = post.start(tls, login=True)
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    delivery = post.channel(port, tls, secret="5ecret", ca_file=str(other)).send([message()])
    assert (delivery.ok, delivery.again) == (False, True)
    assert "CERTIFICATE_VERIFY_FAILED" in delivery.detail
    assert post.inbox.mails == []


def test_a_server_without_starttls_gets_nothing_in_the_clear(post: Post) -> None:
    port = post.start("starttls", offers=False)
    delivery = post.channel(port, "starttls").send([message()])
    assert (delivery.ok, delivery.again) == (False, False)
    assert "STARTTLS" in delivery.detail
    assert post.inbox.mails == []


def test_an_end_answers_the_mail_about_the_fault(post: Post) -> None:
    channel = post.channel(post.start("none"), "none")
    for phase in (Phase.FIRING, Phase.FIRING, Phase.RESOLVED):
        assert channel.send([message(phase)]).ok
    first, again, ended = post.inbox.mails
    assert first["Message-ID"] == again["Message-ID"] == ended["In-Reply-To"] == ended["References"]
    assert ended["Message-ID"] != first["Message-ID"]
    assert ended["Subject"].startswith("Tocsin RESOLVED: ")


@pytest.mark.parametrize(("answer", "again"), [("550 no such user", False), ("451 later", True)])
def test_all_recipients_refused(post: Post, answer: str, again: bool) -> None:
    post.inbox.answers["oncall@example.com"] = answer
    delivery = post.channel(post.start("none"), "none").send([message()])
    assert (delivery.ok, delivery.again) == (False, again)
    assert f"oncall@example.com ({answer[:3]})" in delivery.detail


def test_one_recipient_refused_is_named(post: Post) -> None:
    post.inbox.answers["gone@example.com"] = "550 no such user"
    to = ("gone@example.com", "oncall@example.com")
    delivery = post.channel(post.start("none"), "none", to=to).send([message()])
    assert delivery == Delivery(True, "taken by localhost but for gone@example.com", 1)


@pytest.mark.parametrize(("answer", "again"), [("554 spam", False), ("452 full", True)])
def test_the_message_refused(post: Post, answer: str, again: bool) -> None:
    post.inbox.answers["DATA"] = answer
    delivery = post.channel(post.start("none"), "none").send([message()])
    assert (delivery.ok, delivery.again, delivery.detail) == (False, again, f"answered {answer[:3]}: {answer[4:]}")


def test_nobody_there() -> None:
    mail = {"host": "127.0.0.1", "port": free_port(), "tls": "none", "sender": "a@b.c", "to": ["d@e.f"]}
    delivery = build_channel(ChannelDependencies(channel_settings("email", mail=mail))).send([message()])
    assert (delivery.ok, delivery.again, delivery.certain) == (False, True, True)


def test_a_channel_without_a_server_is_no_channel() -> None:
    bare = channel_settings("email").model_copy(update={"mail": None})
    with pytest.raises(InputError, match="mail"):
        build_channel(ChannelDependencies(bare))
