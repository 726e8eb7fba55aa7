"""What is remembered of lines: it changes nothing that is read, and no sender fills memory with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.store.line_protocol import decode as module
from tocsin.store.line_protocol import repeats
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.repeats import Block, Blocks, Items, Tails
from tocsin_testing.builders import T0

HEADS = ("gpu,gpu_uuid=A,host=h", "gpu,gpu_uuid=A,host=h2", "gpu,gpu_uuid=B", "gpu_missing,gpu_uuid=A,host=h")
TAILS = (
    " power_watts=1",
    " power_watts=1,power_watts=2",
    " power_watts=1_0",
    " power_watts=nan",
    " power_watts=-5",
    " power_watts=4i",
    " temperature_celsius=50,power_watts=300.5",
    ",link=0 nvlink_up=1,nvlink_replay_errors_total=0",
    ",link=0 nvlink_up=0,nvlink_replay_errors_total=0",
    ",link=1 nvlink_up=1",
    ",link=1 power_watts=1",
    ",who=x power_watts=1",
    r",link=\,0 nvlink_up=1",
    ' power_watts=1,serial="a',
    "",
)
STAMPS = ("", f" {T0}", f" {T0 + 1}", f"  {T0}", " 1 2", f" {10 * T0}")
line = st.builds("".join, st.tuples(st.sampled_from(HEADS), st.sampled_from(TAILS), st.sampled_from(STAMPS)))


@given(st.lists(line, max_size=8))
def test_a_body_reads_the_same_whatever_was_read_before(lines: list[str]) -> None:
    def read(text: str) -> object:
        found = decode(text, now_ms=T0)
        rows = [(one.gpu, one.gpu.host, one.at_ms, dict(one.values), dict(one.missing)) for one in found.batch.readings]
        return rows, found.rejected, found.warnings, found.dropped, found.refused

    body = "\n".join(lines)
    for _ in range(3):
        decode("\n".join(f"{HEADS[0]}{tail} {T0}" for tail in TAILS), now_ms=T0)
    warm = read(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TAILS", Tails())
        patch.setattr(module, "_ITEMS", Items())
        patch.setattr(module, "_BLOCKS", Blocks())
        patch.setattr(module._Said, "goes_on", lambda _self, _lines, _at: 0)
        assert read(body) == warm


links = st.lists(st.sampled_from((0, 1)), min_size=6, max_size=6)


@given(st.lists(st.tuples(st.sampled_from("AB"), links, st.booleans()), min_size=1, max_size=10))
def test_labelled_lines_read_the_same_as_a_block_and_one_by_one(ticks: list[tuple[str, list[int], bool]]) -> None:
    for tick, (gpu, ups, odd) in enumerate(ticks):
        lines = [f",link={link} nvlink_up={up}" for link, up in enumerate(ups)]
        if odd:
            lines.insert(3, ",link=9 nvlink_up=7")
        text = "\n".join(f"gpu,gpu_uuid={gpu}{line} {T0 + tick}" for line in (" power_watts=5", *lines))
        (found,) = decode(text, now_ms=T0 + tick).batch.readings
        told = {f'gpu_nvlink_up{{link="{link}"}}': float(up) for link, up in enumerate(ups)}
        assert (found.at_ms, found.gpu.uuid) == (T0 + tick, gpu)
        assert found.values == {"gpu_power_watts": 5.0, **told}


def test_what_every_link_says_again_is_read_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCKS", Blocks())
    lines = [" power_watts=5", *(f",link={link} nvlink_up=1" for link in range(18))]
    looks = []
    goes_on = module._Said.goes_on

    def counted(self: module._Said, lines: list[str], at: int) -> int:
        looks.append(taken := goes_on(self, lines, at))
        return taken

    monkeypatch.setattr(module._Said, "goes_on", counted)
    for tick in range(4):
        looks.clear()
        decode("\n".join(f"gpu,gpu_uuid=A{line} {T0 + tick}" for line in lines) + "\n", now_ms=T0 + tick)
    assert looks == [18, 0]


def test_readings_that_share_what_is_remembered_are_not_changed_by_each_other() -> None:
    lines = [f"{head},link=0 nvlink_up=1 {T0}" for head in HEADS[:1] + HEADS[2:3]]
    missing = [f"gpu_missing,gpu_uuid={one} power_watts=2i {T0}" for one in "AB"]
    decode("\n".join(lines + missing), now_ms=T0)
    body = [
        *lines,
        *missing,
        f"gpu,gpu_uuid=B sm_clock_hertz=1 {T0}",
        f"gpu_missing,gpu_uuid=B ecc_mode_enabled=2i {T0}",
    ]
    first, second = decode("\n".join(body), now_ms=T0).batch.readings
    assert list(first.missing) == ["gpu_power_watts"]
    assert list(second.missing) == ["gpu_power_watts", "gpu_ecc_mode_enabled"]
    assert "gpu_sm_clock_hertz" not in first.values


def test_made_up_values_and_tails_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    items, tails = Items(), Tails()
    for number in range(2_000):
        assert items.values(f"power_watts={number}.5") == {"gpu_power_watts": number + 0.5}
    assert len(items._known) == repeats.VALUES_OF_FIELD
    monkeypatch.setattr(repeats, "MOST_TAILS", 10)
    for number in range(100):
        tails.put(f",link={number} nvlink_up=1", {})
    assert len(tails._new) + len(tails._old) <= 20
    tails.put("x" * (repeats.LONGEST_TAIL + 1), {})
    assert tails.get("x" * (repeats.LONGEST_TAIL + 1)) is None


def test_made_up_blocks_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_BLOCKS", 10)
    monkeypatch.setattr(repeats, "MOST_SHARED", 5)
    blocks = Blocks()
    for number in range(100):
        blocks.put(f"gpu,gpu_uuid={number}", Block((f"{number}", "b", "c", "d"), {}))
        assert len(blocks._new) <= 10
        assert len({id(one) for one in (*blocks._new.values(), *blocks._old.values())}) <= 10
    assert blocks.get("gpu,gpu_uuid=99") is not None
    assert blocks.get("gpu,gpu_uuid=0") is None
    for short_or_long in (("a", "b", "c"), ("x" * repeats.LONGEST_BLOCK, "b", "c", "d")):
        blocks.put("gpu", Block(short_or_long, {}))
        assert blocks.get("gpu") is None
    alike = [Block(("a", "b", "c", "d"), {}) for _ in range(2)]
    for number, one in enumerate(alike):
        blocks.put(f"alike{number}", one)
    assert blocks.get("alike0") is blocks.get("alike1")


def test_what_goes_on_being_met_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_TAILS", 10)
    tails = Tails()
    tails.put("kept", {"a": 1.0})
    for number in range(100):
        assert tails.get("kept") == {"a": 1.0}
        tails.put(str(number), {})
    assert tails.get("0") is None


def test_what_a_line_said_is_not_what_its_gpu_said_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAILS", Tails())
    first = [f"gpu,gpu_uuid=A fan_speed_ratio=0.25 {T0}", f"gpu,gpu_uuid=A power_watts=7 {T0}"]
    second = [f"gpu,gpu_uuid=B sm_clock_hertz=1 {T0}", f"gpu,gpu_uuid=B fan_speed_ratio=0.25 {T0}"]
    _, other = decode("\n".join(first + second), now_ms=T0).batch.readings
    assert other.values == {"gpu_sm_clock_hertz": 1.0, "gpu_fan_speed_ratio": 0.25}


def test_a_label_before_the_name_of_a_gpu_is_not_taken_for_another_gpu_s() -> None:
    """As senders that sort their tags have it."""
    lines = [f"gpu,availability=max,gpu_uuid={one} row_remap_banks={banks} {T0}" for one, banks in (("A", 1), ("B", 2))]
    for _ in range(2):
        found = decode("\n".join(lines), now_ms=T0).batch.readings
        assert [(one.gpu.uuid, [*one.values.values()]) for one in found] == [("A", [1.0]), ("B", [2.0])]


def test_a_tag_that_nobody_knows_is_told_on_every_line() -> None:
    lines = [f"gpu,gpu_uuid=A,who=x power_watts=1 {T0}"] * 3
    assert decode("\n".join(lines), now_ms=T0).warnings == ["tag 'who' is not known, ignored (3 times)"]
