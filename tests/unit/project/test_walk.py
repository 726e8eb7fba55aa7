"""What counts as a hop of a walk, and what is known as the thing that walks."""

from __future__ import annotations

import io
import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from tocsin_testing.walk import BASE, FAULT, READING, WALKS, WATTS, XID, Hop, Way, before_patch
from tocsin_testing.walk_trace import Markers, Tracer


@dataclass(frozen=True, slots=True)
class Report:
    kind: str
    code: int


class Shown(BaseModel):
    watts: float


class Service:
    """Has the thing, but is no data."""

    watts = WATTS


def test_a_hop_is_a_change_of_file_and_counts_once() -> None:
    way = Way()
    way.add([("a", "f"), ("a", "g"), ("b", "h")])
    way.add([("a", "f"), ("b", "i"), ("a", "g"), ("c", "j")])
    way.add([("d", "k")])
    assert way.hops == [Hop("a", "b", "h"), Hop("b", "a", "g"), Hop("a", "c", "j")]
    assert way.files == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "value",
    [
        WATTS,
        f"gpu power_watts={WATTS} 1",
        b"123.457,",
        "123 W",
        [{"a": ({1: WATTS},)}],
        np.array([1.0, WATTS]),
        Shown(watts=WATTS),
    ],
)
def test_a_reading_is_known_wherever_data_holds_it(value: object) -> None:
    assert Markers(**READING).within(value)


@pytest.mark.parametrize("value", [None, True, 123.0, "1123.457", "0123 W", [], Service(), Service, np.array(["x"])])
def test_what_does_not_hold_it_is_no_reading(value: object) -> None:
    assert not Markers(**READING).within(value)


def test_an_xid_is_known_by_kind_and_number_together() -> None:
    markers = Markers(**FAULT)
    assert markers.within([Report("xid", XID)])
    assert markers.within({"kind": "xid", "code": XID})
    assert markers.within(f"node-1 GPU 0: XID {XID}: ")
    assert not markers.within([Report("xid", 79), Report("sxid", XID), f"XID {XID}0"])


def test_a_call_is_noted_where_it_hands_the_thing_on(tmp_path: Path) -> None:
    package = tmp_path / "src" / "tocsin"
    package.mkdir(parents=True)
    code = "def ask(what):\n    return what() * 2\n\n\ndef look(value):\n    return value > 1\n"
    space: dict[str, object] = {}
    exec(compile(code, str(package / "one.py"), "exec"), space)
    out, before = io.StringIO(), sys.getprofile()
    tracer = Tracer(tmp_path, Markers(numbers=[84]), out)
    tracer.start()
    try:
        space["ask"](lambda: 42)  # type: ignore[operator]
        space["ask"](lambda: 42)  # type: ignore[operator]
        space["look"](84)  # type: ignore[operator]
        thread = threading.Thread(target=space["ask"], args=(lambda: 42,))  # type: ignore[arg-type]
        thread.start()
        thread.join()
    finally:
        tracer.stop()
        sys.setprofile(before)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    here, start, there = sorted(rows, key=lambda row: row["at"])
    assert here["stack"] == there["stack"] == [["src/tocsin/one.py", "ask"]]
    assert start["starts"] == there["thread"] != here["thread"]


def test_a_call_that_is_only_shown_the_thing_is_noted_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "src" / "tocsin").mkdir(parents=True)
    space: dict[str, object] = {}
    code = "def look(value, /, *more, key=0, **rest):\n    return None\n"
    exec(compile(code, str(tmp_path / "src" / "tocsin" / "one.py"), "exec"), space)
    out, before = io.StringIO(), sys.getprofile()
    for events, calls in ((["return"], 0), (["call", "return"], 1)):
        tracer = Tracer(tmp_path, Markers(numbers=[84]), out, events)
        tracer.start()
        try:
            space["look"](1, 2, key=3, other=84)  # type: ignore[operator]
            space["look"](1)  # type: ignore[operator]
        finally:
            tracer.stop()
            sys.setprofile(before)
        assert out.getvalue().count("look") == calls


def test_what_runs_beside_the_thread_that_sends_the_patch_is_no_part_of_the_walk() -> None:
    rows = [
        {"at": 1, "thread": "a", "stack": [["loop.py", "step"]]},
        {"at": 2, "thread": "a", "starts": "b"},
        {"at": 3, "thread": "a", "stack": [["notify.py", "tell"]]},
        {"at": 4, "thread": "b", "stack": [["kubernetes.py", "execute"]]},
    ]
    assert [row["at"] for row in before_patch(rows)] == [1, 4]


def test_the_figures_to_compare_with_are_there_for_every_walk() -> None:
    base = json.loads(BASE.read_text())
    assert base["walks"].keys() == WALKS.keys()
