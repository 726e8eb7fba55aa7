"""A real OpenLDAP server of our own: people, groups and TLS, on loopback ports, with its files in a folder."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme

from tocsin_testing import needs
from tocsin_testing.servers import free_port

SUFFIX = "dc=example,dc=org"
ADMIN = f"cn=reader,{SUFFIX}"
ADMIN_PASSWORD = "reader's own password"  # of a server that lives for one test
PASSWORDS = {"anna": "anna's päss=word", "olga": "olga*)(uid=*", "vera": "vera\\2a"}

_CONFIG = """include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
argsfile {folder}/slapd.args
TLSCACertificateFile {folder}/ca.pem
TLSCertificateFile {folder}/server.pem
TLSCertificateKeyFile {folder}/server.key
require none
# Old servers take a bind without a password for an anonymous one: ours does too, so that the trap is there.
allow bind_anon_dn bind_anon_cred
database mdb
maxsize 16777216
suffix "{suffix}"
rootdn "{admin}"
rootpw "{password}"
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by anonymous {anonymous}
"""

_TREE = """dn: {suffix}
objectClass: dcObject
objectClass: organization
dc: example
o: Example

dn: ou=people,{suffix}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{suffix}
objectClass: organizationalUnit
ou: groups
"""


@dataclass(frozen=True)
class Directory:
    """Where it listens, and the CA of its certificate."""

    ldap: str
    ldaps: str
    ca: Path


def _person(name: str, password: str) -> str:
    # Non-ASCII text of LDIF is base64; slapadd takes a password as it is, in the clear.
    import base64

    coded = base64.b64encode(password.encode()).decode()
    dn = f"uid={name},ou=people,{SUFFIX}"
    return f"\ndn: {dn}\nobjectClass: inetOrgPerson\nuid: {name}\ncn: {name}\nsn: {name}\nuserPassword:: {coded}\n"


def _group(name: str, *members: str) -> str:
    listed = "".join(f"member: uid={member},ou=people,{SUFFIX}\n" for member in members)
    return f"\ndn: cn={name},ou=groups,{SUFFIX}\nobjectClass: groupOfNames\ncn: {name}\n{listed}"


@contextlib.contextmanager
def slapd(folder: Path, *, anonymous: str = "none") -> Iterator[Directory]:
    """A directory with `PASSWORDS`; anna is in gpu-admins, olga in train-ops and staff, vera in nothing that counts."""
    program = needs.program("slapd", "slapd")
    adder = needs.program("slapadd", "slapd")
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    (folder / "server.key").write_bytes(made.private_key_pem.bytes())
    (folder / "server.pem").write_bytes(made.cert_chain_pems[0].bytes())
    (folder / "data").mkdir()
    config = folder / "slapd.conf"
    config.write_text(
        _CONFIG.format(folder=folder, suffix=SUFFIX, admin=ADMIN, password=ADMIN_PASSWORD, anonymous=anonymous)
    )
    people = "".join(_person(name, password) for name, password in PASSWORDS.items())
    groups = _group("gpu-admins", "anna") + _group("train-ops", "olga") + _group("staff", "olga", "anna")
    tree = folder / "tree.ldif"
    tree.write_text(_TREE.format(suffix=SUFFIX) + people + groups + _group("cooks", "vera"))
    subprocess.run([adder, "-f", str(config), "-l", str(tree)], check=True, capture_output=True, timeout=60)
    plain, secure = f"ldap://127.0.0.1:{free_port()}", f"ldaps://127.0.0.1:{free_port()}"
    log = folder / "slapd.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, "-f", str(config), "-h", f"{plain} {secure}", "-d", "0"], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _wait(plain, process, log)
        yield Directory(plain, secure, folder / "ca.pem")
    finally:
        process.terminate()
        process.wait(20)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 30.0) -> None:
    """Until a real bind works."""
    import ldap

    deadline, never = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < deadline and process.poll() is None:
        connection = ldap.initialize(url)
        try:
            connection.simple_bind_s(ADMIN, ADMIN_PASSWORD)
            return
        except ldap.SERVER_DOWN:
            never.wait(0.05)
        finally:
            connection.unbind_s()
    raise RuntimeError(f"slapd did not become ready:\n{log.read_text()[-4000:]}")
