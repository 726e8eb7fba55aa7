"""TLS of the API and of those who connect to it."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trustme
from pydantic import SecretStr, ValidationError

from tocsin.api.http_protocol import names_of
from tocsin.api.server import ApiServer, ServerTls
from tocsin.client.client import Client
from tocsin.client.errors import Denied
from tocsin.collector.spool import Spool
from tocsin.collector.uplink import PushTarget, Uplink
from tocsin.config.access import ApiSettings, Role, Token
from tocsin.domain.clock import SystemClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.http_client import ClientTls, client_context
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.fake_service import FakeService, serving

SECRET = "a-viewer-secret-0123"


class Papers:
    """A CA with a server's and an agent's certificate, and a CA that nobody trusts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own, self.foreign = trustme.CA(), trustme.CA()
        self.ca = folder / "ca.pem"
        self.own.cert_pem.write_to_path(self.ca)
        self.certificate, self.key = self.issue("server", "127.0.0.1", "localhost")

    def issue(self, name: str, *names: str, ca: trustme.CA | None = None, **more: str) -> tuple[Path, Path]:
        made = (ca or self.own).issue_cert(*names, **more)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        key.write_bytes(made.private_key_pem.bytes())
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return certificate, key

    def settings(self, **more: object) -> ApiSettings:
        token = Token(name="v", role=Role.VIEWER, secret=SecretStr(SECRET))
        return ApiSettings.model_validate(
            {
                "tokens": [token.model_dump()],
                "tls_certificate": self.certificate,
                "tls_key": self.key,
                "client_ca": self.ca,
                **more,
            }
        )


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def url(papers: Papers, service: FakeService) -> Iterator[str]:
    with serving(service, papers.settings()) as base:
        yield base


def agent(papers: Papers, name: str, *names: str, ca: trustme.CA | None = None, **more: str) -> ssl.SSLContext:
    return client_context(papers.ca, *papers.issue(name, *names, ca=ca, **more))


