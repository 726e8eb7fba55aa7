"""Batches that come at once are kept together, and each sender is told what became of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.errors import InputError
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.brain.taking import Taking
from tocsin.store.port import StoreUnavailable
from tocsin_testing.builders import T0

PATIENCE = 30.0


def batch(name: str) -> Batch:
    return Batch([Reading(Gpu(name, "h"), T0, {"gpu_power_watts": 1.0})])


class Store:
    """Keeps batches, each once `go` is set."""

    def __init__(self) -> None:
        self.kept: list[list[str]] = []
        self.go, self.begun = threading.Event(), threading.Event()

    def keep(self, one: Batch) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        names = [reading.gpu.uuid for reading in one.readings]
        if "bad" in names:
            raise InputError("bad", "bad", "is bad", "send another")
        self.kept.append(names)


def in_thread(work: Callable[[], None], errors: list[Exception]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except InputError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def one_taken(taking: Taking, one: Batch) -> None:
    (error,) = taking.take([one])
    if error is not None:
        raise error


def several(taking: Taking, store: Store, names: list[str]) -> tuple[list[threading.Thread], list[Exception]]:
    """One batch that is being kept, and `names` that came meanwhile, by name."""
    errors: list[Exception] = []
    threads = [in_thread(lambda: one_taken(taking, batch("first")), errors)]
    assert store.begun.wait(PATIENCE)
    for number, name in enumerate(names, start=1):
        threads.append(in_thread(lambda name=name: one_taken(taking, batch(name)), errors))  # type: ignore[misc]
        while len(taking._waiting) < number:
            threads[-1].join(0.001)
    return threads, errors


def ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_what_comes_while_another_is_kept_is_kept_together() -> None:
    store = Store()
    taking = Taking(store.keep)
    threads, errors = several(taking, store, ["a", "b", "c"])
    assert store.kept == []
    store.go.set()
    ended(threads)
    assert store.kept == [["first"], ["a", "b", "c"]]
    assert errors == []
    one_taken(taking, batch("last"))
    assert store.kept[-1] == ["last"]


def test_what_is_wrong_with_one_costs_no_other() -> None:
    store = Store()
    taking = Taking(store.keep)
    threads, errors = several(taking, store, ["a", "bad", "c"])
    store.go.set()
    ended(threads)
    assert store.kept == [["first"], ["a"], ["c"]]
    assert len(errors) == 1


def test_each_of_several_batches_has_its_own_outcome() -> None:
    store = Store()
    store.go.set()
    taking = Taking(store.keep)
    told = taking.take([batch("a"), batch("bad"), batch("c")])
    assert [type(error) for error in told] == [type(None), InputError, type(None)]
    assert store.kept == [["a"], ["c"]]
    assert taking.take([]) == []


def test_a_store_that_does_not_answer_is_asked_once_for_all() -> None:
    asked: list[int] = []

    def keep(one: Batch) -> None:
        asked.append(len(one.readings))
        raise StoreUnavailable("the store does not answer")

    told = Taking(keep).take([batch("a"), batch("b"), batch("c")])
    assert [type(error) for error in told] == [StoreUnavailable] * 3
    assert asked == [3]


def test_one_that_was_not_kept_is_not_taken_for_kept() -> None:
    def end(_batch: Batch) -> None:
        raise KeyboardInterrupt

    taking = Taking(end)
    with pytest.raises(KeyboardInterrupt):
        taking.take([batch("a")])
    assert not taking._busy
