"""Whatever node-a sends, node-b fares as if it had not; `TOCSIN_LINES` and `TOCSIN_SEEDS` say how much it is.

Held against twins: one that got the truth alone, and one on which all that node-a really has has failed. What starts on
node-b starts without the lines too; what the lines hold back there, its real GPUs, all failed, would. Beside lines of
anything there are steps of one kind of lie, which no single line is: a limit is filled, or widened, by many alike.
"""

from __future__ import annotations

import os
import random
import struct
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

from tocsin_testing.token_site import HOSTILE, HOSTS, MODEL, SETTLING_STEPS, STEP_MS, VICTIM, TokenSite, token_site

LINES = int(os.environ.get("TOCSIN_LINES", "320"))
STEPS = 16
PER_STEP = -(-LINES // STEPS)
MEASUREMENTS = ("gpu", "gpu", "gpu_packed", "gpu_info", "gpu_missing", "gpu_event", "gpu_owner", "gpu_finding")
CODES = ("79", "48", "13", "94", "x")
OWN = [f"GPU-{HOSTILE}-{n}" for n in range(4)]
THEIRS = [f"GPU-{VICTIM}-{n}" for n in range(4)]


def anything(rng: random.Random, now_ms: int, _step: int) -> list[str]:
    """Lines of anything: its own GPUs, those of others, made up ones, parts of each, under any host and pool."""
    return [line(rng, now_ms) for _ in range(PER_STEP)]


def line(rng: random.Random, now_ms: int) -> str:
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
        clique = rng.choice(("c1", "c2"))
        labels = f'label_tocsin.io/managed="true",label_nvidia.com/gpu.clique="{clique}"'
        fields = f'pool="{pool}",rack="{rack}",{labels},model="{MODEL}"'
    elif kind == "gpu_missing":
        fields = "power_watts=3i"
    elif kind == "gpu_packed":
        gpus = [uuids[0], rng.choice(uuids), f"{uuids[0]}|{uuids[2]}"]
        packed = b64encode(struct.pack("<3d", *rng.choices((1, 300, 4999, -5), k=3))).decode()
        tags, said = {"host": host}, rng.choice((f'values="{packed}"', 'reasons="3"'))
        fields = f'gpus="{",".join(gpus)}",names="power_watts",{said}'
    elif kind == "gpu_owner":
        tags["pid"] = "7"
        fields = f'process="p",slurm_job="{rng.randrange(3)}"'
    elif kind == "gpu_finding":
        fields = 'severity="critical"'
    at_ms = now_ms + rng.choice((0, 0, 0, -3_600_000, 60_000, 10**9))
    return f"{kind}{''.join(f',{name}={value}' for name, value in tags.items() if value)} {fields} {at_ms}"


def invented(_rng: random.Random, now_ms: int, step: int) -> list[str]:
    """New GPUs, sound and warm, of the model that all have."""
    uuids = [f"GPU-new-{step}-{n}" for n in range(PER_STEP // 2)]
    told = [f'gpu_info,gpu_uuid={one},host={HOSTILE} model="{MODEL}" {now_ms}' for one in uuids]
    return told + [reading(one, now_ms, 85) for one in uuids]


def reading(uuid: str, now_ms: int, celsius: int) -> str:
    return f"gpu,gpu_uuid={uuid},host={HOSTILE} power_watts=300,temperature_celsius={celsius} {now_ms}"


def flood(rng: random.Random, now_ms: int, step: int) -> list[str]:
    """GPUs that are not there fall off the bus."""
    uuids = [f"GPU-ill-{step}-{n}" for n in range(PER_STEP // 2)]
    codes = [rng.choice(("79", "79", "48")) for _ in uuids]
    events = [
        f'gpu_event,gpu_uuid={one},host={HOSTILE},kind=xid,code={code} message="Xid",source="kernel" {now_ms}'
        for one, code in zip(uuids, codes, strict=True)
    ]
    return [reading(one, now_ms, 60) for one in uuids] + events


def children(rng: random.Random, now_ms: int, step: int) -> list[str]:
    """MIG instances of node-b's GPUs, and of its own by the dozen."""
    parents = [rng.choice((*THEIRS, *OWN)) for _ in range(PER_STEP)]
    return [
        f"gpu,gpu_uuid={one},mig_uuid=MIG-{step}-{n},host={HOSTILE} power_watts=300 {now_ms}"
        for n, one in enumerate(parents)
    ]


def moved(rng: random.Random, now_ms: int, _step: int) -> list[str]:
    """Its own GPUs in other pools, racks and cliques, with jobs of others."""
    said = []
    for one in OWN * -(-PER_STEP // 8):
        pool, rack = rng.choice(("default", "spare")), rng.choice(("r1", "r2"))
        labels = f'label_tocsin.io/managed="{rng.choice(("true", "false"))}",label_nvidia.com/gpu.clique="c{rack}"'
        said.append(f'gpu_info,gpu_uuid={one},host={HOSTILE} pool="{pool}",rack="{rack}",{labels} {now_ms}')
        said.append(
            f'gpu_owner,gpu_uuid={one},host={HOSTILE},pid=7 process="p",slurm_job="{rng.randrange(3)}" {now_ms}'
        )
    return said


def beyond(_rng: random.Random, now_ms: int, _step: int) -> list[str]:
    """Its own GPUs hotter than any can be, at the power that all draw."""
    return [reading(one, now_ms, 149) for one in OWN]


def foreign(rng: random.Random, now_ms: int, _step: int) -> list[str]:
    """Readings and events of node-b's GPUs."""
    said = [reading(rng.choice(THEIRS), now_ms, 30) for _ in range(PER_STEP // 2)]
    return said + [
        f'gpu_event,gpu_uuid={rng.choice(THEIRS)},host={HOSTILE},kind=xid,code=79 message="Xid" {now_ms}'
        for _ in range(PER_STEP // 2)
    ]


Lie = Callable[[random.Random, int, int], list[str]]
LIES: tuple[tuple[Lie, ...], ...] = (
    (anything, invented, invented, children, moved, beyond, foreign),
    (anything, flood, flood, children, moved, beyond, foreign),
)
"""What is chosen from: sound inventions widen limits, sick ones fill them, both together do neither for sure."""
TIGHT = {0: "node-c", 1: "node-d"}
"""Who loses a GPU first, so that no limit leaves room for node-b, by step."""
WARM = (*(f"GPU-{host}-{n}" for host in ("node-c", "node-d") for n in (1, 2)), THEIRS[3])
"""GPUs at 80 °C: 5 of the 12 that are not node-a's, so that those are warm by the median once node-a's four are hot."""


def known(site: TokenSite) -> list[object]:
    """Of node-b's GPUs and their parts identity, readings and freshness, and what peers say of them."""
    readings = [one for one in site.brain.memory.latest() if {one.gpu.uuid, one.gpu.parent} & set(THEIRS)]
    told = [(one.gpu.uuid, one.gpu.host, one.gpu.pool, one.gpu.rack, one.at_ms, one.values) for one in readings]
    hotter = [one.subject.key for one in site.brain.active if one.rule == "hotter_than_peers"]
    return [*sorted(told, key=lambda one: one[0]), sorted(one for one in hotter if VICTIM in one)]


def run(folder: Path, seed: int, *, hostile: bool, failed: bool, shown: int | None) -> tuple[set[str], list[object]]:
    """What started on node-b, and what is known of it after each step."""
    rng, story = random.Random(seed), random.Random(-seed)
    tight, turn = seed % 2 == 0, story.randrange(7, 11)
    with token_site(folder, managed=shown is not None, shown=shown) as site:
        site.celsius = dict.fromkeys(WARM, 80.0)
        site.steps(SETTLING_STEPS)
        after = []
        for n in range(STEPS):
            if failed and not n:
                site.lost |= {one.uuid for one in site.gpus[HOSTILE]}
                site.out |= {HOSTILE}
            if tight and n in TIGHT:
                site.lost.add(f"GPU-{TIGHT[n]}-{story.randrange(4)}")
            if n == turn or (n > turn and story.random() < 0.3):
                site.lost.add(story.choice(THEIRS))
            # Every other step one is silent: for longer, and another host might have it.
            site.silent = {story.choice(THEIRS)} if n % 2 else set()
            site.step(rng.choice(LIES[seed % 2])(rng, site.clock.now_ms() + STEP_MS, n) if hostile else [])
            after.append(known(site))
        return site.started(VICTIM), after


@pytest.mark.parametrize("shown", [None, 4])
@pytest.mark.parametrize("seed", range(int(os.environ.get("TOCSIN_SEEDS", "2"))))
def test_any_lines_of_a_node_leave_another_as_it_would_be(tmp_path: Path, seed: int, shown: int | None) -> None:
    begun = perf_counter()
    truth, plain = run(tmp_path / "truth", seed, hostile=False, failed=False, shown=shown)
    attacked, seen = run(tmp_path / "attacked", seed, hostile=True, failed=False, shown=shown)
    worst, _ = run(tmp_path / "worst", seed, hostile=False, failed=True, shown=shown)
    took = perf_counter() - begun
    print(
        f"seed {seed}, {PER_STEP * STEPS} lines, {STEPS} steps: {len(attacked)} of {len(truth)} started, {took:.0f} s"
    )
    assert seen == plain
    assert attacked <= truth
    assert worst & truth <= attacked
