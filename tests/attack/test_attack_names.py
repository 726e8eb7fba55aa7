"""Names that nodes send cost who reads no more than their bytes do."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.api.tenancy import STRUCK, Names
from tocsin.domain.batch import Batch
from tocsin.domain.entry import Entry
from tocsin.domain.names_in_text import NameFinder
from tocsin.domain.reading import MOST_OWNERS, Gpu, Owner, Reading, owners_text, read_owners
from tocsin.journal.page import SERVICE
from tocsin.queries import cache
from tocsin.queries.evidence_privacy import Screen, words_of
from tocsin.queries.service import BrainService
from tocsin.store.line_protocol.decode import decode
from tocsin_testing.builders import T0
from tocsin_testing.growth import MOST, growth
from tocsin_testing.lone_brain import lone_brain

HARD = {
    "no name in it": (lambda n: f"{n} 2f", "a "),
    "the first word of all": (lambda n: f"a {n:x}y", "a "),
    "names that go on": (lambda n: "a " * (n % 60) + f"{n}", "a "),
    "names that overlap": (lambda n: "a b " * (n % 20 + 1) + f"a {n}", "a b "),
    "signs alone around": (lambda n: f"({n}", "(("),
}
"""Names by their number, and what a text is made of."""


class Counted(dict[int, int]):
    """Counts how often it is asked."""

    asked = 0

    def get(self, key: int, otherwise: Any = None) -> Any:
        self.asked += 1
        return super().get(key, otherwise)


@pytest.mark.parametrize("kind", HARD)
def test_what_a_text_takes_grows_with_its_letters_whoever_chose_the_names(kind: str) -> None:
    name, piece = HARD[kind]
    for count, text in ((10, piece * 100), (3_000, piece * 5_000)):
        finder = NameFinder(name(n) for n in range(count))
        finder._next = asked = Counted(finder._next)
        finder.replaced(text, STRUCK)
        assert asked.asked <= 2 * len(text)


@pytest.mark.parametrize("kind", HARD)
def test_a_tenants_answer_takes_what_its_bytes_and_the_names_bytes_take(kind: str) -> None:
    """Before: one expression of all names tried each of them at each letter."""
    name, piece = HARD[kind]

    def made(size: int) -> tuple[set[str], str]:
        return {name(n) for n in range(size)}, piece * (20 * size)

    def read(given: tuple[set[str], str]) -> str:
        return Names.of(given[0], set(), frozenset()).struck(given[1])

    assert growth(made, read, 250) < MOST


@pytest.mark.parametrize("piece", ["a.", "host-1.x."])
def test_a_word_of_dots_takes_what_its_letters_take(piece: str) -> None:
    """Before: all of its beginnings were made at once, 384 MB of a word of 40 KB."""
    names = Names.of({"node-b"}, set(), frozenset())
    assert growth(lambda size: piece * size, names.struck, 1_500) < MOST


@pytest.mark.parametrize("length", [1, 253, 254, 1_000])
def test_a_dotted_name_is_struck_where_it_begins_a_word_of_any_length(length: int) -> None:
    name = "b." * (length // 2) + "b"
    names = Names.of({name, "node-b"}, set(), frozenset())
    for word in (name, f"{name}.example", f"{name}.a" * 50, "a." * 2_000 + "node-b"):
        assert names.struck(f"on {word}, since") == f"on {STRUCK}, since"
    assert names.struck("a." * 2_000 + "node-bb") == "a." * 2_000 + "node-bb"


def test_evidence_without_owners_takes_what_its_bytes_and_the_names_bytes_take() -> None:
    """Before: each name was looked for in each entry."""

    def made(size: int) -> tuple[list[Owner], Entry]:
        entry = Entry(1, 1, T0, "finding_opened", SERVICE, {"sentence": "x " * (200 * size)}, False, "", "")
        return [Owner(n, user=f"y {n:x}") for n in range(size)], entry

    def screened(given: tuple[list[Owner], Entry]) -> str:
        return Screen(False, NameFinder(words_of(given[0]))).against_entry(given[1])

    assert [screened((owners, made(1)[1])) for owners in ([], [Owner(1, user="x")], [Owner(1, user="x x")])] == [
        "", "", "names owners",
    ]  # fmt: skip
    assert growth(made, screened, 300) < MOST


def test_no_owner_has_a_name_without_end_and_no_gpu_owners_without_end(tmp_path: Path) -> None:
    """Before: what one line said of one process could have 256 KB, and a line thousands of processes."""
    owners = [{"pid": n, "user": f"{n} " + "x" * 100} for n in range(1_500)]
    owners[0] |= {"namespace": "n" * 5_000, "pod": "p" * 253, "process": "c" * 254}
    text = json.dumps(owners).replace('"', r"\"")
    decoded = decode(f'gpu_owner,gpu_uuid=GPU-1,host=node-a owners="{text}" {T0}', precision="ms", now_ms=T0)
    assert decoded.warnings == ["476 owners of GPU-1 are more than 1024, dropped; send those that use it"]
    with lone_brain(tmp_path) as running:
        running.brain.accept(decoded.batch)
        (kept,) = running.brain.memory.latest()
        assert len(kept.owners) == MOST_OWNERS
        assert kept.owners[0] == Owner(0, "c" * 253, pod="p" * 253, namespace="n" * 253, user="0 " + "x" * 100)
        assert running.brain.metrics.value("tocsin_dropped_total", what="owner", reason="owners_per_gpu") == 476


@given(st.lists(st.text(max_size=300) | st.integers(0, 9_999).map(lambda n: "x" * n), min_size=7, max_size=7))
def test_an_owner_is_the_same_however_often_it_is_written_and_read(texts: list[str]) -> None:
    owner = Owner(1, *texts)
    assert all(len(getattr(owner, one.name)) <= 253 for one in fields(Owner) if one.name != "pid")
    assert read_owners(owners_text([owner])) == (owner,)


letters = st.text("aB .é_-(", min_size=1, max_size=6)


@given(st.sets(letters, min_size=1, max_size=6), st.text("aB .é_-(", max_size=30))
def test_every_name_that_stands_as_words_is_found(names: set[str], text: str) -> None:
    """The same as one expression of them all, which is slow and plain."""
    shape = [
        (r"(?<![^\W_])" if one[0].isalnum() else "") + re.escape(one) + (r"(?![^\W_])" if one[-1].isalnum() else "")
        for one in names
    ]
    finder = NameFinder(names)
    taken = set[int]()
    for one in shape:
        for found in re.finditer(f"(?=({one}))", text, re.IGNORECASE):
            taken.update(range(found.start(1), found.end(1)))
    left = "".join(letter for place, letter in enumerate(text) if place not in taken)
    assert finder.replaced(text, "") == left
    assert finder.is_in(text) is bool(taken)


@given(st.sets(letters, max_size=6), st.sets(letters, max_size=3), st.text("aB .é_-(", max_size=30))
def test_names_made_once_for_all_tenants_strike_what_those_of_one_tenant_would(
    names: set[str], own: set[str], text: str
) -> None:
    finder = NameFinder(names)
    mine = {one.casefold() for one in own}
    alone = NameFinder(one for one in names if one.casefold() not in mine)
    assert finder.replaced(text, "*", finder.states(own)) == alone.replaced(text, "*")
    fleet, others = Names.of(names, (), ()), {one for one in names if one.casefold() not in mine}
    assert fleet.without(own).struck(text) == Names.of(others, (), ()).struck(text)


def test_names_of_a_tenants_own_that_end_in_each_other_take_what_the_text_takes() -> None:
    """Each is left, and its ends are looked at once, not at every place."""
    own = {"-a" * n + "-a" for n in range(100)}
    finder = NameFinder({*own, "-b"})
    left = finder.states(own)
    finder._fails = asked = CountedFails(finder._fails)  # type: ignore[assignment]
    text = "-a" * 5_000
    assert finder.replaced(text, STRUCK, left) == text
    assert asked.asked <= 10 * len(text)


class CountedFails(list[int]):
    """Counts how often it is asked."""

    asked = 0

    def __getitem__(self, key: Any) -> Any:
        self.asked += 1
        return super().__getitem__(key)


def test_names_are_made_once_for_all_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: each of more than 64 tenants had all names of the fleet gone through at each request, and 64 had a copy
    each."""
    monkeypatch.setattr(cache, "QUICK_S", -1.0)
    monkeypatch.setattr(cache, "TIMES", 1e9)
    with lone_brain(tmp_path) as running:
        gpus = [Gpu(f"GPU-{n}", f"host-{n}") for n in range(100)]
        running.brain.accept(
            Batch(
                readings=[Reading(one, T0, {}, owners=(Owner(1, pod="p", namespace=f"ns-{one.host}"),)) for one in gpus]
            )
        )
        service, made = BrainService(running.brain), list[object]()
        of = Names.of

        def counted(*given: Any) -> Names:
            made.append(given)
            return of(*given)

        monkeypatch.setattr(Names, "of", counted)
        for one in gpus:
            names = service.names_of_others(frozenset({f"ns-{one.host}"}), frozenset())
            told = names.struck(f"{one.host} ns-{one.host} host-x {one.uuid} ns-host-200 GPU-101")
            assert told == f"{one.host} ns-{one.host} host-x {one.uuid} ns-host-200 GPU-101"
            assert names.struck("host-3 host-4").count(STRUCK) == 2 - (one.host in {"host-3", "host-4"})
        assert len(made) == 1


