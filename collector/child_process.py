"""Running a program to its end, or for so long and no longer."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

GRACE_SECONDS = 0.5
"""How long a killed program is waited for; one that sits in the driver and does not even die is left behind."""


class Ended(NamedTuple):
    """A program that ended by itself: its exit status and what it printed."""

    status: int
    out: bytes


def run_within(command: Sequence[str], seconds: float, *, errors: int, apart: bool = False) -> Ended | None:
    """Run `command` without input; None where it did not end within `seconds`, and was killed.

    `errors` is what becomes of its standard error, as in `subprocess`. With `apart` it has a session of its own, which
    signals of a terminal do not reach. Raises OSError where it cannot be run.
    """
    child = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=apart
    )
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # subprocess.run would go on waiting: for one that sits in the driver, or for a child of it that has the pipe.
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
        if child.stdout is not None:
            child.stdout.close()
        return None
    return Ended(child.returncode, out)
