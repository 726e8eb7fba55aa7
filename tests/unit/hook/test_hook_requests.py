"""What the agent asks of a training process, from the asking to the outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.collector.training_hook.server import OUTCOMES_KEPT
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SECOND
from tocsin.domain.errors import Conflict, InputError, Unavailable
from tocsin.domain.reading import Gpu, Reading
from tocsin.hook.watch import WAITING
from tocsin_testing.builders import T0
from tocsin_testing.fake_torch import MIB, UUID, block, install, segment
from tocsin_testing.hook_pair import Pair, pair

HELD = [segment(block(60 * MIB, "active_allocated"), block(40 * MIB)), segment(block(100 * MIB))]
GPU = Gpu(f"GPU-{UUID}", "node-1", index=0)


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    install(monkeypatch, HELD)
    with pair(tmp_path) as made:
        made.settle()
        made.sample()
        yield made


def pid(both: Pair) -> int:
    return both.server.processes()[0].pid


def soon(both: Pair, seconds: int = 30) -> int:
    return both.clock.now_ms() + seconds * SECOND


def outcomes(both: Pair) -> list[tuple[str, str, str]]:
    return [(found.id, found.outcome, found.detail) for found in both.server.outcomes()]


def test_the_cache_is_emptied_at_the_end_of_a_step(both: Pair) -> None:
    name = both.server.request(pid(both), "empty_cache", soon(both))
    both.settle()
    assert outcomes(both) == []
    both.step()
    assert outcomes(both) == [(name, "done", f"{100 * MIB} bytes returned")]
    (found,) = both.server.outcomes()
    assert (found.kind, found.pid, found.at_ms) == ("empty_cache", pid(both), both.clock.now_ms())
    both.sample()
    assert both.server.processes()[0].stats.devices[0].figures["reserved"] == 100 * MIB
    assert both.own.value("tocsin_hook_requests_total", kind="empty_cache", outcome="done") == 1


def test_a_checkpoint_calls_the_script_s_functions_in_the_training_thread(both: Pair) -> None:
    called = []
    both.watch.orders.on_checkpoint = [lambda: called.append(1), lambda: both.clock.advance(2500)]
    name = both.server.request(pid(both), "checkpoint", soon(both))
    both.settle()
    assert called == []
    both.step()
    assert called == [1]
    (found,) = both.server.outcomes()
    assert (found.id, found.outcome, found.seconds) == (name, "done", 2.5)


def test_a_checkpoint_without_a_function_is_refused(both: Pair) -> None:
    name = both.server.request(pid(both), "checkpoint", soon(both))
    both.settle()
    assert outcomes(both) == [(name, "refused", "the script has registered no function with on_checkpoint")]


def test_what_a_function_raises_is_its_outcome(both: Pair) -> None:
    def full() -> None:
        raise OSError("No space left on device")

    both.watch.orders.on_checkpoint = [full]
    name = both.server.request(pid(both), "checkpoint", soon(both))
    both.settle()
    both.step()
    assert outcomes(both) == [(name, "failed", "OSError: No space left on device")]


def test_a_request_that_meets_no_step_expires(both: Pair) -> None:
    name = both.server.request(pid(both), "empty_cache", soon(both, 30))
    both.settle()
    both.clock.advance(29_999)
    both.settle()
    assert outcomes(both) == []
    both.clock.advance(1)
    both.settle()
    both.step()
    assert outcomes(both) == [(name, "expired", "no step ended in time")]


def test_a_process_that_goes_away_loses_its_requests(both: Pair) -> None:
    name = both.server.request(pid(both), "empty_cache", soon(both))
    both.watch.stop()
    both.server.turn(0)
    assert outcomes(both) == [(name, "lost", "the process has gone")]


def test_a_gpu_stands_for_the_processes_on_it(both: Pair) -> None:
    with pytest.raises(Unavailable, match="no process"):
        both.server.request(GPU.uuid, "empty_cache", soon(both))
    both.companion.enrich(Batch([Reading(GPU, T0, {})]), T0)
    name = both.server.request(GPU.uuid, "empty_cache", soon(both))
    both.settle()
    both.step()
    assert [found[:2] for found in outcomes(both)] == [(name, "done")]


def test_what_cannot_be_asked(both: Pair) -> None:
    with pytest.raises(InputError, match="empty_cache"):
        both.server.request(pid(both), "format_disk", soon(both))
    with pytest.raises(Conflict, match="expired"):
        both.server.request(pid(both), "empty_cache", both.clock.now_ms())
    with pytest.raises(Unavailable, match="no process"):
        both.server.request(1, "empty_cache", soon(both))
    assert both.server.outcomes() == []


def test_a_request_that_comes_twice_is_done_once(both: Pair) -> None:
    acknowledged = []
    orders = both.watch.orders
    orders._acknowledge = acknowledged.append
    orders.on_checkpoint = [lambda: called.append(1)]
    called: list[int] = []
    message = {"kind": "request", "id": "a", "do": "checkpoint", "expires_s": 60}
    for _ in range(3):
        orders.take(message)
    orders.carry_out()
    orders.take(message)
    orders.carry_out()
    assert called == [1]
    assert [found["outcome"] for found in acknowledged] == ["done", "done"]


@pytest.mark.parametrize(
    "message",
    [
        {"id": "a", "do": "rm", "expires_s": 60},
        {"id": "a", "do": ["checkpoint"], "expires_s": 60},
        {"id": "a", "expires_s": 60},
        {"id": "a", "do": "empty_cache"},
        {"id": "a", "do": "empty_cache", "expires_s": True},
        {"id": "a", "do": "empty_cache", "expires_s": "60"},
        {"id": "a", "do": "empty_cache", "expires_s": float("nan")},
        {"id": "a", "do": "empty_cache", "expires_s": -1},
    ],
)
def test_unknown_requests_are_refused(both: Pair, message: dict[str, object]) -> None:
    acknowledged: list[dict[str, object]] = []
    both.watch.orders._acknowledge = acknowledged.append
    both.watch.orders.take(message)
    assert [found["outcome"] for found in acknowledged] == ["refused"]
    both.watch.orders.carry_out()
    assert len(acknowledged) == 1


def test_no_more_than_a_few_requests_wait(both: Pair) -> None:
    answers: list[dict[str, object]] = []
    both.watch.orders._acknowledge = answers.append
    for n in range(WAITING + 2):
        both.watch.orders.take({"id": str(n), "do": "empty_cache", "expires_s": 60})
    assert [(found["id"], found["detail"]) for found in answers] == [
        (str(n), "too many requests wait") for n in (WAITING, WAITING + 1)
    ]
    both.watch.orders.carry_out()
    assert [found["outcome"] for found in answers] == ["refused"] * 2 + ["done"] * WAITING


def test_nothing_is_done_while_a_cuda_graph_is_recorded(both: Pair) -> None:
    fake = sys.modules["torch"]
    fake.cuda.capturing = True
    name = both.server.request(pid(both), "empty_cache", soon(both))
    both.settle()
    both.step(times=3)
    assert outcomes(both) == []
    assert fake.cuda.emptied == 0
    fake.cuda.capturing = False
    both.step()
    assert [found[:2] for found in outcomes(both)] == [(name, "done")]


def test_outcomes_are_bounded(both: Pair) -> None:
    for _ in range(OUTCOMES_KEPT + 10):
        both.server.request(pid(both), "checkpoint", soon(both))
        both.clock.advance(200)
        both.settle()
    assert len(both.server.outcomes()) == OUTCOMES_KEPT
