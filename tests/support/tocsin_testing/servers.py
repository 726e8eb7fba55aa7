"""Real servers from Debian packages on free ports of the loopback address."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tocsin_testing import needs


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 30.0) -> None:
    """Poll `url` until it answers 200; fail with the log where the process ends or the time runs out."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(url, timeout=2.0).status_code == 200:
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
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


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
