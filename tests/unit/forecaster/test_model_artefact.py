"""A model on disk: all or nothing, checked, and never more than data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import skops.io
from sklearn.neighbors import KNeighborsClassifier

from tocsin.domain.errors import InputError
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.artefact import ModelCard, digest, load, read_card, save
from tocsin.forecaster.hazard.scorer import Scorer, State
from tocsin_testing.builders import T0
from tocsin_testing.scored import SMALL, fleet

PAST = fleet(devices=60, seed=1)
FILES = ("card.json", "state.json", "arrays.safetensors", "000.skops", "checksums.json")


def card(family: str = "boosting") -> ModelCard:
    return ModelCard(
        name="fleet", version="2026-01-01", family=family, horizons_ms=(1, 2), features=("heat",),
        provenance="made-up fleet", data_hash="ab", code_version="0.1", created_ms=T0, trained_from_ms=T0,
        trained_to_ms=T0 + 1, rows=10, onsets=2, notes=("first",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    made = registry.build("boosting", **{**SMALL["boosting"], "max_iter": 4})
    made.fit(PAST)
    return made


@pytest.fixture
def folder(scorer: Scorer, tmp_path: Path) -> Path:
    save(tmp_path / "models" / "one", scorer, card())
    return tmp_path / "models" / "one"


def sign(folder: Path) -> None:
    """Checksums that fit, as whoever changes files on purpose would write them."""
    names = [path.name for path in folder.iterdir() if path.name != "checksums.json"]
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "checksums.json").write_text(json.dumps(sums))


def test_nothing_but_the_files_is_left(folder: Path) -> None:
    assert set(FILES) <= {path.name for path in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir()] == ["one"]
    assert read_card(folder) == card()


def test_a_folder_that_is_there_is_not_written_over(folder: Path, scorer: Scorer) -> None:
    before = digest(folder)
    with pytest.raises(InputError, match="something already"):
        save(folder, scorer, card())
    assert digest(folder) == before


def test_a_save_that_fails_leaves_nothing(tmp_path: Path, scorer: Scorer) -> None:
    class Broken:
        def state(self) -> State:
            return State({"family": "x", "value": float("nan")})

    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path / "models" / "bad", Broken(), card())  # type: ignore[arg-type]
    assert not (tmp_path / "models" / "bad").exists()


def test_a_save_that_is_cut_off_leaves_nothing(tmp_path: Path, scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, _mode: int) -> None:
        path.write_bytes(data[:10])
        raise OSError("no space left on device")

    monkeypatch.setattr("tocsin.forecaster.hazard.artefact.write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path / "one", scorer, card())
    assert list(tmp_path.iterdir()) == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [flip, cut, remove])
@pytest.mark.parametrize("name", FILES)
def test_damage_gives_one_clear_error(folder: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(folder / name)
    with pytest.raises(InputError) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.field == "model"


@pytest.mark.parametrize("name", FILES[:-1])
def test_damage_with_checksums_that_fit_gives_one_clear_error(folder: Path, name: str) -> None:
    cut(folder / name)
    sign(folder)
    with pytest.raises(InputError):
        load(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"card.json": 5}', '{"../outside": "00"}'])
def test_checksums_that_are_none_are_refused(folder: Path, text: str) -> None:
    (folder / "checksums.json").write_text(text)
    with pytest.raises(InputError):
        load(folder)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="so it is no model"):
        load(tmp_path)


def test_types_that_are_not_trusted_are_never_built(folder: Path) -> None:
    harmful = KNeighborsClassifier(1).fit(np.zeros((2, 1)), [0, 1])
    harmful.metric = tuple.__getitem__
    skops.io.dump({"model": harmful, "call": print}, folder / "000.skops")
    sign(folder)
    with pytest.raises(InputError, match=r"000\.skops.*"):
        load(folder)


def test_another_estimator_in_place_of_ours_is_refused(folder: Path) -> None:
    skops.io.dump(KNeighborsClassifier(1).fit(np.zeros((2, 1)), [0, 1]), folder / "000.skops")
    sign(folder)
    with pytest.raises(InputError):
        load(folder)


def edit(folder: Path, name: str, change: Callable[[dict[str, object]], None]) -> None:
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))
    sign(folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("state.json", lambda v: v.update(format=99), "not of format 1"),
        ("state.json", lambda v: v["settings"].update(family="oracle"), "no scorer has this name"),
        ("state.json", lambda v: v["settings"].update(family="hazard", build={}), "do not fit together"),
        ("state.json", lambda v: v["settings"].pop("build"), "how it was built"),
        ("state.json", lambda v: v["settings"].pop("names"), "do not fit together"),
        ("state.json", lambda v: v["settings"]["build"].update(wings=1), "no such setting"),
        ("state.json", lambda v: v.update(estimators={}), "not boosted trees"),
        ("card.json", lambda v: v.pop("rows"), "not a card"),
    ],
)
def test_contradictions_are_refused(
    folder: Path, name: str, change: Callable[[dict[str, object]], None], words: str
) -> None:
    edit(folder, name, change)
    with pytest.raises(InputError, match=words):
        load(folder)


def test_the_digest_is_that_of_the_content(folder: Path, scorer: Scorer, tmp_path: Path) -> None:
    save(tmp_path / "other", scorer, replace(card(), notes=()))
    assert digest(folder) == hashlib.sha256((folder / "checksums.json").read_bytes()).hexdigest()
    assert digest(tmp_path / "other") != digest(folder)
