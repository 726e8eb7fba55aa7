"""What the spool acknowledged is there after kill -9, at any instant."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.collector.spool import Spool
from tocsin.domain.clock import SystemClock

WRITER = """
import sys
from pathlib import Path
from tocsin.collector.spool import Spool
from tocsin.domain.clock import SystemClock
spool = Spool(Path(sys.argv[1]), 1 << 30, SystemClock())
number = int(sys.argv[2])
while True:
    spool.put(f"batch {number}", 1)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_batches_survive(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "spool.db"
    rng = random.Random(seed)
    acknowledged = -1
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(path), str(acknowledged + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rng.randint(1, 60)):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            # What it still wrote before the signal came counts as acknowledged too.
            rest = [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            acknowledged = max([acknowledged, *rest])
        spool = Spool(path, 1 << 30, SystemClock())
        kept = [batch.text for batch in spool.peek(1 << 30)]
        spool.close()
        expected = [f"batch {n}" for n in range(acknowledged + 1)]
        assert kept[: len(expected)] == expected
        assert len(kept) <= len(expected) + 1, "at most the batch whose acknowledgement was on its way"
        acknowledged = len(kept) - 1
