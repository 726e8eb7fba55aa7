"""``python -m tocsin.hook SCRIPT [ARGUMENT ...]`` or ``python -m tocsin.hook -m MODULE [...]``: run it watched."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import tocsin.hook

USAGE = "usage: python -m tocsin.hook [-m] SCRIPT_OR_MODULE [ARGUMENT ...]"


def main() -> None:
    """Run what the command line names as ``__main__``, as Python itself would."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0].startswith("-"):
        sys.exit(USAGE)
    sys.argv = rest
    tocsin.hook.watch()
    if as_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(rest[0]).resolve().parent)
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()
