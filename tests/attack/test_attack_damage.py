"""Whatever becomes of the bytes of an embedded store: no value that was not written, a store that opens, a count."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tocsin.domain.batch import Batch
from tocsin.domain.reading import Reading
from tocsin.store.embedded.store import SqliteStore
from tocsin_testing.damaged import HOUR, START, Blow, Facts, copy, damage, facts, fill, lost_of, readings

BLOWS = int(os.environ.get("TOCSIN_TEST_DAMAGES", "40"))
NEWEST = {"newest": "reading", "newest power": "power"}
"""Views of the newest hour, and the facts that each must be one of: an older one where the newest is lost."""


@pytest.fixture(scope="module", params=["killed", "closed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Facts]:
    path = tmp_path_factory.mktemp("whole") / "store.db"
    fill(path, killed=request.param == "killed")
    beside = path.with_name("read.db")
    copy(path, beside)
    with closing(SqliteStore(beside)) as store:
        found = facts(store)
        assert lost_of(store) == 0
    assert len([key for key in found if key[0] == "reading"]) == 3 * len(readings(0))
    return path, found


def check(path: Path, known: Facts, blow: Blow) -> None:
    with closing(SqliteStore(path)) as store:
        store.init()
        found = facts(store)
        lost = known.keys() - found.keys()
        lost_rows = {key for key in lost if key[0] not in NEWEST}
        for key, value in found.items():
            if key[0] in NEWEST:
                assert isinstance(value, tuple)
                written = known.get((NEWEST[key[0]], (key[1], value[0])))
                assert value[1] == written, f"{blow}: {key} at {value[0]} is {value[1]}, written was {written}"
            else:
                assert key in known, f"{blow}: {key} was never written: {value}"
                assert value == known[key], f"{blow}: {key}"
        if lost_rows:
            assert lost_of(store) > 0, f"{blow}: {len(lost_rows)} lost without a word, such as {next(iter(lost_rows))}"
        # It goes on: what comes now is kept, under the name of the GPU that sent it.
        fresh = [Reading(one.gpu, START + 50 * HOUR, {"gpu_power_watts": 1.0}) for one in readings(0)]
        store.write(Batch(list({one.gpu.uuid: one for one in fresh}.values())))
        assert store.latest_columns(["gpu_power_watts"], START + 50 * HOUR).gpus == tuple(
            sorted({one.gpu.uuid for one in fresh})
        )
    with closing(SqliteStore(path)) as store:
        again = facts(store)
        assert {key for key in found if key[0] == "reading"} <= again.keys(), f"{blow}: lost later"


@pytest.mark.parametrize("seed", range(BLOWS))
def test_no_damage_gives_a_wrong_value_or_keeps_the_store_from_opening(
    whole: tuple[Path, Facts], tmp_path: Path, seed: int
) -> None:
    source, known = whole
    path = tmp_path / "store.db"
    copy(source, path)
    blow = damage(path, random.Random(seed))
    check(path, known, blow)
    shutil.rmtree(tmp_path)
