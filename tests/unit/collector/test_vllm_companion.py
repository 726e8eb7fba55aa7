"""vLLM servers: their pages, their GPUs, and what happens when they do not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tocsin.collector.vllm import Server, VllmCompanion, behind_port, open_vllm, parse_entry, read_page
from tocsin.config.settings import AgentSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Missing, Owner, Reading, sanitise
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu

PAGES = Path(__file__).parents[2] / "data" / "vllm"
NEW = (PAGES / "metrics_v1.txt").read_text()
OLD = (PAGES / "metrics_v0.txt").read_text()
URL = "http://127.0.0.1:8000/metrics"


def test_engines_of_one_server_are_taken_together() -> None:
    assert read_page(NEW) == {
        "vllm_requests_running": 21.0,
        "vllm_requests_waiting": 3.0,
        "vllm_kv_cache_usage_ratio": 0.8125,
        "vllm_preemptions_total": 5.0,
        "vllm_prompt_tokens_total": 81920.0,
        "vllm_generation_tokens_total": 30720.0,
        "vllm_first_token_seconds_total": 5.5,
        "vllm_requests_finished_total": 36.0,
        "vllm_request_latency_seconds_total": 72.25,
    }


def test_older_names_are_known() -> None:
    assert read_page(OLD) == {
        "vllm_requests_running": 2.0,
        "vllm_requests_swapped": 1.0,
        "vllm_kv_cache_usage_ratio": 0.42,
    }


@pytest.mark.parametrize("text", ["", "<html></html>", "up 1\n", 'vllm:num_requests_running{a="} 1', NEW[:37] + "\0{"])
def test_what_is_no_such_page_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="page"):
        read_page(text)


@pytest.mark.parametrize(
    ("entry", "server"),
    [
        (URL, Server(URL)),
        ("http://vllm:8000", Server("http://vllm:8000/metrics")),
        ("http://vllm:8000/a?b=c", Server("http://vllm:8000/a?b=c")),
        (f"{URL}=GPU-AA11,MIG-bb22", Server(URL, ("aa11", "bb22"))),
    ],
)
def test_entries(entry: str, server: Server) -> None:
    assert parse_entry(entry) == server


@pytest.mark.parametrize("entry", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://a b"])
def test_entries_that_are_none(entry: str) -> None:
    with pytest.raises(InputError, match=r"agent\.vllm_urls"):
        parse_entry(entry)


Answer = Callable[[httpx2.Request], httpx2.Response]


class Node:
    """A companion over one server whose answer tests set."""

    def __init__(self, *servers: Server) -> None:
        self.answer: Answer = lambda request: httpx2.Response(200, text=NEW)
        self.clock = ManualClock(T0)
        self.own = OwnMetrics()
        self.pids: frozenset[int] = frozenset()
        self.looks = 0
        transport = httpx2.MockTransport(lambda request: self.answer(request))
        self.companion = VllmCompanion(
            servers or (Server(URL),), 10.0, self.clock, self.own, transport=transport, pids=self.look
        )

    def look(self, port: int) -> frozenset[int]:
        assert port == 8000
        self.looks += 1
        return self.pids

    def read(self, *readings: Reading) -> list[Reading]:
        return list(self.companion.enrich(Batch(list(readings)), self.clock.now_ms()).readings)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.companion.close()
    made.companion.close()


def plain(n: int = 0, **values: float) -> Reading:
    return Reading(gpu(n), T0, values)


def test_the_only_gpu_has_the_server(node: Node) -> None:
    node.companion.scrape()
    (found,) = node.read(plain(gpu_power_watts=1.0))
    assert found.values == {"gpu_power_watts": 1.0, **read_page(NEW)}
    assert sanitise(found)[1] == []
    assert all(METRICS[name].family == "serving" for name in read_page(NEW) | read_page(OLD))


def test_gpus_that_the_settings_name() -> None:
    node = Node(Server(URL, ("00000001",)))
    node.companion.scrape()
    first, second = node.read(plain(0), plain(1))
    assert not first.values
    assert second.values["vllm_requests_running"] == 21.0
    assert node.looks == 0
    node.companion.close()


def test_gpus_of_the_processes_behind_the_port(node: Node) -> None:
    node.pids = frozenset({70, 71, 72})
    node.companion.scrape()
    owned = Reading(gpu(2), T0, {}, owners=(Owner(72),))
    listed = Reading(gpu(1), T0, {variant("gpu_process_memory_used_bytes", "pid", "71"): 1.0})
    found = node.read(plain(0), listed, owned)
    assert ["vllm_requests_running" in reading.values for reading in found] == [False, True, True]
    node.clock.advance(59_000)
    node.companion.scrape()
    assert node.looks == 1
    node.clock.advance(1_000)
    node.companion.scrape()
    assert node.looks == 2


def test_a_server_without_a_gpu_is_counted(node: Node) -> None:
    node.companion.scrape()
    assert all(not reading.values for reading in node.read(plain(0), plain(1)))
    assert node.own.value("tocsin_vllm_scrapes_total", outcome="without_gpu") == 1


def refuse(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("answer", "reason", "outcome"),
    [
        (refuse, Missing.TIMED_OUT, "unreachable"),
        (lambda request: httpx2.Response(503), Missing.TIMED_OUT, "unreachable"),
        (lambda request: httpx2.Response(200, text="<html>"), Missing.BLANK, "unreadable"),
        (lambda request: httpx2.Response(200, content=b"x" * (9 << 20)), Missing.BLANK, "unreadable"),
    ],
)
def test_a_failed_scrape_is_missing_and_never_old(node: Node, answer: Answer, reason: Missing, outcome: str) -> None:
    node.companion.scrape()
    node.answer = answer
    node.companion.scrape()
    (found,) = node.read(plain())
    assert not found.values
    assert found.missing["vllm_kv_cache_usage_ratio"] is reason
    assert set(found.missing.values()) == {reason}
    assert node.own.value("tocsin_vllm_scrapes_total", outcome=outcome) == 1
    node.answer = lambda request: httpx2.Response(200, text=NEW)
    node.companion.scrape()
    (found,) = node.read(plain())
    assert not found.missing
    assert found.values


def test_a_scrape_grows_old(node: Node) -> None:
    node.companion.scrape()
    node.clock.advance(25_000)
    assert node.read(plain())[0].values
    node.clock.advance(1)
    (found,) = node.read(plain())
    assert not found.values
    assert set(found.missing.values()) == {Missing.TIMED_OUT}


def test_two_servers_on_one_gpu_add_up() -> None:
    node = Node(Server(URL), Server(URL + "2"))
    node.answer = lambda request: httpx2.Response(200, text=OLD if request.url.path.endswith("2") else NEW)
    node.companion.scrape()
    (found,) = node.read(plain())
    assert found.values["vllm_requests_running"] == 23.0
    assert found.values["vllm_kv_cache_usage_ratio"] == 0.8125
    node.companion.close()


def test_a_batch_is_left_alone_before_the_first_scrape(node: Node) -> None:
    batch = Batch([plain()])
    assert node.companion.enrich(batch, T0) is batch


def test_it_is_opened_by_settings() -> None:
    assert open_vllm(AgentSettings(), ManualClock(), OwnMetrics()) is None
    with pytest.raises(InputError):
        open_vllm(AgentSettings(vllm_urls=["nonsense"]), ManualClock(), OwnMetrics())


def test_a_listener_and_its_descendants_stand_behind_a_port(tmp_path: Path) -> None:
    line = "   0: 00000000:{port:04X} 00000000:0000 {state} 0:0 0:0 0 0 0 {inode} 1"
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        "\n".join(["head", line.format(port=8000, state="01", inode=1), line.format(port=8000, state="0A", inode=77)])
    )
    for pid, parent, held in [(1, 0, ""), (10, 1, "socket:[77]"), (11, 10, "socket:[1]"), (12, 11, ""), (13, 1, "/x")]:
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) (b) S {parent} 1 1")
        if held:
            (folder / "3").symlink_to(held)
    (tmp_path / "14").mkdir()
    assert behind_port(8000, tmp_path) == {10, 11, 12}
    assert behind_port(8001, tmp_path) == frozenset()
    assert behind_port(8000, tmp_path / "net") == frozenset()


def test_this_process_stands_behind_its_own_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert os.getpid() in behind_port(listener.getsockname()[1])
