"""What is remembered of lines: it changes nothing that is read, and no sender fills memory with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.store.line_protocol import decode as module
from tocsin.store.line_protocol import repeats
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.repeats import Items, Tails
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
    decode("\n".join(f"{HEADS[0]}{tail} {T0}" for tail in TAILS), now_ms=T0)
    warm = read(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TAILS", Tails())
        patch.setattr(module, "_ITEMS", Items())
        patch.setattr(module._Said, "goes_on", lambda _self, _line: False)
        assert read(body) == warm


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


def test_a_tag_that_nobody_knows_is_told_on_every_line() -> None:
    lines = [f"gpu,gpu_uuid=A,who=x power_watts=1 {T0}"] * 3
    assert decode("\n".join(lines), now_ms=T0).warnings == ["tag 'who' is not known, ignored (3 times)"]
