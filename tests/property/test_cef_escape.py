"""What is written as Common Event Format can be read back, whatever names and words are in it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.entry import Entry, EntryKind
from tocsin.journal.export import KINDS, CefLines

TEXT = st.text(max_size=60)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_BACK = {"n": "\n", "r": "\r"}


def unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _BACK.get(match[1], match[1]), text)


def parse(line: str) -> tuple[list[str], dict[str, str]]:
    """A reader after the standard, not after our writer: seven pipes, then key=value with unescaped equals signs."""
    header, rest = [], line
    for _ in range(7):
        match = re.match(r"((?:[^\\|]|\\.)*)\|", rest, re.DOTALL)
        assert match, line
        header.append(unescape(match[1]))
        rest = rest[match.end() :]
    keys = list(re.finditer(r"(?:^| )([A-Za-z][A-Za-z0-9]*)(?<!\\)=", rest))
    ends = [found.start() for found in keys[1:]] + [len(rest)]
    extension = {key[1]: unescape(rest[key.end() : end]) for key, end in zip(keys, ends, strict=True)}
    return header, extension


@given(kind=st.sampled_from(EntryKind), actor=TEXT, sentence=TEXT, name=TEXT, reason=TEXT)
def test_it_can_be_read_back(kind: EntryKind, actor: str, sentence: str, name: str, reason: str) -> None:
    payload = {"subject": {"kind": "host", "name": name, "host": name}, "sentence": sentence, "reason": reason}
    line = CefLines().line(Entry(7, 1, 1_795_000_000_000, kind, actor, payload, False, "f" * 64, "0" * 64))
    assert "\n" not in line
    assert "\r" not in line
    header, extension = parse(line)
    assert header[:3] == ["CEF:0", "Tocsin", "Tocsin"]
    assert header[4:6] == [kind.value, KINDS[kind].name]
    assert 0 <= int(header[6]) <= 10
    expected = {
        "suser": actor,
        "msg": sentence,
        "reason": reason,
        "dhost": name,
        "cs1": "f" * 64,
        "act": KINDS[kind].act,
    }
    assert {key: extension.get(key, "") for key in expected} == expected
    assert extension["act"] == KINDS[kind].act
    assert extension["rt"] == "1795000000000"
