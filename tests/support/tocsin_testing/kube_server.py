"""A real API server with its controllers and its scheduler, for the contract tests of Kubernetes.

The folder that ``TOCSIN_TEST_KUBERNETES_BIN`` names has `kube-apiserver`, `kube-controller-manager` and
`kube-scheduler`; `etcd` is installed. There is no kubelet and no network of pods. Debian 12's source package
`kubernetes` (1.20.2, its dependencies are in it) makes them with golang-1.19: ``make WHAT=cmd/kube-apiserver``.

``python -m tocsin_testing.kube_server COMMAND`` runs a command beside it, which finds its kubeconfig by
``TOCSIN_TEST_KUBECONFIG``; without a command it prints the path of that file and serves until it is interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tocsin.actions.kubernetes.api import ApiClient, KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.config.kubernetes import KubernetesSettings
from tocsin_testing.kube_site import REAL
from tocsin_testing.servers import end, free_port

PROGRAMS = "TOCSIN_TEST_KUBERNETES_BIN"
AUDIENCE = "https://kubernetes.default.svc"
STARTS_SECONDS = 120.0


class KubeServer:
    """One cluster on loopback ports, with its files in `folder`; its API server may be stopped and started again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._programs = programs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd, self._port = f"http://127.0.0.1:{free_port()}", free_port()
        self.url = f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start all of it, and wait until namespaces get their service accounts."""
        self._write_files()
        self._start_etcd()
        self.launch_apiserver()
        self.await_apiserver()
        self._start_controllers()
        with self.door() as door:
            self._until("kube-controller-manager", lambda: bool(door.ask("GET", _DEFAULT_ACCOUNT)))

    def launch_apiserver(self) -> None:
        """Start the API server, and do not wait for it."""
        self._start("kube-apiserver", self._apiserver_flags())

    def await_apiserver(self) -> None:
        """Wait until the API server serves an administrator."""
        with self.door() as door:
            self._until("kube-apiserver", lambda: bool(door.ask("GET", "/api/v1/namespaces/kube-system")))

    def stop_apiserver(self) -> None:
        self._stop("kube-apiserver")

    def stop(self) -> None:
        """Stop all of it."""
        for name in reversed(list(self._running)):
            self._stop(name)

    @contextlib.contextmanager
    def door(self) -> Iterator[ApiClient]:
        """An administrator's way in."""
        made = connect(KubernetesSettings(kubeconfig=self.kubeconfig))
        try:
            yield made
        finally:
            made.close()

    def _write_files(self) -> None:
        authority = trustme.CA()
        made = authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        made.private_key_pem.write_to_path(self.folder / "server.key")
        made.cert_chain_pems[0].write_to_path(self.folder / "server.pem")
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        signs = rsa.generate_private_key(65537, 2048)
        secret = signs.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / "accounts.key").write_bytes(secret)
        token = secrets.token_urlsafe(32)
        (self.folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": str(self.folder / "ca.pem")},
                }
            ],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        self.kubeconfig.write_text(json.dumps(content))
        for secret_file in ("server.key", "accounts.key", "tokens.csv", "kubeconfig"):
            (self.folder / secret_file).chmod(0o600)

    def _start_etcd(self) -> None:
        peers = f"http://127.0.0.1:{free_port()}"
        flags = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]
        self._start("etcd", flags)

    def _apiserver_flags(self) -> list[str]:
        folder = self.folder
        return [
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._port}",
            f"--tls-cert-file={folder / 'server.pem'}",
            f"--tls-private-key-file={folder / 'server.key'}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}",
            f"--service-account-issuer={AUDIENCE}",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            f"--api-audiences={AUDIENCE},tocsin",
            "--service-cluster-ip-range=10.96.0.0/24",
        ]

    def _start_controllers(self) -> None:
        known = f"--kubeconfig={self.kubeconfig}"
        alone = ["--bind-address=127.0.0.1", "--leader-elect=false"]
        served = [f"--secure-port={free_port()}", f"--cert-dir={self.folder / 'certificates'}"]
        accounts = ["--use-service-account-credentials", f"--root-ca-file={self.folder / 'ca.pem'}"]
        accounts.append(f"--service-account-private-key-file={self.folder / 'accounts.key'}")
        old = self._unserved_port("kube-controller-manager")
        self._start("kube-controller-manager", [known, *alone, *old, *served, *accounts])
        served = [f"--secure-port={free_port()}", f"--cert-dir={self.folder / 'certificates'}"]
        self._start("kube-scheduler", [known, *alone, *self._unserved_port("kube-scheduler"), *served])

    def _unserved_port(self, name: str) -> list[str]:
        """Before Kubernetes 1.24 each also serves a fixed port, without TLS, on all addresses, unless it is told not
        to."""
        said = subprocess.run([self._programs / name, "--help"], capture_output=True, text=True, timeout=30, check=True)
        return ["--port=0"] if " --port int " in said.stdout else []

    def _start(self, name: str, flags: list[str]) -> None:
        program = shutil.which("etcd") if name == "etcd" else str(self._programs / name)
        if program is None:
            raise RuntimeError("etcd is not installed; Debian package etcd-server has it")
        with self._log(name).open("ab") as out:
            self._running[name] = subprocess.Popen([program, *flags], stdout=out, stderr=subprocess.STDOUT)

    def _stop(self, name: str) -> None:
        end(self._running.pop(name), 20.0)

    def _until(self, name: str, ready: Callable[[], bool]) -> None:
        """Poll until `ready`; fail with the log of `name` where a process ends or the time runs out."""
        deadline, never = time.monotonic() + STARTS_SECONDS, threading.Event()
        while time.monotonic() < deadline and all(one.poll() is None for one in self._running.values()):
            with contextlib.suppress(KubeError):
                if ready():
                    return
            never.wait(0.1)
        ended = next((one for one, process in self._running.items() if process.poll() is not None), name)
        raise RuntimeError(f"{ended} did not become ready:\n{self._log(ended).read_text()[-4000:]}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


def programs() -> Path | None:
    """The folder of the servers; None where none is named."""
    named = os.environ.get(PROGRAMS)
    return Path(named) if named else None


@contextlib.contextmanager
def kube_server(folder: Path, found: Path) -> Iterator[KubeServer]:
    """A cluster of the programs in `found` until the block ends."""
    made = KubeServer(folder, found)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def main(command: list[str]) -> int:
    """Run `command` beside a cluster, else serve until somebody interrupts."""
    found = programs()
    if found is None:
        print(f"{PROGRAMS} names no folder with kube-apiserver, kube-controller-manager and kube-scheduler")
        return 2
    with tempfile.TemporaryDirectory(prefix="tocsin-kubernetes-") as folder, kube_server(Path(folder), found) as made:
        if command:
            return subprocess.run(command, env=os.environ | {REAL: str(made.kubeconfig)}, check=False).returncode
        print(made.kubeconfig, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
