"""TLS of the API's server: 1.2 at least, 1.3 where the client can; client certificates; renewal without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.client.tls import load_pair, stamp
from tocsin.config.access import ApiSettings
from tocsin.domain.errors import InputError
from tocsin.telemetry.log import logger

_log = logger("tls")

CIPHERS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2 only suites with forward secrecy and authenticated encryption (RFC 9325, section 4.2)."""


class ServerTls:
    """The server's certificate and the CAs of its clients. Raises InputError for files that cannot be used."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._stamp = stamp(certificate, key, client_ca)
        self.context = self._fresh()

    def _fresh(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS_1_2)
        context.options |= ssl.OP_NO_RENEGOTIATION
        self._load(context)
        if self._client_ca is not None:
            # People come without a certificate; one that is shown must be good.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        load_pair(context, self._certificate, self._key)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                remedy = "name a PEM file of CA certificates"
                raise InputError("api.client_ca", str(self._client_ca), f"cannot be used: {error}", remedy) from None

    def refresh(self) -> bool:
        """Use files that changed for connections from now on; whether any did. Those that cannot be used are logged.

        A CA that is new in the file counts at once; one that was taken out counts until the next start.
        """
        now = stamp(self._certificate, self._key, self._client_ca)
        if now == self._stamp:
            return False
        self._stamp = now
        try:
            # Tried on the side first: half a pair, as a renewal leaves it for a moment, must not get into service.
            self._fresh()
            self._load(self.context)
        except InputError as error:
            _log.warning("the renewed certificate cannot be used, the old one stays", error=str(error))
            return False
        _log.info("certificate renewed", file=str(self._certificate))
        return True


def server_tls(settings: ApiSettings) -> ServerTls | None:
    """What `settings` ask for; None for plain HTTP."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return ServerTls(settings.tls_certificate, settings.tls_key, settings.client_ca)


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """DNS names and URIs of a verified client certificate, else its common name.

    `certificate` is what `ssl.SSLSocket.getpeercert` returns. As for servers (RFC 9525), the common name counts only
    where there is no alternative name.
    """
    alternative = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in {"DNS", "URI"}]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(alternative or map(str, common))
