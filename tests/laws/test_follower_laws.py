"""Laws of every follower: a new one is one more factory in `tocsin_testing.followers`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tocsin.domain.clock import ManualClock
from tocsin.plugins import Kind, load, plugins
from tocsin.runtime.brain.brain import Brain
from tocsin.runtime.brain.follower import MAX_REST_SECONDS, Follower
from tocsin_testing.builders import T0
from tocsin_testing.followers import NAMES, Followed, followed, plain_brain

NONSENSE = [
    b"",
    b"\x00\xff" * 500,
    b"<html>log in first</html>",
    b"[" * 100_000,
    b'{"status":"success","data":' + b'{"a":' * 50_000,
    b'{"status":"success","data":null}',
    b'{"status":"success","data":{"resultType":"matrix","result":[[1,2],{"metric":7,"values":"x"}]}}',
    b'{"status":"success","data":["DCGM_FI_DEV_GPU_TEMP", 7, null, {}]}',
    b'[null, 7, "s", {"id": {}, "matchers": [null], "endsAt": "9999999-01-01"}]',
    json.dumps([{"id": "x", "status": {"state": "active"}, "matchers": "all", "endsAt": 1e400}]).encode(),
    b"GPU-1 node-1 nan " + b"9" * 400,
    b"a" * 1_000_000,
]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def one(name: str, tmp_path: Path) -> Iterator[Followed]:
    made = followed(name, tmp_path)
    yield made
    made.close()


def metrics(one: Followed) -> str:
    return generate_latest(one.brain.metrics.registry).decode()


def test_it_has_the_name_that_the_registry_knows(one: Followed, name: str) -> None:
    assert set(NAMES) == set(plugins(Kind.FOLLOWER))
    assert one.follower.name == name
    assert one.follower.every_seconds > 0
    assert {type(one.follower.on_standby), type(one.follower.before_start)} == {bool}


def test_without_a_server_in_the_settings_there_is_none(name: str, tmp_path: Path) -> None:
    running = plain_brain(tmp_path, ManualClock(T0))
    opened: Callable[[Brain], Follower | None] = load(Kind.FOLLOWER, name, "follower")
    assert opened(running.brain) is None
    assert name not in {thread.name for thread in running.threads}
    running.stop()


def test_what_is_there_is_brought_once(one: Followed) -> None:
    every = one.follower.every_seconds
    empty = one.has()
    one.show()
    one.look(every)
    brought = one.has()
    assert brought != empty
    for _ in range(3):
        one.look(every / 10)
    assert one.has() == brought
    one.show()
    one.look(every)
    assert one.has() != brought


def test_a_look_writes_nothing_into_the_journal(one: Followed) -> None:
    before = one.brain.journal.head
    for _ in range(3):
        one.show()
        one.look(one.follower.every_seconds)
    assert one.brain.journal.head == before


def test_a_server_that_is_away_is_counted_said_once_and_costs_nothing_that_is_there(one: Followed) -> None:
    one.show()
    one.look(one.follower.every_seconds)
    had, before = one.has(), metrics(one)
    one.server.away = True
    with capture_logs() as said:
        one.look(one.follower.every_seconds)
        assert one.has() == had
        assert metrics(one) != before
        for _ in range(20):
            one.look(one.follower.every_seconds)
    assert len([line for line in said if line["log_level"] in ("warning", "error")]) <= 1


def test_it_is_asked_less_often_while_it_is_away_and_taken_up_again_within_a_minute(one: Followed) -> None:
    one.server.away = True
    before = one.server.asked
    for _ in range(40):
        one.look(one.follower.every_seconds)
    assert one.server.asked - before <= 20
    one.server.away = False
    one.show()
    had = one.has()
    one.look(MAX_REST_SECONDS)
    assert one.has() != had


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda body: repr(body[:24]))
def test_what_a_server_says_is_a_strangers_word(one: Followed, nonsense: bytes) -> None:
    one.server.nonsense = nonsense
    had = one.has()
    for _ in range(3):
        assert one.look(one.follower.every_seconds) < 5, "CPU seconds"
    assert one.has() == had
    one.brain.tick()
    one.server.nonsense = None
    one.show()
    one.look(MAX_REST_SECONDS)
    assert one.has() != had


def test_it_can_be_closed_twice(one: Followed) -> None:
    one.look(1)
    one.follower.close()
    one.follower.close()
