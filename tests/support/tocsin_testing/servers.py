"""Real servers from Debian packages on free ports of the loopback address."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tocsin_testing import needs


def free_port() -> int:
    """A port that was free a moment ago, below those that the kernel gives to connections and to servers on port 0.

    One that the kernel gave may belong to another test's connection by the time that its server starts.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # On a machine that gives out nearly all of them, one of those must do.
    below = range(16_384, first_given) if first_given > 20_000 else range(16_384, 61_000)
    for port in random.SystemRandom().sample(below, 100):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port of a hundred is free")


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 30.0) -> None:
    """Poll `url` until it answers 200; fail with the log where the process ends or the time runs out."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    # One client: each loads all certificates anew, more work than the start that it would wait for.
    with httpx2.Client(timeout=2.0) as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if client.get(url).status_code == 200:
                    return
            never.wait(0.05)
    raise RuntimeError(f"{url} did not become ready:\n{log.read_text()[-4000:]}")


@contextlib.contextmanager
def server(command: list[str], ready_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` until the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(ready_url, process, log)
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    """Terminate `process`; kill it where it has not ended after `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(seconds)


@contextlib.contextmanager
def victoria_metrics(folder: Path, *flags: str) -> Iterator[str]:
    """A VictoriaMetrics with further `flags`; yields its base URL."""
    port = free_port()
    command = [
        needs.program("victoria-metrics", "victoria-metrics"),
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=10y",
        "-search.latencyOffset=0s",
        "-loggerLevel=WARN",
        *flags,
    ]
    with server(command, f"http://127.0.0.1:{port}/health", folder / "victoria-metrics.log"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def prometheus(folder: Path, config: str) -> Iterator[str]:
    """A Prometheus with `config`; yields its base URL."""
    port = free_port()
    path = folder / "prometheus.yml"
    path.write_text(config)
    command = [
        needs.program("prometheus", "prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with server(command, f"http://127.0.0.1:{port}/-/ready", folder / "prometheus.log"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def alertmanager(folder: Path, config: str) -> Iterator[str]:
    """An Alertmanager with `config`; yields its base URL."""
    port = free_port()
    path = folder / "alertmanager.yml"
    path.write_text(config)
    command = [
        needs.program("prometheus-alertmanager", "prometheus-alertmanager"),
        f"--config.file={path}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with server(command, f"http://127.0.0.1:{port}/-/ready", folder / "alertmanager.log"):
        yield f"http://127.0.0.1:{port}"


_INFLUXDB_1 = """reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
[monitor]
store-enabled = false
[http]
bind-address = "127.0.0.1:{port}"
log-enabled = false
"""


@contextlib.contextmanager
def influxdb1(folder: Path) -> Iterator[str]:
    """An InfluxDB of release 1, which has no API of release 2; yields its base URL."""
    program = needs.program("influxd", "influxdb")
    port = free_port()
    path = folder / "influxdb.conf"
    path.write_text(_INFLUXDB_1.format(rpc=free_port(), port=port, folder=folder))
    ready = f"http://127.0.0.1:{port}/query?q=SHOW+DATABASES"
    with server([program, "-config", str(path)], ready, folder / "influxdb.log"):
        yield f"http://127.0.0.1:{port}"


_PG_BIN = Path("/usr/lib/postgresql")
_PG_PASSWORD = "only-on-loopback"


class Postgres:
    """A PostgreSQL of Debian's that may be killed and started again; it refuses to run as root, so it is nobody's."""

    def __init__(self, folder: Path) -> None:
        found = sorted(_PG_BIN.glob("*/bin/pg_ctl"))
        if not found:
            needs.lack("PostgreSQL is not installed; `make setup-servers` installs Debian package postgresql")
        self.programs = found[-1].parent
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://tocsin:{_PG_PASSWORD}@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Make the database cluster."""
        self.folder.chmod(0o777)
        (self.folder / "password").write_text(_PG_PASSWORD)
        (self.folder / "password").chmod(0o644)
        data, secret = self.folder / "data", self.folder / "password"
        self._run(f"{self.programs}/initdb -D {data} -U tocsin --auth=scram-sha-256 --pwfile={secret} -E UTF8 -N")

    def encrypt(self, certificate: bytes, key: bytes) -> None:
        """Show `certificate` to clients from the next start on, and take no connection without TLS."""
        data = self.folder / "data"
        for name, content in (("server.crt", certificate), ("server.key", key)):
            (self.folder / name).write_bytes(content)
            (self.folder / name).chmod(0o644)
            self._run(f"install -m 600 {self.folder}/{name} {data}/{name}")
        self._run(f"echo 'ssl = on' >> {data}/postgresql.conf; sed -i 's/^host /hostssl /' {data}/pg_hba.conf")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        flags = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
        log = self.folder / "log"
        self._run(f"{self.programs}/pg_ctl -D {self.folder}/data -w -t 60 -l {log} -o '{flags}' start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it; `immediate` is as a crash."""
        self._run(f"{self.programs}/pg_ctl -D {self.folder}/data -w -m {mode} stop")

    def _run(self, command: str) -> None:
        line = ["bash", "-c", command] if os.getuid() else ["su", "-s", "/bin/bash", "nobody", "-c", command]
        done = subprocess.run(line, capture_output=True, text=True, cwd="/", timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{command}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL; user tocsin may do anything in it. Its folder is none of pytest's, which only their owner reads."""
    with tempfile.TemporaryDirectory(prefix="tocsin-postgres-", dir="/tmp") as folder:
        made = Postgres(Path(folder))
        made.make()
        made.start()
        try:
            yield made
        finally:
            made.stop("immediate")
