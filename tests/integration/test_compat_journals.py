"""Journals that commit 2bd2118 wrote: they verify, fold to the same state, go on, and the commands read them."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.actions.model.decision_json import dump_decision, load_decision
from tocsin.cli.main import cli
from tocsin.domain.clock import ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.journal.files import read_entries
from tocsin.journal.journal import Journal
from tocsin.journal.verify import verify
from tocsin_testing.compat import JOURNALS, expected, fold, unpack


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("compat"))


@pytest.fixture
def state(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "state"))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


@pytest.mark.parametrize("name", JOURNALS)
def test_the_chain_holds_entry_by_entry(state: Path, name: str) -> None:
    wanted = expected()["journals"][name]
    result = verify(state / name)
    assert (result.ok, result.events) == (True, wanted["events"])
    entries = list(read_entries(state / name))
    kinds = {kind: sum(entry.kind == kind for entry in entries) for kind in wanted["kinds"]}
    assert kinds == wanted["kinds"]
    assert entries[-1].hash == wanted["last"]


def test_every_kind_of_entry_is_in_one_of_them_and_still_known() -> None:
    found = {kind for one in expected()["journals"].values() for kind in one["kinds"]}
    assert len(found) == 30
    assert found <= {kind.value for kind in EntryKind}


@pytest.mark.parametrize("name", JOURNALS)
def test_the_ledger_folds_it_to_the_same_state(state: Path, name: str) -> None:
    wanted, found = expected()["journals"][name]["fold"], fold(state / name)
    assert found["decisions"].keys() == wanted["decisions"].keys()
    for identity, decision in wanted["decisions"].items():
        assert found["decisions"][identity] == decision
    for part, value in wanted["controls"].items():
        assert found["controls"][part] == value, part
    assert found == wanted


@pytest.mark.parametrize("name", JOURNALS)
def test_every_decision_is_written_again_as_it_was(state: Path, name: str) -> None:
    entries = list(read_entries(state / name, kinds=[EntryKind.DECISION]))
    assert entries
    for entry in entries:
        payload = dict(entry.payload)
        decision = load_decision(payload)
        assert decision.id == payload["id"]
        assert json.loads(json.dumps(dump_decision(decision))) == payload


@pytest.mark.parametrize("name", JOURNALS)
def test_it_goes_on_under_the_same_chain(state: Path, name: str) -> None:
    before = verify(state / name).events
    with closing(Journal.open(state / name, ManualClock(1))) as journal:
        assert journal.head == before
        journal.append(EntryKind.PAUSE, {"reason": "a new version"}, actor="anna")
    result = verify(state / name)
    assert (result.ok, result.events) == (True, before + 1)


@pytest.mark.parametrize("name", JOURNALS)
def test_the_commands_read_it(state: Path, tmp_path: Path, name: str) -> None:
    path, wanted = str(state / name), expected()["journals"][name]
    verified = run("journal", "verify", path, "--json")
    assert json.loads(verified.stdout) == {"verified": True, "events": wanted["events"], "problem": ""}
    shown = json.loads(run("journal", "show", path, "--json").stdout)
    assert [row["seq"] for row in shown] == list(range(1, wanted["events"] + 1))
    for form in ("jsonl", "cef"):
        target = tmp_path / f"out.{form}"
        exported = run("journal", "export", path, "--format", form, "--output", str(target))
        assert exported.exit_code == 0, exported.output
        assert len(target.read_text("utf-8").splitlines()) == wanted["events"]


def test_what_a_person_did_by_hand_is_read(state: Path) -> None:
    (entry,) = read_entries(state / "brain" / "by-hand.db", kinds=[EntryKind.MANUAL_ACTION])
    assert (entry.actor, entry.payload["action"]) == ("anna@admin", "drain")
    assert verify(state / "brain" / "by-hand.db").ok


def test_a_backup_is_restored_in_place_of_a_lost_journal(state: Path, tmp_path: Path) -> None:
    config, target = tmp_path / "tocsin.toml", tmp_path / "new" / "journal.db"
    config.write_text(f'[journal]\npath = "{target}"\n')
    restored = run("--config", str(config), "journal", "restore", str(state / "backups" / "journal.db"), "--json")
    assert restored.exit_code == 0, restored.output
    wanted = expected()["journals"]["journals/loop.db"]
    assert verify(target).events == wanted["events"]
    assert fold(target) == wanted["fold"]


def test_a_backup_of_it_is_one_that_this_version_makes(state: Path, tmp_path: Path) -> None:
    config, target = tmp_path / "tocsin.toml", tmp_path / "copy.db"
    config.write_text(f'[journal]\npath = "{state / "journals" / "loop.db"}"\n')
    made = run("--config", str(config), "journal", "backup", str(target))
    assert made.exit_code == 0, made.output
    assert fold(target) == expected()["journals"]["journals/loop.db"]["fold"]