@pytest.mark.parametrize("odd", ["a\0b", "a\x1b[2J", "a\x7f", "a\x9bm"])
@pytest.mark.parametrize(
    "line",
    [
        "gpu,gpu_uuid=GPU-{},host=node-1 temperature_celsius=40",
        "gpu,gpu_uuid=GPU-1,host={} temperature_celsius=40",
        "gpu_missing,gpu_uuid=GPU-1,host={} temperature_celsius=1i",
        'gpu_info,gpu_uuid=GPU-1,host=node-1 pool="{}"',
        'gpu_info,gpu_uuid=GPU-1,host=node-1 labels="{{\\"zone\\":\\"{}\\"}}"',
        'gpu_owner,gpu_uuid=GPU-1,host={} owners="[]"',
        'gpu_event,kind=xid,gpu_uuid=GPU-1,host={} code="79"',
    ],
)
def test_no_name_has_control_characters(line: str, odd: str) -> None:
    """Before: a zero byte in the name of a pool kept a cell from telling the others of itself, for good."""
    shown = json.dumps(odd)[1:-1].replace("\\", "\\\\") if "labels" in line else odd
    found = decode(f"{line.format(shown)} {T0}\n{line.format('plain')} {T0}\n", now_ms=T0)
    assert [bad.number for bad in found.rejected] == [1]
    assert "control character" in found.rejected[0].problem
    assert found.batch.readings or found.batch.events
