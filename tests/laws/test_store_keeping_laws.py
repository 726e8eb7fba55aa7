"""Laws of every store: what is left after a restart, a prune and a repeated `init`, and when many threads use it."""

from __future__ import annotations

import threading

import pytest

from tocsin.domain.batch import Batch
from tocsin_testing.builders import gpu, reading, xid
from tocsin_testing.law_words import FULL, T, attributes, everything, finding, put, times
from tocsin_testing.stores import Harness


def test_init_and_close_may_be_repeated(h: Harness) -> None:
    put(h, reading(at_ms=T, power_watts=1))
    h.store.init()
    assert len(list(h.store.latest(T))) == 1
    h.store.close()
    h.store.close()


def test_threads_write_and_read_at_once(h: Harness) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                put(h, reading(gpu(number), T + step, power_watts=step))
                assert list(h.store.latest(T))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(times(h)) == 20


def test_what_was_written_outlives_the_object(h: Harness) -> None:
    if h.reopen is None:
        pytest.skip("a store in memory ends with its process")
    put(h, reading(FULL, T, temperature_celsius=40), events=[xid(48, gpu(0), T)], findings=[finding(gpu(0), T, T)])
    h.store.close()
    again = h.reopen()
    try:
        assert [attributes(r.gpu) for r in again.readings(T, T + 1)] == [attributes(FULL)]
        assert (len(again.events(T, T + 1)), len(again.findings(T, T + 1))) == (1, 1)
    finally:
        again.close()


def test_prune_removes_what_is_older_and_nothing_else(h: Harness) -> None:
    put(h, *(reading(gpu(n), T + n, temperature_celsius=40) for n in range(3)), events=[xid(48, gpu(0), T)])
    put(h, events=[xid(48, gpu(0), T + 1)])
    removed = h.store.prune(T + 1)
    if not h.prunes:
        assert [r.at_ms - T for r in everything(h)] == [0, 1, 2], "readings are removed by the server's own retention"
        return
    assert removed == 2
    assert [event.at_ms - T for event in h.store.events(0, T + 10)] == [1]
    assert [r.at_ms - T for r in everything(h)] == [1, 2]
    assert [g.uuid[-1] for g in h.store.gpus()] == ["1", "2"]
    assert [r.gpu.uuid[-1] for r in h.store.latest(0)] == ["1", "2"]
    assert h.store.prune(T + 1) == 0


def test_an_empty_batch_is_taken(h: Harness) -> None:
    h.store.write(Batch())
    h.store.close()
