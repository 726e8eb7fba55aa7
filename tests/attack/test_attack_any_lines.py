"""Whatever node-a sends, node-b fares as if it had not; `TOCSIN_LINES` and `TOCSIN_SEEDS` say how much it is.

Held against three twins: one that got the truth alone, and one on which all that node-a really has has failed. What
starts on node-b starts without the lines too; what the lines hold back there, its real GPUs, all failed, would.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tocsin_testing.token_site import HOSTILE, HOSTS, SETTLING_STEPS, VICTIM, TokenSite, token_site

LINES = int(os.environ.get("TOCSIN_LINES", "320"))
STEPS = 16
MEASUREMENTS = ("gpu", "gpu", "gpu", "gpu_info", "gpu_missing", "gpu_event", "gpu_owner", "gpu_finding")
CODES = ("79", "48", "13", "94", "x")


def line(rng: random.Random, now_ms: int) -> str:
    """One line of anything: its own GPUs, those of others, made up ones, parts of each, under any host and pool."""
    uuids = [
        f"GPU-{rng.choice(HOSTS)}-{rng.randrange(4)}",
        f"GPU-fake-{rng.randrange(300)}",
        f"MIG-{rng.randrange(50)}",
    ]
    kind, host = rng.choice(MEASUREMENTS), rng.choice((HOSTILE,) * 6 + (VICTIM, "NODE-A", "node-x", ""))
    tags = {"gpu_uuid": rng.choice(uuids), "host": host}
    if rng.random() < 0.15:
        tags["mig_uuid"] = f"MIG-{rng.randrange(50)}"
    fields = f"power_watts={rng.choice(('1', '300', '4999', '-5'))},temperature_celsius={rng.choice(('20', '149'))}"
    if kind == "gpu_event":
        tags |= {"kind": rng.choice(("xid", "gpu_lost", "gpu_found")), "code": rng.choice(CODES)}
        fields = 'message="Xid"'
    elif kind == "gpu_info":
        pool, rack = rng.choice(("default", "theirs")), rng.choice(("r1", "r2", ""))
        fields = f'pool="{pool}",rack="{rack}",label_tocsin.io/managed="true",model="NVIDIA H100 80GB HBM3"'
    elif kind == "gpu_missing":
        fields = "power_watts=3i"
    elif kind == "gpu_owner":
        tags["pid"] = "7"
        fields = f'process="p",slurm_job="{rng.randrange(3)}"'
    elif kind == "gpu_finding":
        fields = 'severity="critical"'
    at_ms = now_ms + rng.choice((0, 0, 0, -3_600_000, 60_000, 10**9))
    return f"{kind}{''.join(f',{name}={value}' for name, value in tags.items() if value)} {fields} {at_ms}"


def known(site: TokenSite) -> list[object]:
    """Identity, readings and freshness of node-b's GPUs."""
    readings = [site.brain.memory.reading(gpu.uuid) for gpu in site.gpus[VICTIM]]
    return [(one.gpu.host, one.gpu.pool, one.gpu.rack, one.at_ms, one.values) for one in readings if one is not None]


def run(folder: Path, seed: int, *, hostile: bool, failed: bool, shown: int | None) -> tuple[set[str], list[object]]:
    """What started on node-b, and what is known of it after each step."""
    rng, story = random.Random(seed), random.Random(-seed)
    with token_site(folder, managed=shown is not None, shown=shown) as site:
        site.steps(SETTLING_STEPS)
        after = []
        for n in range(STEPS):
            if failed and not n:
                site.lost |= {one.uuid for one in site.gpus[HOSTILE]}
                site.out |= {HOSTILE}
            if story.random() < 0.3:
                host = story.choice(HOSTS[1:])
                site.lost.add(f"GPU-{host}-{story.randrange(4)}")
            lines = [line(rng, site.clock.now_ms()) for _ in range(LINES // STEPS)] if hostile else []
            site.step(lines)
            after.append(known(site))
        return site.started(VICTIM), after


@pytest.mark.parametrize("shown", [None, 4])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TOCSIN_SEEDS", "2"))))
def test_any_lines_of_a_node_leave_another_as_it_would_be(tmp_path: Path, seed: int, shown: int | None) -> None:
    truth, plain = run(tmp_path / "truth", seed, hostile=False, failed=False, shown=shown)
    attacked, seen = run(tmp_path / "attacked", seed, hostile=True, failed=False, shown=shown)
    worst, _ = run(tmp_path / "worst", seed, hostile=False, failed=True, shown=shown)
    assert seen == plain
    assert attacked <= truth
    assert worst & truth <= attacked
