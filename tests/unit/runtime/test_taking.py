"""Batches that come at once are kept together, and each sender is told what became of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.brain.taking import Taking
from tocsin_testing.builders import T0

PATIENCE = 30.0


def batch(name: str, *, event: bool = False) -> Batch:
    events = [Event(EventKind.XID, name, "h", T0, code=79)] if event else []
    return Batch([Reading(Gpu(name, "h"), T0, {"gpu_power_watts": 1.0})], events)


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


def several(taking: Taking, store: Store, names: list[str]) -> tuple[list[threading.Thread], list[Exception]]:
    """One batch that is being kept, and `names` that came meanwhile, by name."""
    errors: list[Exception] = []
    threads = [in_thread(lambda: taking.take(batch("first")), errors)]
    assert store.begun.wait(PATIENCE)
    for number, name in enumerate(names, start=1):
        threads.append(in_thread(lambda name=name: taking.take(batch(name)), errors))  # type: ignore[misc]
        while len(taking._waiting) < number:
            threads[-1].join(0.001)
    return threads, errors


def ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_what_comes_while_another_is_kept_is_kept_together() -> None:
    store = Store()
    taking = Taking(store.keep, lambda _hurry: None)
    threads, errors = several(taking, store, ["a", "b", "c"])
    assert store.kept == []
    store.go.set()
    ended(threads)
    assert store.kept == [["first"], ["a", "b", "c"]]
    assert errors == []
    taking.take(batch("last"))
    assert store.kept[-1] == ["last"]


def test_what_is_wrong_with_one_costs_no_other() -> None:
    store = Store()
    taking = Taking(store.keep, lambda _hurry: None)
    threads, errors = several(taking, store, ["a", "bad", "c"])
    store.go.set()
    ended(threads)
    assert store.kept == [["first"], ["a"], ["c"]]
    assert len(errors) == 1


def test_others_are_waited_for_only_after_several_came_at_once() -> None:
    store, paused = Store(), list[int]()
    taking = Taking(store.keep, lambda _hurry: paused.append(len(store.kept)))
    threads, _ = several(taking, store, ["a", "b"])
    store.go.set()
    ended(threads)
    assert paused == []
    taking.take(batch("alone"))
    assert paused == [2]
    taking.take(batch("alone"))
    assert paused == [2]


def test_an_event_holds_nobody_up() -> None:
    store, hurried = Store(), list[bool]()
    taking = Taking(store.keep, lambda hurry: hurried.append(hurry.is_set()))
    threads, _ = several(taking, store, ["a", "b"])
    store.go.set()
    ended(threads)
    taking.take(batch("with event", event=True))
    assert hurried == [True]


def test_one_that_was_not_kept_is_not_taken_for_kept() -> None:
    def end(_batch: Batch) -> None:
        raise KeyboardInterrupt

    taking = Taking(end)
    with pytest.raises(KeyboardInterrupt):
        taking.take(batch("a"))
    assert not taking._busy
