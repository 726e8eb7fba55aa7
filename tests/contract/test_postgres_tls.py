"""The way to a real PostgreSQL by TLS: whom a brain trusts, and what it says where it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.postgres import schema
from tocsin.journal.postgres.connections import CellDatabase, DatabaseRefused
from tocsin.journal.postgres.journal import PostgresJournal
from tocsin_testing import servers
from tocsin_testing.builders import T0
from tocsin_testing.journals import leased

pytestmark = pytest.mark.server


@dataclass(frozen=True)
class Site:
    """A server that takes TLS alone, the authority of its certificate, and another one."""

    url: str
    authority: Path
    other: Path

    def trusting(self, authority: Path, mode: str = "verify-full") -> str:
        return f"{self.url}?sslmode={mode}&sslrootcert={authority}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("authorities")
    paths = []
    for name in ("authority", "other"):
        made = trustme.CA()
        paths.append(folder / f"{name}.pem")
        made.cert_pem.write_to_path(str(paths[-1]))
        if name == "authority":
            leaf = made.issue_cert("127.0.0.1")
    certificate, key = b"".join(one.bytes() for one in leaf.cert_chain_pems), leaf.private_key_pem.bytes()
    with servers.postgres() as server:
        server.stop()
        server.encrypt(certificate, key)
        server.start()
        yield Site(server.url, *paths)


def verify(url: str) -> subprocess.CompletedProcess[str]:
    """`tocsin journal verify` over the journal at `url`."""
    wanted = {"TOCSIN_JOURNAL__URL": url, "TOCSIN_JOURNAL__CELL": "tls"}
    command = [sys.executable, "-m", "tocsin.cli", "journal", "verify"]
    return subprocess.run(command, env=os.environ | wanted, capture_output=True, text=True, check=False, timeout=60)


def test_a_journal_is_kept_over_a_connection_that_is_encrypted_and_checked(site: Site) -> None:
    database = CellDatabase(site.trusting(site.authority), "tocsin_tls")
    schema.prepare(database)
    journal = PostgresJournal.open(database, ManualClock(T0), leased(database))
    journal.append(EntryKind.PAUSE, {"reason": "trial"})
    with closing(database.line()) as line:
        assert line.ask("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(True, "TLSv1.3")]
    journal.lease.release()
    journal.close()
    database.close()
    assert verify(site.trusting(site.authority)).returncode == 0


def test_a_certificate_of_another_authority_is_refused_in_one_error(site: Site) -> None:
    database = CellDatabase(site.trusting(site.other), "tocsin_tls")
    with pytest.raises(DatabaseRefused, match=r"not trusted: .*certificate verify failed; sslrootcert"):
        schema.prepare(database)
    found = verify(site.trusting(site.other))
    assert (found.returncode, found.stdout, len(found.stderr.splitlines())) == (3, "", 1)
    assert "certificate verify failed; sslrootcert in journal.url must name the authority" in found.stderr
    assert "only-on-loopback" not in found.stderr, "the password"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (lambda site: site.trusting(site.authority).replace("127.0.0.1", "localhost"), "does not match host name"),
        (lambda site: site.trusting(Path("/nowhere.pem")), "root certificate file"),
    ],
)
def test_another_host_and_no_authority_are_refused(site: Site, url: object, said: str) -> None:
    with pytest.raises(DatabaseRefused, match=said):
        schema.prepare(CellDatabase(url(site), "tocsin_tls"))  # type: ignore[operator]


def test_the_server_takes_nothing_in_the_clear(site: Site) -> None:
    assert "no encryption" in verify(f"{site.url}?sslmode=disable").stderr
