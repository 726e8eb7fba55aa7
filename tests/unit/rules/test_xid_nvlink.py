"""Words behind NVLink XIDs against their tables."""

from __future__ import annotations

from collections import Counter

import pytest

from tocsin.rules.xid_explain import WORDS
from tocsin.rules.xid_nvlink import decode, parse_words, register_bits, sub_codes


def test_the_table_is_complete_and_consistent() -> None:
    rows = sub_codes()
    assert Counter(row.xid for row in rows) == {144: 6, 145: 33, 146: 20, 147: 2, 148: 1, 149: 31, 150: 1}
    for row in rows:
        for pattern in (row.before_r575, row.from_r575):
            assert len(pattern) == 32
            assert set(pattern) <= set("01-")
        assert row.severity in ("non_fatal", "fatal", "link_fatal")
        assert row.side in ("hardware", "software", "hardware or software", "firmware", "")
        assert {row.immediate, row.investigate, row.second_action or "ignore"} <= set(WORDS)
        assert row.provenance == "catalogue"
    keys = [(row.xid, row.unit, row.before_r575, row.from_r575, row.error_status) for row in rows]
    assert len(keys) == len(set(keys))


def test_every_row_is_found_by_the_word_it_describes() -> None:
    for row in sub_codes():
        for pattern, driver in ((row.from_r575, 575), (row.before_r575, 570)):
            word = int(pattern.replace("-", "0"), 2)
            found = decode(row.xid, (word, row.error_status), unit=row.unit.split("/")[0], driver=driver)
            assert found is not None
            assert found.known
            assert row.unit in found.unit
            assert (found.immediate, found.severity) == (row.immediate, row.severity)
            assert found.layout == ("R575 on" if driver == 575 else "before R575")


@pytest.mark.parametrize(
    ("code", "word", "status", "unit", "expected"),
    [
        (149, 0x004505C6, 0, "NETIR_LINK_EVT", ("before R575", 4, "link_fatal", "reset_gpu", "investigate_link_si")),
        (
            149,
            0x021425C6,
            0,
            "NETIR_LINK_EVT",
            ("before R575", 33, "link_fatal", "reset_gpu", "investigate_peer_device"),
        ),
        (
            149,
            0x00086226,
            1,
            "NETIR_BER_EVENT",
            ("before R575", 0, "non_fatal", "ignore", "investigate_link_si_and_cables"),
        ),
        (149, 0x000FE406, 0, "NETIR", ("before R575", 0, "link_fatal", "reset_gpu", "sympathetic_report_solo")),
        (145, 0x0409A0C2, 8, "RLW_RXPIPE", ("before R575", 0, "non_fatal", "ignore", "contact_support")),
        (145, 0x040988E2, 8, "RLW_SRC_TRACK", ("before R575", 0, "non_fatal", "xid_154_eval", "ignore")),
        (144, 0x00000001, 2, "SAW_MVB", ("R575 on", 0, "fatal", "reset_gpu", "contact_support")),
        (149, 0x00400011, 0, "NETIR_LINK_EVT", ("R575 on", 4, "link_fatal", "reset_gpu", "investigate_link_si")),
    ],
)
def test_published_words(code: int, word: int, status: int, unit: str, expected: tuple[object, ...]) -> None:
    found = decode(code, (word, status), unit=unit)
    assert found is not None
    assert (found.layout, found.reason, found.severity, found.immediate, found.investigate) == expected


def test_the_driver_decides_where_a_word_could_be_either() -> None:
    assert decode(149, (0x00400011, 0), driver=570) is not None
    known = {driver: decode(149, (0x00400011, 0), driver=driver).known for driver in (570, 574, 575, 580)}  # type: ignore[union-attr]
    assert known == {570: False, 574: False, 575: True, 580: True}


def test_several_flags_are_judged_by_the_worst() -> None:
    found = decode(145, (0x00000004, 0x00000101), unit="RLW_REMAP")
    assert found is not None
    assert found.immediate == "xid_154_eval"
    found = decode(145, (0x00000004, 0x00000141), unit="RLW_REMAP")
    assert found is not None
    assert (found.immediate, found.severity) == ("reset_gpu", "fatal")


def test_what_no_row_has_is_said_to_be_unknown() -> None:
    found = decode(149, (0x03F00011, 0), unit="NETIR_LINK_EVT")
    assert found is not None
    assert (found.known, found.reason) == (False, 63)
    assert "not in the table" in found.sentence()
    stray = decode(148, (0xFFFFFFFF, 1))
    assert stray is not None
    assert not stray.known


@pytest.mark.parametrize("code", [79, 1, 143, 151])
def test_other_codes_have_no_sub_codes(code: int) -> None:
    assert decode(code, (1, 2)) is None


def test_no_words_say_nothing() -> None:
    assert decode(149, ()) is None
    assert decode(74, ()) is None


def test_the_registers_of_74_are_those_of_the_catalogue() -> None:
    rows = register_bits()
    assert {row.register for row in rows} == {1, 3, 4, 5}
    for register in (1, 3, 4, 5):
        bits = [bit for row in rows if row.register == register for bit in row.bits]
        assert len(bits) == len(set(bits))
        assert all(0 <= bit < 32 for bit in bits)
    assert {row.immediate for row in rows} | {row.investigate for row in rows} <= {*WORDS, ""}


@pytest.mark.parametrize(
    ("words", "immediate", "meaning"),
    [
        ((0, 0, 0x10000, 0, 0, 0, 0), "reset_gpu", "register 3: matters where it repeats"),
        ((1 << 23, 0, 0, 0, 0, 0, 0), "ignore", "register 1: can be ignored"),
        ((1 << 9, 0, 0, 0, 0, 0, 0), "check_mechanicals", "register 1: possibly hardware"),
        ((1 << 4 | 1 << 9, 0, 0, 0, 0, 0, 0), "reset_gpu", "register 1: memory or parity error"),
        ((0, 0, 0, 1 << 18, 0, 0, 0), "reset_fabric", "register 4: follows from another error"),
        ((0, 0, 0, 0, 1 << 20, 0, 0), "ignore", "register 5: many errors were corrected"),
    ],
)
def test_registers(words: tuple[int, ...], immediate: str, meaning: str) -> None:
    found = decode(74, words)
    assert found is not None
    assert found.known
    assert found.immediate == immediate
    assert any(text.startswith(meaning) for text in found.meanings)


def test_bits_that_the_catalogue_does_not_name_are_shown() -> None:
    found = decode(74, (1 << 31, 7, 0, 0, 0, 0, 0))
    assert found is not None
    assert not found.known
    assert found.meanings == ("bits of register 1 that the catalogue does not name: 0x80000000",)


@pytest.mark.parametrize(
    ("text", "words"),
    [("0x0, 0x10000,0X1f", (0, 0x10000, 0x1F)), ("(0 10000 1f)", (0, 0x10000, 0x1F)), ("", ())],
)
def test_words_as_people_paste_them(text: str, words: tuple[int, ...]) -> None:
    assert parse_words(text) == words


@pytest.mark.parametrize("text", ["xyz", "0x0 0x1 what", "-1", "0x123456789"])
def test_words_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_words(text)
