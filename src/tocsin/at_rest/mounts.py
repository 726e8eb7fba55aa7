"""Whether the disk below a file encrypts by itself: dm-crypt (LUKS), as the kernel tells it.

The mount is found in /proc/self/mountinfo (proc(5)), its device-mapper UUID in /sys/dev/block/MAJ:MIN/dm/uuid, which
begins with CRYPT- for dm-crypt; below a partition or a logical volume the devices in `slaves` are asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_CRYPT = "CRYPT-"
_MOST_LEVELS = 8
"""Devices below each other that are followed."""


@dataclass(frozen=True, slots=True)
class Disks:
    """The kernel's view; `proc` and `sys` are other folders in tests, and in containers that mount the host's."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def why_plain(self, path: Path) -> str:
        """Why the disk of `path` is not seen to be encrypted; empty where it is."""
        device = self._device_of(path)
        if device is None:
            return "its mount is not known"
        number, kind = device
        folder = self.sys / "dev" / "block" / number
        return "" if self._is_crypt(folder) else f"{kind} on device {number} is not seen to be dm-crypt"

    def _device_of(self, path: Path) -> tuple[str, str] | None:
        """MAJOR:MINOR and type of the file system that holds `path`."""
        try:
            lines = (self.proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return None
        found, longest = None, -1
        absolute = path.absolute()
        real = absolute.resolve()
        for line in lines:
            before, _, after = line.partition(" - ")
            fields, kinds = before.split(), after.split()
            if len(fields) < 5 or not kinds:  # id, parent, device, root, mount point
                continue
            point = Path(_unescaped(fields[4]))
            # Of two mounts at one place the later one is seen.
            if (real == point or point in real.parents) and len(point.parts) >= longest:
                found, longest = (fields[2], kinds[0]), len(point.parts)
        return found

    def _is_crypt(self, folder: Path, level: int = 0) -> bool:
        try:
            if (folder / "dm" / "uuid").read_text(encoding="ascii", errors="replace").startswith(_CRYPT):
                return True
        except OSError:
            pass
        try:
            below = list((folder / "slaves").iterdir())
        except OSError:
            return False
        # A volume over several devices is encrypted if each of them is.
        return level < _MOST_LEVELS and bool(below) and all(self._is_crypt(one, level + 1) for one in below)


def _unescaped(text: str) -> str:
    """A path of mountinfo: space, tab, newline and backslash are octal there."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
