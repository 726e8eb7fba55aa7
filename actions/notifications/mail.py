"""E-mail over SMTP, by the standard library's client and message builder."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from tocsin.actions.notifications.channel import Channel, ChannelDependencies, Delivery, Links, Message, text_of
from tocsin.config.notify import ChannelSettings, MailSettings
from tocsin.domain.clock import SECOND
from tocsin.domain.errors import InputError
from tocsin.domain.words import clean, clip
from tocsin.http_client import client_context

SUBJECT_LIMIT = 150


class Mail:
    """One connection a message. The Message-ID is made from the message's key: a second copy is known as one."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, dependencies: ChannelDependencies, mail: MailSettings) -> None:
        self.settings = dependencies.settings
        self.name = dependencies.settings.name
        self._mail = mail
        self._links = dependencies.links
        self._context = client_context(dependencies.settings.ca_file)

    def send(self, messages: Sequence[Message]) -> Delivery:
        (message,) = messages
        try:
            with self._connected() as server:
                if self._mail.user:
                    server.login(self._mail.user, self.settings.key)
                refused = server.send_message(compose(message, self.settings, self._mail, self._links))
        except smtplib.SMTPException as error:
            return _refused(error)
        except OSError as error:
            # Certificate errors are among these: the server may get a good one.
            return Delivery(False, f"cannot connect: {type(error).__name__}: {clip(clean(str(error)), 200)}", 1)
        taken = f"taken by {self._mail.host}"
        return Delivery(True, f"{taken} but for {', '.join(sorted(refused))}" if refused else taken, 1)

    def close(self) -> None:
        """Nothing is held between two messages."""

    def _connected(self) -> smtplib.SMTP:
        mail, seconds = self._mail, self.settings.timeout_seconds
        # Without a name of our own the library looks it up, which may take longer than the message.
        own = socket.gethostname()
        if mail.tls == "implicit":
            return smtplib.SMTP_SSL(mail.host, mail.port, own, timeout=seconds, context=self._context)
        server = smtplib.SMTP(mail.host, mail.port, own, timeout=seconds)
        if mail.tls == "starttls":
            try:
                server.starttls(context=self._context)
            except (smtplib.SMTPException, ssl.SSLError, OSError):
                server.close()
                raise
        return server


def compose(message: Message, settings: ChannelSettings, mail: MailSettings, links: Links) -> EmailMessage:
    """The mail; that about an end refers to the one about the fault, so that they make one thread."""
    text = text_of(message, links, settings.language)
    made = EmailMessage(policy=SMTP)
    made["From"] = mail.sender
    made["To"] = ", ".join(mail.to)
    made["Subject"] = clip(text.title, SUBJECT_LIMIT)
    made["Date"] = format_datetime(datetime.fromtimestamp(message.at_ms // SECOND, UTC))
    domain = mail.sender.rpartition("@")[2]
    first = f"<tocsin.{message.id}@{domain}>"
    made["Message-ID"] = f"<tocsin.{message.id}.resolved@{domain}>" if message.resolved else first
    if message.resolved:
        made["In-Reply-To"] = first
        made["References"] = first
    made["Auto-Submitted"] = "auto-generated"
    made["X-Tocsin-Severity"] = str(message.severity)
    made.set_content(text.plain() + "\n", charset="utf-8")
    return made


def _refused(error: smtplib.SMTPException) -> Delivery:
    """4xx and a lost connection may be tried again, 5xx are final (RFC 5321 §4.2.1)."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        shown = ", ".join(f"{name} ({code})" for name, (code, _) in sorted(error.recipients.items()))
        return Delivery(False, f"refused all of {clip(clean(shown), 200)}", 1, again=any(code < 500 for code in codes))
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        return Delivery(False, f"answered {error.smtp_code}: {clip(clean(said), 200)}", 1, again=error.smtp_code < 500)
    name = f"{type(error).__name__}: {clip(clean(str(error)), 200)}"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return Delivery(False, f"cannot be used: {name}", 1, again=False)
    return Delivery(False, f"no answer: {name}", 1, certain=False)


def build(dependencies: ChannelDependencies) -> Channel:
    """The channel that `dependencies` describe; raises InputError where it lacks a mail server."""
    if dependencies.settings.mail is None:
        raise InputError(
            "notify.channels", dependencies.settings.name, "has no table `mail`", "name its mail server there"
        )
    return Mail(dependencies, dependencies.settings.mail)
