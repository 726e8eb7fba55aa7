"""An evidence archive: the same bytes for the same content, and every changed byte is found."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.errors import InputError
from tocsin.journal import bundle
from tocsin.journal.bundle import FILES, check, check_bytes, pack
from tocsin.journal.export import as_jsonl
from tocsin.journal.journal import Journal
from tocsin_testing.builders import T0

KEY = b"k" * 32
CONTENT = {name: f"what {name} says\n".encode() for name in FILES} | {"journal.jsonl": b""}
SIGNED, UNSIGNED = pack(CONTENT, KEY), pack(CONTENT)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def test_what_was_made_is_accepted_and_says_what_is_proven() -> None:
    assert check_bytes(SIGNED, KEY).problem == ""
    assert check_bytes(SIGNED, KEY).proven
    told = check_bytes(SIGNED)
    assert (told.problem, told.signed, told.proven) == ("", True, False)
    told = check_bytes(UNSIGNED)
    assert (told.problem, told.signed, told.proven) == ("", False, False)


def test_the_order_of_the_files_changes_no_byte() -> None:
    assert pack(dict(reversed(list(CONTENT.items()))), KEY) == SIGNED


@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255), st.sampled_from([b"", KEY]))
def test_any_changed_byte_is_found(at: int, bits: int, key: bytes) -> None:
    changed = bytearray(SIGNED)
    changed[at] ^= bits
    named = SIGNED.index(b"hmac-sha256 ") + len(b"hmac-sha256 ")
    # Without the key nobody can tell one signature from another.
    if not key and named <= at < named + 64 and chr(changed[at]) in "0123456789abcdef":
        return
    assert check_bytes(bytes(changed), key).problem


@given(st.integers(0, len(UNSIGNED) - 1), st.integers(1, 255))
def test_any_changed_byte_of_an_unsigned_one_is_found(at: int, bits: int) -> None:
    changed = bytearray(UNSIGNED)
    changed[at] ^= bits
    assert check_bytes(bytes(changed)).problem


@given(st.binary(min_size=1, max_size=2_000))
def test_noise_and_what_is_added_or_cut_is_refused(noise: bytes) -> None:
    assert check_bytes(noise).problem
    assert check_bytes(SIGNED + noise, KEY).problem
    assert check_bytes(SIGNED[: -len(noise)], KEY).problem


def test_another_key_and_a_signature_taken_off_are_found() -> None:
    assert "key given" in check_bytes(SIGNED, b"x" * 32).problem
    assert "unsigned" in check_bytes(UNSIGNED, KEY).problem


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../README.txt", "x" * 300, "README.txt\n"])
def test_no_other_name_is_taken(name: str, tmp_path: Path) -> None:
    assert check_bytes(tar_of((tarfile.TarInfo(name), b"x"))).problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, b"S", b"L", b"x"])
def test_nothing_but_plain_files_is_taken(kind: bytes) -> None:
    member = tarfile.TarInfo("README.txt")
    member.type, member.linkname = kind, "/etc/passwd"
    assert check_bytes(tar_of((member, b""))).problem


def test_a_file_that_claims_more_than_is_there_is_refused() -> None:
    member = tarfile.TarInfo("README.txt")
    member.size = 2**40
    assert "cut short" in check_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)).problem
    member.size = 0
    assert check_bytes(tar_of((member, b"x"), (tarfile.TarInfo("README.txt"), b"y"))).problem


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 1_000)
    (tmp_path / "large.tar").write_bytes(bytes(1_001))
    with pytest.raises(InputError, match=r"more than 1,000 bytes"):
        check(tmp_path / "large.tar")
    with pytest.raises(InputError, match="No such file"):
        check(tmp_path / "none.tar")


def test_journal_entries_are_checked_by_their_own_hash(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db", ManualClock(T0))
    lines = [as_jsonl(journal.append(EntryKind.PAUSE, {"reason": "a test"})) for _ in range(2)]
    journal.close()
    good = CONTENT | {"journal.jsonl": "\n".join(lines).encode()}
    assert check_bytes(pack(good)).entries == 2
    for bad in (lines[0].replace("a test", "no test"), f"{lines[1]}\n{lines[0]}", "[" * 100_000, '{"seq": 1}'):
        assert check_bytes(pack(CONTENT | {"journal.jsonl": bad.encode()})).problem.startswith("journal.jsonl")
