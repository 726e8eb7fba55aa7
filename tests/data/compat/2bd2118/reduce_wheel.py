"""Writes `tocsin-0.1.0-py3-none-any.whl` beside it: the wheel of commit 2bd2118 with only what its agent can load.

    git worktree add /tmp/old 2bd2118
    cd /tmp/old && python -m build --no-isolation --wheel --outdir /tmp/dist
    python THIS_FILE /tmp/dist/tocsin-0.1.0-py3-none-any.whl

Packages that no module of the agent imports are left out, the list of files is made anew, and every member gets one
date: the same wheel gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

LEFT_OUT = tuple(f"tocsin/{name}/" for name in ("api", "dashboard", "forecaster"))
DATE = (2026, 11, 22, 0, 0, 0)


def member(name: str) -> zipfile.ZipInfo:
    """A file of the wheel, as every build writes it."""
    info = zipfile.ZipInfo(name, DATE)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return info


def main(source: Path) -> None:
    """Copy what stays of `source`."""
    target = Path(__file__).with_name(source.name)
    rows = []
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compresslevel=9) as new:
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        for name in sorted(old.namelist()):
            if name == record or name.startswith(LEFT_OUT):
                continue
            body = old.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(body)}\n")
            new.writestr(member(name), body, compresslevel=9)
        new.writestr(member(record), "".join(rows) + f"{record},,\n", compresslevel=9)
    sys.stdout.write(f"{target}: {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
