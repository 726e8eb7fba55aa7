"""The grammar of one line of line protocol, with InfluxDB's rules for escapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import TypeVar

from tocsin.store.points import CONTROL, FieldValue

# The grammar of one line: measurement and tags, fields, timestamp, with InfluxDB's rules for escapes. In names and
# tags a backslash before a comma, an equals sign or a space takes its meaning away; in quoted text it does so before
# a quote and a backslash. Everywhere else a backslash is itself.

NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds in one step of each precision that the InfluxDB 2 API knows."""

HEAD_END = re.compile(r"(?<!\\) ")
_COMMA = re.compile(r"(?<!\\),")
_EQUALS = re.compile(r"(?<!\\)=")
_TAG_SPECIAL = re.compile(r"[,= \n\\]")
_TEXT_ESCAPE = re.compile(r'\\(["\\])')
# Possessive, so that what does not fit is given up at once and never tried in other cuts.
_NAME = r"(?:[^\\,= \"\n]++|\\[^\n])++"
_TEXT = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)'
_FIELD = re.compile(rf'({_NAME})=(?:{_TEXT}"|([^", \n]++))(,|$| |\r?\n)', re.DOTALL)
_OPEN_TEXT = re.compile(rf"{_NAME}={_TEXT}\\?$", re.DOTALL)
_TIMESTAMP = re.compile(r"-?[0-9]+", re.ASCII)
_INTEGER = re.compile(r"(-?[0-9]+)[iu]", re.ASCII)
_BOOLEANS: dict[str, bool] = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), False),
}


_LONGEST = 1_024
_HEADS, _LONGEST_HEAD = 8_192, 256
"""Heads that are remembered: each of 1,250 nodes has two of packed lines, and those of its events. Tags of a character
take fifty times their text: heads of no more than this are 100 MB together at most."""


class LineError(ValueError):
    """Why a line cannot be used."""


class OpenTextError(LineError):
    """Quoted text does not end on the line: it may go on, after a newline, on the next one."""


def unescape_name(text: str) -> str:
    """`text` of a measurement, tag or field name as it was meant."""
    if "\\" not in text:
        return text
    return text.replace("\\,", ",").replace("\\=", "=").replace("\\ ", " ")


def tag_text(value: str) -> str:
    """`value` as it stands in a tag.

    The format cannot say a newline in a tag, nor a backslash at its end: they become a space and a slash. Other control
    characters stand in no name and become spaces too.
    """
    if _TAG_SPECIAL.search(value) is None and value.isprintable():
        return value
    value = CONTROL.sub(" ", value)
    if value.endswith("\\"):
        value = value[:-1] + "/"
    return value.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")


def number(raw: str) -> float | int | bool:
    """An unquoted value. Raises LineError where it is none of the format's; NaN and infinities pass as floats."""
    if "_" not in raw:  # Python's digit separators are not the format's
        try:
            return float(raw)
        except ValueError:
            pass
    if (integer := _INTEGER.fullmatch(raw)) is not None:
        whole = int(integer.group(1))
        if not -(2**63) <= whole < 2**63:
            raise LineError(f"{raw[:60]!r} does not fit a 64-bit integer")
        return whole
    if raw in _BOOLEANS:
        return _BOOLEANS[raw]
    raise LineError(f"{raw[:60]!r} is not a number, a boolean or quoted text")


def cut(line: str) -> tuple[str, str, str]:
    """`line` as head, fields and timestamp (empty where there is none), still escaped. For a line without quotes."""
    parts = line.split(" ")
    if "\\" not in line and len(parts) in (2, 3):
        return parts[0], parts[1], parts[2] if len(parts) == 3 else ""
    head, rest = cut_head(line)
    if (match := HEAD_END.search(rest)) is None:
        return head, rest, ""
    return head, rest[: match.start()], rest[match.end() :].strip(" ")


def cut_head(line: str) -> tuple[str, str]:
    """`line` as head and the rest. Raises LineError where there is no rest."""
    match = HEAD_END.search(line)
    rest = line[match.end() :].strip(" ") if match is not None else ""
    if match is None or not rest:
        raise LineError("no fields")
    return line[: match.start()], rest


R = TypeVar("R")


def remembered(most: int, longest: int = _LONGEST) -> Callable[[Callable[[str], R]], Callable[[str], R]]:
    """The newest `most` answers by text; a text beyond `longest` is read each time, so that no sender fills memory."""

    def wrap(read: Callable[[str], R]) -> Callable[[str], R]:
        known = lru_cache(maxsize=most)(read)
        return wraps(read)(lambda text: (known if len(text) <= longest else read)(text))

    return wrap


@remembered(_HEADS, _LONGEST_HEAD)
def parse_head(head: str) -> tuple[str, Mapping[str, str]]:
    """Measurement and tags; not to be changed by the caller. Raises LineError."""
    if not head.isprintable() and CONTROL.search(head) is not None:
        raise LineError("a control character stands in the measurement or in a tag")
    measurement, *rest = _COMMA.split(head) if "\\" in head else head.split(",")
    tags: dict[str, str] = {}
    for item in rest:
        pair = _EQUALS.split(item) if "\\" in item else item.split("=")
        if len(pair) != 2 or not pair[0] or not pair[1]:
            raise LineError(f"tag {item[:60]!r} is not name=value")
        tags[unescape_name(pair[0])] = unescape_name(pair[1])
    if not measurement:
        raise LineError("no measurement")
    return unescape_name(measurement), tags


def parse_fields(rest: str) -> tuple[dict[str, FieldValue], str]:
    """Fields, and the text of the timestamp behind them, of what follows the head. Raises LineError."""
    fields, position = scan_fields(rest, 0, len(rest))
    return fields, rest[position:].strip(" ")


def scan_fields(text: str, position: int, limit: int) -> tuple[dict[str, FieldValue], int]:
    """Fields of `text` from `position`, and where the timestamp behind them begins or the line ends.

    Every character before `limit` is looked at once or twice, whatever it is.
    """
    fields: dict[str, FieldValue] = {}
    while True:
        match = _FIELD.match(text, position, limit)
        if match is None:
            if _OPEN_TEXT.match(text, position, limit):
                raise OpenTextError("quoted text does not end")
            raise LineError(f"{text[position : min(position + 60, limit)]!r} is not name=value")
        name, quoted, raw, end = match.groups()
        fields[unescape_name(name)] = number(raw.rstrip("\r")) if quoted is None else _TEXT_ESCAPE.sub(r"\1", quoted)
        if end != ",":
            return fields, match.start(4) if end.endswith("\n") else match.end()
        position = match.end()


def instant(text: str, nanoseconds: int, now_ms: int) -> int:
    """Milliseconds since the epoch of a timestamp in steps of `nanoseconds`; `now_ms` where there is none."""
    if not text:
        return now_ms
    if _TIMESTAMP.fullmatch(text) is None:
        raise LineError(f"timestamp {text[:60]!r} is not a whole number")
    if len(text) > 20:
        raise LineError(f"timestamp {text[:60]!r} is out of range")
    return int(text) * nanoseconds // 1_000_000
