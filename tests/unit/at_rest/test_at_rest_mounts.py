"""What is seen of the disk below a file, over made-up trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.at_rest.mounts import Disks

LUKS = "CRYPT-LUKS2-7f3c5f0a9d3e4a51a1f4cc3b2f1f0f3c-state\n"
LVM = "LVM-abcdefghijklmnopqrstuvwxyz0123456789\n"


def _disks(folder: Path, mounts: list[tuple[str, str, str]], devices: dict[str, tuple[str, list[str]]]) -> Disks:
    """`mounts` are mount point, device and type; `devices` the dm UUID, empty for none, and the devices below each."""
    proc, sys = folder / "proc", folder / "sys"
    (proc / "self").mkdir(parents=True)
    rows = [
        f"{n} 1 {device} / {point} rw shared:1 - {kind} /dev/x rw" for n, (point, device, kind) in enumerate(mounts)
    ]
    (proc / "self" / "mountinfo").write_text("\n".join(rows) + "\nbroken line\n", encoding="utf-8")
    for number, (uuid, below) in devices.items():
        own = sys / "dev" / "block" / number
        (own / "slaves").mkdir(parents=True)
        if uuid:
            (own / "dm").mkdir()
            (own / "dm" / "uuid").write_text(uuid, encoding="ascii")
        for one in below:
            (own / "slaves" / one.replace(":", "-")).symlink_to(sys / "dev" / "block" / one)
    return Disks(proc, sys)


@pytest.mark.parametrize(
    ("uuid", "below", "seen"),
    [
        (LUKS, [], True),
        ("", [], False),
        (LVM, [], False),
        (LVM, ["254:1"], True),
        (LVM, ["254:1", "8:2"], False),
    ],
)
def test_luks_is_seen_on_the_device_or_on_all_below_it(tmp_path: Path, uuid: str, below: list[str], seen: bool) -> None:
    devices = {"254:0": (uuid, below), "254:1": (LUKS, []), "8:2": ("", [])}
    disks = _disks(tmp_path, [("/", "8:1", "ext4"), ("/var/lib/tocsin", "254:0", "xfs")], devices)
    assert (disks.why_plain(Path("/var/lib/tocsin/store.db")) == "") is seen


def test_the_longest_mount_counts_and_the_later_of_two(tmp_path: Path) -> None:
    mounts = [
        ("/", "254:0", "ext4"),
        ("/srv", "8:1", "ext4"),
        ("/srv", "254:0", "ext4"),
        ("/srv/a\\040b", "8:1", "zfs"),
    ]
    disks = _disks(tmp_path, mounts, {"254:0": (LUKS, []), "8:1": ("", [])})
    assert disks.why_plain(Path("/srv/x")) == ""
    assert disks.why_plain(Path("/srvx")) == ""
    assert disks.why_plain(Path("/srv/a b/x")) == "zfs on device 8:1 is not seen to be dm-crypt"


def test_what_is_not_known_is_plain(tmp_path: Path) -> None:
    assert Disks(tmp_path, tmp_path).why_plain(Path("/x")) == "its mount is not known"
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_bytes(b"\xff\xfe - \n1 2 3\n")
    assert Disks(tmp_path, tmp_path).why_plain(Path("/x")) == "its mount is not known"
