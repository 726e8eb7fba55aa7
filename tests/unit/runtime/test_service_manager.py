"""What systemd is told: by the classes, and by a running agent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.domain.clock import SystemClock
from tocsin.runtime.service_manager import ServiceManager, Watched


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The end of the socket at which systemd waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(30)
        yield sock


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), **more}


def told(sock: socket.socket) -> str:
    return sock.recv(1024).decode()


def silent(sock: socket.socket) -> bool:
    sock.settimeout(0.05)
    try:
        return not told(sock)
    except TimeoutError:
        return True


def test_without_a_service_manager_nothing_is_told_and_a_stop_is_waited_for() -> None:
    manager = ServiceManager({})
    assert manager.beat_seconds is None
    stop = threading.Event()
    stop.set()
    manager.stand_by(stop, lambda: 0)


@pytest.mark.parametrize(
    ("more", "beat"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "120000000"}, 30.0),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_signs_of_life_are_due_four_times_in_the_watchdogs_time(
    tmp_path: Path, more: dict[str, str], beat: float | None
) -> None:
    assert ServiceManager(environment(tmp_path, **more)).beat_seconds == beat


def test_a_socket_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    ServiceManager(environment(tmp_path)).ready()


def test_an_abstract_socket_is_reached() -> None:
    name = f"tocsin-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert told(sock) == "READY=1"


def test_a_loop_that_stands_is_not_called_alive(tmp_path: Path, systemd: socket.socket) -> None:
    manager = ServiceManager(environment(tmp_path, WATCHDOG_USEC="4000"))
    turns = iter([1, 2, 2, 2, 2])

    class Stops:
        """Ends after as many waits as there are turns."""

        def __init__(self) -> None:
            self.waits = 0

        def is_set(self) -> bool:
            return self.waits > 5

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            return self.is_set()

    manager.stand_by(Stops(), lambda: next(turns))
    assert [told(systemd) for _ in range(4)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]
    assert silent(systemd)


def test_who_waits_long_goes_on_being_alive(tmp_path: Path, systemd: socket.socket) -> None:
    manager = ServiceManager(environment(tmp_path, WATCHDOG_USEC="40000"))
    stop = threading.Event()
    watched = Watched(stop, manager, SystemClock())
    waiter = threading.Thread(target=watched.wait)
    waiter.start()
    assert [told(systemd) for _ in range(3)] == ["WATCHDOG=1"] * 3
    stop.set()
    waiter.join(10)
    assert watched.wait(0.01)
    assert watched.is_set()


def test_a_wait_ends_in_time_and_without_a_watchdog_is_the_stops_own(tmp_path: Path, systemd: socket.socket) -> None:
    for more in ({}, {"WATCHDOG_USEC": "40000"}):
        watched = Watched(threading.Event(), ServiceManager(environment(tmp_path, **more)), SystemClock())
        assert not watched.wait(0.02)


def test_a_running_agent_says_that_it_serves_lives_and_ends(tmp_path: Path, systemd: socket.socket) -> None:
    more = {
        "WATCHDOG_USEC": "400000",
        "TOCSIN_AGENT__LISTEN": "127.0.0.1:0",
        "TOCSIN_SIMULATION__GPUS": "8",
        "TOCSIN_AGENT__INTERVAL_SECONDS": "60",
    }
    command = [sys.executable, "-m", "tocsin.cli", "agent", "--source", "simulated"]
    process = subprocess.Popen(
        command, env={**os.environ, **environment(tmp_path, **more)}, cwd=tmp_path, stderr=subprocess.PIPE
    )
    try:
        assert [told(systemd) for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        process.terminate()
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said.decode()
    finally:
        process.kill()
    rest = []
    while not rest or rest[-1] != "STOPPING=1":
        rest.append(told(systemd))
    assert set(rest) <= {"WATCHDOG=1", "STOPPING=1"}
