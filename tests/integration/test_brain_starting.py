"""The port is open while a brain reads its files; the process is alive and not ready."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tocsin.api.starting import REASON
from tocsin.config.settings import Settings
from tocsin.domain.clock import SystemClock
from tocsin.journal.files import JournalBroken
from tocsin.journal.witness import NO_WITNESS
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import run_brain

PATIENCE = 60.0


def site(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "api": {"listen": "127.0.0.1:0"},
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False, "models": folder / "models"},
        }
    )


def test_it_says_that_it_starts_until_its_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, read, announced, stop = (threading.Event() for _ in range(4))
    servers: list[Any] = []
    real_open, real_server = assembly.open_brain, assembly.ApiServer

    def slow(*words: Any, **named: Any) -> Any:
        opening.set()
        assert read.wait(PATIENCE)
        return real_open(*words, **named)

    def server(*words: Any) -> Any:
        servers.append(real_server(*words))
        return servers[-1]

    monkeypatch.setattr(assembly, "open_brain", slow)
    monkeypatch.setattr(assembly, "ApiServer", server)
    thread = threading.Thread(
        target=run_brain, args=(site(tmp_path), SystemClock(), stop, lambda _line: announced.set()), daemon=True
    )
    thread.start()
    try:
        assert opening.wait(PATIENCE)
        with httpx2.Client(base_url=servers[0].url, timeout=PATIENCE) as client:
            assert client.get("/healthz").json()["status"] == "ok"
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"ready": False, "reasons": [REASON]})
            for answer in (client.get("/v1/decisions"), client.post("/v1/pause"), client.post("/api/v2/write")):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
                assert answer.json()["error"]["message"] == REASON
            read.set()
            assert announced.wait(PATIENCE)
            assert client.get("/v1/decisions").status_code == 200
    finally:
        read.set()
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_brain_that_cannot_open_its_files_leaves_no_port_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    real = assembly.ApiServer.start

    def started(server: Any) -> int:
        port = real(server)
        urls.append(server.url)
        return port

    monkeypatch.setattr(assembly.ApiServer, "start", started)

    def broken(*_words: Any, **_named: Any) -> Any:
        raise JournalBroken("entry 7 was edited")

    monkeypatch.setattr(assembly, "open_brain", broken)
    with pytest.raises(JournalBroken):
        run_brain(site(tmp_path), SystemClock(), threading.Event(), lambda _line: None)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{urls[0]}/healthz")


@pytest.mark.parametrize(("mode", "witness", "told"), [("act", False, 1), ("propose", False, 1), ("act", True, 0)])
def test_a_site_whose_journal_has_no_witness_is_told_at_the_start(
    tmp_path: Path, mode: str, witness: bool, told: int
) -> None:
    wanted = site(tmp_path).model_dump() | {"actions": {"mode": mode}}
    if witness:
        (tmp_path / "elsewhere").mkdir()
        wanted["journal"]["witness"] = tmp_path / "elsewhere" / "witness.json"
    said: list[str] = []
    stop = threading.Event()
    # What is said comes before the threads start; the end is asked for with the first line.
    run_brain(Settings.model_validate(wanted), SystemClock(), stop, lambda line: (said.append(line), stop.set())[0])
    assert said[0].startswith("api: ")
    assert said.count(NO_WITNESS) == told
