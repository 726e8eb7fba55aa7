"""The evidence of a GPU out of a running brain: its archive, its README, what it may not say, and the command."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.cli.main import cli
from tocsin.client.errors import NotFound
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.reading import Missing, Owner
from tocsin.journal.bundle import check_bytes
from tocsin.journal.files import load_key
from tocsin.journal.verify import hash_at
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0, gpu, reading, xid
from tocsin_testing.fake_service import FakeService, serving

SECRET = "a-viewer-of-the-site-0123456789"
BAD = gpu(0, serial="1652019", pci_bus_id="00000000:07:00.0", labels={"driver_version": "550.54", "team": "red-team"})
OWNER = Owner(4242, process="train.py", user="alice", slurm_job="777")
GOLDEN = Path(__file__).parent.parent / "golden" / "evidence" / "README.txt"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[BrainService, Settings]]:
    settings = Settings.model_validate(
        {
            "store": {"kind": "memory"},
            "journal": {"path": tmp_path / "journal.db", "key_file": tmp_path / "keys" / "key"},
            "forecast": {"worker": False, "models": tmp_path / "models"},
            "api": {"tokens": [{"name": "viewer", "role": "viewer", "secret": SECRET}]},
        }
    )
    (tmp_path / "keys").mkdir()
    clock = ManualClock(T0)
    running = open_brain(settings, clock)
    brain = running.brain
    try:
        for minute in range(-5, 6):
            at_ms = T0 + minute * MINUTE
            own = reading(BAD, at_ms, {"gpu_power_watts": Missing.TIMED_OUT}, temperature_celsius=60 + minute)
            like = [reading(gpu(n), at_ms, temperature_celsius=40 + n) for n in (1, 2, 3)]
            brain.store.write(Batch(readings=[replace(own, owners=(OWNER,)), *like]))
        brain.store.write(Batch(events=[replace(xid(79, BAD), message="pid=4242, name=train.py")]))
        clock.set(T0 + 6 * MINUTE)
        newest = T0 + 6 * MINUTE
        brain.accept(
            Batch(readings=[reading(one, newest, temperature_celsius=66) for one in (BAD, *map(gpu, (1, 2, 3)))])
        )
        brain.journal.append(EntryKind.INJECTION, {"kind": "bus", "gpu": BAD.uuid, "at_ms": T0})
        brain.journal.append(EntryKind.FINDING_CLEARED, {"id": "f1", "gpu": BAD.uuid, "owners": ["alice"]})
        brain.journal.append(EntryKind.FINDING_CLEARED, {"id": "f2", "gpu": BAD.uuid, "detail": f"leak {SECRET}"})
        brain.journal.append(EntryKind.MANUAL_ACTION, {"gpu": BAD.uuid, "reason": "by hand"}, actor="anna")
        brain.journal.append(EntryKind.FINDING_CLEARED, {"id": "f3", "gpu": gpu(1).uuid})
        yield BrainService(brain), settings
    finally:
        running.stop()


def made(service: BrainService, *, owners: bool = False) -> bytes:
    return b"".join(service.evidence(BAD.uuid, T0 - HOUR, T0 + HOUR, owners))


def files_of(content: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {one.name: (tar.extractfile(one) or io.BytesIO()).read().decode() for one in tar.getmembers()}


def test_it_is_signed_with_the_journal_s_key_and_the_same_each_time(served: tuple[BrainService, Settings]) -> None:
    service, settings = served
    assert settings.journal.key_file is not None
    told = check_bytes(made(service), load_key(settings.journal.key_file))
    assert (told.problem, told.proven, told.entries, told.withheld) == ("", True, 4, 3)
    assert made(service) == made(service)


def test_the_extract_is_of_the_journal(served: tuple[BrainService, Settings]) -> None:
    service, settings = served
    rows = [json.loads(line) for line in files_of(made(service))["journal.jsonl"].splitlines()]
    assert all(hash_at(settings.journal.path, row["seq"]) == row["hash"] for row in rows)
    assert [row.get("withheld", row["kind"]) for row in rows] == [
        "injection", "names owners", "holds a secret of the settings", "names a person",
    ]  # fmt: skip


def test_owners_and_people_are_told_only_on_request_and_secrets_never(served: tuple[BrainService, Settings]) -> None:
    service, _ = served
    without, with_owners = made(service), made(service, owners=True)
    for word in (b"alice", b"train.py", b"anna", b"by hand", b"red-team"):
        assert word not in without
    assert b"alice" in with_owners
    assert b"pid=4242, name=train.py" in with_owners
    assert SECRET.encode() not in without + with_owners


def test_telemetry_has_units_and_reasons_and_peers_their_median_and_range(
    served: tuple[BrainService, Settings],
) -> None:
    files = files_of(made(served[0]))
    assert '0.0,"gpu_temperature_celsius","celsius",60.0,' in files["telemetry.csv"]
    assert '0.0,"gpu_power_watts","watts","","timed_out"' in files["telemetry.csv"]
    assert '"gpu_temperature_celsius","celsius",60.0,42.0,41.0,43.0,3\n' in files["peers.csv"]
    assert ',"xid",79,' in files["xids.csv"]


def test_the_readme_is_as_agreed(served: tuple[BrainService, Settings]) -> None:
    assert files_of(made(served[0]))["README.txt"] == GOLDEN.read_text()


def test_without_a_key_it_says_so(served: tuple[BrainService, Settings]) -> None:
    service, _ = served
    service._brain.journal.key = b""
    content = made(service)
    assert "UNSIGNED" in files_of(content)["README.txt"]
    told = check_bytes(content)
    assert (told.problem, told.signed) == ("", False)


def test_no_such_gpu_and_roles(served: tuple[BrainService, Settings]) -> None:
    service, settings = served
    with pytest.raises(NotFound):
        service.evidence("GPU-none", T0 - HOUR, T0, False)
    http = TestClient(create_app(service, settings.api))
    url = f"/v1/gpus/{BAD.uuid}/evidence"
    assert http.get(url).status_code == 401
    headers = {"Authorization": f"Bearer {SECRET}"}
    answer = http.get(url, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-tar")
    assert check_bytes(answer.content).problem == ""
    assert http.get(url, params={"start": "2020-01-01T00:00:00Z"}, headers=headers).status_code == 400


def test_the_command_writes_it_and_verifies_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(FakeService()) as url:
        uuid = FakeService().gpus()[0].uuid
        told = CliRunner().invoke(cli, ["evidence", uuid, "--out", "a.tar", "--api-url", url], catch_exceptions=False)
        assert told.output == f"ok: wrote a.tar (brain {url})\n"
    fine = CliRunner().invoke(cli, ["evidence", "verify", "a.tar"], standalone_mode=False)
    assert (fine.return_value, fine.output) == (0, "ok: unsigned; 0 journal entries\n")
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes().replace(b"GPU-", b"GPX-"))
    bad = CliRunner().invoke(cli, ["evidence", "verify", "a.tar", "--json"], standalone_mode=False)
    assert bad.return_value == 1
    assert json.loads(bad.output)["problem"] == "README.txt is not what MANIFEST.sha256 says"
