"""What a body of line protocol costs is bounded by its bytes: work, memory, and what stays behind."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.store.line_protocol import decode as decoder
from tocsin.store.line_protocol import grammar as module
from tocsin.store.line_protocol.decode import MAX_REJECTED, decode
from tocsin_testing.builders import T0

MOST_LOOKS = 6
"""Times that the grammar may come by one character, on average over a body."""
FRAGMENTS = ('m a="', '"', '",b="', "\n", "\r\n", "x", "\\", '\\"', "=", ",", " ", "a=1", "m ", 'm b="x"', "é", "1")
_REACHED = re.compile(rf'(?:{module._NAME}(?:=(?:{module._TEXT}"?|[^", \n]*+)?)?)?', re.DOTALL)
"""How far a field that does not fit was read."""


class Counting:
    """A compiled pattern that counts the characters that it was led over."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.characters = 0

    def match(self, text: str, position: int, limit: int) -> re.Match[str] | None:
        found = self._pattern.match(text, position, limit)
        reached = found or _REACHED.match(text, position, limit)
        assert reached is not None
        self.characters += reached.end() - position + 1
        return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    made = [Counting(module._FIELD), Counting(module._OPEN_TEXT)]
    monkeypatch.setattr(module, "_FIELD", made[0])
    monkeypatch.setattr(module, "_OPEN_TEXT", made[1])
    return made


bodies = st.builds(
    lambda head, piece, times, tail: head + piece * times + tail,
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=6).map("".join),
    st.integers(1, 400),
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_work_grows_with_bytes_alone(looks: list[Counting], body: str) -> None:
    for one in looks:
        one.characters = 0
    decode(body, now_ms=T0)
    assert sum(one.characters for one in looks) <= MOST_LOOKS * len(body) + 100


@pytest.mark.parametrize("times", [100, 1_000])
def test_an_open_quote_before_lines_that_close_and_open_it_is_read_once(looks: list[Counting], times: int) -> None:
    body = 'm a="' + '\n",b="' * times
    decode(body, now_ms=T0)
    assert sum(one.characters for one in looks) <= MOST_LOOKS * len(body)


def test_text_may_spread_over_lines_that_close_and_open_it() -> None:
    event = f'gpu_event,kind=xid,gpu_uuid=G,code=79 message="a\n",source="b\n c",remedy="d" {T0}'
    body = f"{event}\ngpu,gpu_uuid=G power_watts=1"
    decoded = decode(body, now_ms=T0)
    assert [(one.message, one.source, one.remedy) for one in decoded.batch.events] == [("a\n", "b\n c", "d")]
    assert [one.gpu.uuid for one in decoded.batch.readings] == ["G"]
    assert decoded.rejected == []


def test_bad_lines_are_named_up_to_a_bound_and_all_counted() -> None:
    decoded = decode("x\n" * 5_000 + "gpu,gpu_uuid=G power_watts=1", now_ms=T0)
    assert (len(decoded.rejected), decoded.refused, len(decoded.batch.readings)) == (MAX_REJECTED, 5_000, 1)


def test_warnings_that_a_sender_makes_up_are_bounded() -> None:
    fields = ",".join(f"{'z' * 2_000}{n}=1" for n in range(2 * MAX_REJECTED))
    decoded = decode(f"gpu,gpu_uuid=G {fields}", now_ms=T0)
    assert decoded.dropped == 2 * MAX_REJECTED
    assert sum(map(len, decoded.warnings)) < 100_000


def test_long_heads_and_fields_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = decoder.fields_of
    monkeypatch.setattr(decoder, "fields_of", lambda names, *rest: asked.append(len(names)) or real(names, *rest))
    decode("gpu,gpu_uuid=G,link=0 " + ",".join(["nvlink_up=1"] * 5_000), now_ms=T0)
    decode("gpu,gpu_uuid=G,link=0 nvlink_up=1", now_ms=T0)
    assert asked == [1]
    read = module.remembered(4)(lambda text: object())
    assert read("x") is read("x")
    assert read("x" * 2_000) is not read("x" * 2_000)


@pytest.mark.parametrize("stamp", ["-1", "-99999999999999999999", "-62200000000000"])
def test_a_reading_from_before_1970_is_rejected_alone(stamp: str) -> None:
    decoded = decode(f"gpu,gpu_uuid=A power_watts=1 {stamp}\ngpu,gpu_uuid=B power_watts=1", now_ms=T0)
    assert [one.gpu.uuid for one in decoded.batch.readings] == ["B"]
    assert [line.number for line in decoded.rejected] == [1]