def test_the_newest_version_is_taken_and_1_2_still_works(papers: Papers, url: str) -> None:
    host, port = url.removeprefix("https://").split(":")
    versions = []
    for most in (ssl.TLSVersion.MAXIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_2):
        context = client_context(papers.ca)
        context.maximum_version = most
        with (
            socket.create_connection((host, int(port)), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname=host) as sock,
        ):
            cipher = sock.cipher()
            assert cipher is not None
            versions.append((sock.version(), "GCM" in cipher[0] or "CHACHA" in cipher[0]))
    assert versions == [("TLSv1.3", True), ("TLSv1.2", True)]


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """The version that both agree on. Raises SSLError where they agree on none."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return ours.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_1_1_is_refused(papers: Papers, url: str) -> None:
    old = client_context(papers.ca)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    permissive = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    permissive.set_ciphers("ALL:@SECLEVEL=0")
    permissive.minimum_version = ssl.TLSVersion.TLSv1_1
    permissive.load_cert_chain(papers.certificate, papers.key)
    # The client would, if a server did: it is ours that refuses.
    assert handshake(old, permissive) == "TLSv1.1"
    with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol"):
        handshake(old, ServerTls(papers.certificate, papers.key).context)
    host, port = url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw, server_hostname=host)


def test_plain_http_is_refused(url: str) -> None:
    with pytest.raises(httpx2.TransportError):
        httpx2.get(url.replace("https", "http") + "/healthz")


def test_a_client_checks_the_server(papers: Papers, url: str) -> None:
    with Client(url, SECRET, ca=papers.ca) as client:
        assert client.me().name == "v"
    with Client(url, SECRET) as client, pytest.raises(Unavailable, match="certificate verify failed"):
        client.me()
    named = url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{named}/healthz", verify=client_context(papers.ca))


def test_a_client_without_certificate_needs_a_token(papers: Papers, url: str) -> None:
    with Client(url, ca=papers.ca) as client, pytest.raises(Denied, match="send a token"):
        client.me()


def test_an_agent_s_certificate_makes_an_agent_of_its_node(papers: Papers, url: str, service: FakeService) -> None:
    context = agent(papers, "node-1", "node-1", common_name="another-name")
    with httpx2.Client(base_url=url, verify=context) as http:
        me = http.get("/v1/me").json()
        assert me == {"name": "cert:node-1", "role": "agent", "scopes": [], "hosts": ["node-1"]}
        assert http.get("/v1/fleet").status_code == 403
        own = http.post("/api/v2/write", content="gpu,gpu_uuid=GPU-n,host=node-1 power_watts=1 1")
        foreign = http.post("/api/v2/write", content="gpu,gpu_uuid=GPU-n,host=node-2 power_watts=1 1")
        assert own.status_code == 204
        assert foreign.json()["error"]["details"]["rejected"][0]["number"] == 1
        # A token that is sent as well decides: people on a node are no agents.
        assert http.get("/v1/me", headers={"Authorization": f"Bearer {SECRET}"}).json()["role"] == "viewer"


def test_a_certificate_of_an_unknown_ca_is_refused(papers: Papers, url: str) -> None:
    context = agent(papers, "stranger", "node-1", ca=papers.foreign)
    with httpx2.Client(base_url=url, verify=context) as http, pytest.raises(httpx2.TransportError):
        http.get("/v1/me")


def test_agents_may_be_let_write_for_any_node(papers: Papers) -> None:
    with serving(FakeService(), papers.settings(client_own_host=False)) as url:
        context = agent(papers, "node-9", "node-9")
        answer = httpx2.get(f"{url}/v1/me", verify=context).json()
    assert (answer["name"], answer["hosts"]) == ("cert:node-9", [])


def test_the_names_of_a_certificate() -> None:
    subject = ((("organizationName", "x"),), (("commonName", "cn"),))
    assert names_of({"subject": subject}) == ("cn",)
    alternative = (("DNS", "a"), ("URI", "spiffe://b"), ("IP Address", "10.0.0.1"))
    assert names_of({"subject": subject, "subjectAltName": alternative}) == ("a", "spiffe://b")
    assert names_of({}) == ()


def serial_of(url: str, papers: Papers) -> object:
    host, port = url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as raw,
        client_context(papers.ca).wrap_socket(raw, server_hostname=host) as sock,
    ):
        certificate = sock.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    settings = papers.settings()
    server = ApiServer(FakeService, settings=settings)  # type: ignore[arg-type]
    server.start()
    try:
        tls = server._tls
        assert tls is not None
        first = serial_of(server.url, papers)
        assert not tls.refresh()
        papers.issue("server", "127.0.0.1")
        assert tls.refresh()
        second = serial_of(server.url, papers)
        assert second != first
        papers.key.write_text("half a renewal")
        assert not tls.refresh()
        assert serial_of(server.url, papers) == second
        papers.issue("server", "127.0.0.1")
        assert tls.refresh()
        assert serial_of(server.url, papers) not in {first, second}
    finally:
        server.stop()


def test_the_running_server_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.api.server._TICKS_PER_LOOK", 1)
    papers = Papers(tmp_path)
    with serving(FakeService(), papers.settings()) as url:
        first = serial_of(url, papers)
        papers.issue("server", "127.0.0.1")
        # Each connection takes the server through its loop, where it looks ten times a second.
        assert any(serial_of(url, papers) != first for _ in range(2_000))


@pytest.mark.parametrize("broken", ["certificate", "key", "ca", "other_key", "encrypted"])
def test_files_that_cannot_be_used_are_named(papers: Papers, tmp_path: Path, broken: str) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    certificate, key, ca = papers.certificate, papers.key, papers.ca
    if broken == "certificate":
        certificate = junk
    elif broken == "key":
        key = tmp_path / "missing.key"
    elif broken == "ca":
        ca = junk
    elif broken == "other_key":
        _, key = papers.issue("other", "other")
    else:
        from cryptography.hazmat.primitives import serialization

        key = tmp_path / "encrypted.key"
        loaded = serialization.load_pem_private_key(papers.key.read_bytes(), None)
        key.write_bytes(
            loaded.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"a password"),
            )
        )
    with pytest.raises(InputError, match="cannot be used"):
        ServerTls(certificate, key, ca)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"tls_key": None}, "go together"), ({"tls_key": None, "tls_certificate": None}, "client_ca needs")],
)
def test_settings_that_belong_together(papers: Papers, change: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        papers.settings(**change)


def test_the_agent_s_uplink_shows_its_certificate_and_a_renewed_one(
    papers: Papers, url: str, service: FakeService, tmp_path: Path
) -> None:
    certificate, key = papers.issue("uplink", "node-7")
    tls = ClientTls(papers.ca, certificate, key)
    spool = Spool(tmp_path / "spool.db", 1024 * 1024, SystemClock())
    uplink = Uplink(spool, PushTarget(url, "o", "b", tls=tls), SystemClock(), OwnMetrics())
    try:
        line = "gpu,gpu_uuid=GPU-7,host=node-7 power_watts=1 1"
        spool.put(line + "\n", 1, 0)
        assert uplink.push() == 1
        assert line in service.lines
        os.utime(certificate, ns=(1, 1))
        key.write_text("junk")
        spool.put(line + "\n", 1, 0)
        assert uplink.push() == 1
        papers.issue("uplink", "node-7")
        spool.put(line + "\n", 1, 0)
        assert uplink.push() == 1
    finally:
        uplink.close()
        spool.close()


def test_an_unusable_ca_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        Client("https://127.0.0.1", ca=tmp_path / "none.pem")
