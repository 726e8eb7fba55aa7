"""A fitted scorer as a folder: JSON, safetensors and skops, with a model card and checksums. Nothing is ever pickled.

    card.json             what it is, what it learned from, and how it was judged
    state.json            settings of the scorer
    arrays.safetensors    arrays
    NAME.skops            a scikit-learn estimator each
    checksums.json        sha256 of every file above

Checksums find damage, not malice: who can write the folder can write new ones. Malice is met by what the files may
hold: JSON and safetensors are data alone, and skops builds only types of `TRUSTED` beside those it trusts by itself.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from tocsin.domain.atomic_file import sync_folder, write_atomically
from tocsin.domain.errors import InputError
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.scorer import Scorer, State

TRUSTED = (
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
)
"""Types that our estimators are made of and skops does not trust by itself."""

FORMAT = 1
CARD, STATE, ARRAYS, SUMS = "card.json", "state.json", "arrays.safetensors", "checksums.json"
_ESTIMATOR = ".skops"
_SHARED = 0o666
"""A model holds no secret, and whoever trains one is often not who runs it: its mode is the umask's."""
_TRAIN = "train the model anew, or copy it again from where it was made"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What travels with a model.

    `name` and `version` are those of the artefact, `family` that of the scorer. `trained_from_ms` and `trained_to_ms`
    bound the instants of the rows that it learned from, `rows` and `onsets` count them. `provenance` says in words
    where the data is from, `data_hash` and `code_version` which data and which program; `report_digest` names the
    backtest that judged it, empty without one.
    """

    name: str
    version: str
    family: str
    horizons_ms: tuple[int, ...]
    features: tuple[str, ...]
    provenance: str
    data_hash: str
    code_version: str
    created_ms: int
    trained_from_ms: int
    trained_to_ms: int
    rows: int
    onsets: int
    report_digest: str = ""
    notes: tuple[str, ...] = ()


def save(folder: Path, scorer: Scorer, card: ModelCard) -> None:
    """Write `scorer` to `folder`, which must not exist yet: all of it appears at once, or nothing.

    Raises InputError where there is something already.
    """
    if folder.exists():
        raise InputError("folder", str(folder), "there is something already", "give every version a folder of its own")
    content = _content(scorer.state(), card)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, data in content.items():
            write_atomically(made / name, data, _SHARED)
        made.chmod(0o755)
        made.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _content(state: State, card: ModelCard) -> dict[str, bytes]:
    names = {key: f"{place:03}{_ESTIMATOR}" for place, key in enumerate(sorted(state.estimators))}
    about = {"format": FORMAT, "settings": state.settings, "estimators": names}
    arrays = {key: np.ascontiguousarray(value) for key, value in state.arrays.items()}
    content = {CARD: _json(asdict(card)), STATE: _json(about), ARRAYS: save_arrays(arrays)}
    if names:
        import skops.io

        content |= {name: skops.io.dumps(state.estimators[key]) for key, name in names.items()}
    content[SUMS] = _json({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})
    return content


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def load(folder: Path) -> tuple[Scorer, ModelCard]:
    """The scorer and its card. Raises InputError for a folder that is missing, damaged, or not to be trusted."""
    content = _verified(folder)
    about = _object(content, folder, STATE)
    settings, files = about.get("settings"), about.get("estimators")
    if about.get("format") != FORMAT or not isinstance(settings, dict) or not isinstance(files, dict):
        raise InputError("model", str(folder / STATE), f"not of format {FORMAT}", "use the Tocsin that made it")
    estimators = {str(key): _estimator(content, folder, str(name)) for key, name in files.items()}
    state = State(settings, _arrays(content, folder), estimators)
    build = settings.get("build")
    if not isinstance(build, dict):
        raise InputError("model", str(folder / STATE), "it does not say how it was built", _TRAIN)
    scorer = registry.build(str(settings.get("family")), **build)
    try:
        scorer.restore(state)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise InputError("model", str(folder), f"its parts do not fit together: {error!r}", _TRAIN) from error
    return scorer, _card(content, folder)


def read_card(folder: Path) -> ModelCard:
    """The card alone, of a folder whose checksums hold."""
    return _card(_verified(folder), folder)


def digest(folder: Path) -> str:
    """sha256 over all of an artefact: that of its checksums. Raises InputError for a damaged one."""
    return hashlib.sha256(_verified(folder)[SUMS]).hexdigest()


def _verified(folder: Path) -> dict[str, bytes]:
    if not (folder / SUMS).is_file():
        raise InputError("model", str(folder), f"no {SUMS} in it, so it is no model", "give the folder of a model")
    sums = (folder / SUMS).read_bytes()
    content = {SUMS: sums}
    for name, expected in _object(content, folder, SUMS).items():
        path = folder / name
        if path.parent != folder or not path.is_file():
            raise InputError("model", str(path), "missing", _TRAIN)
        content[name] = path.read_bytes()
        if hashlib.sha256(content[name]).hexdigest() != expected:
            raise InputError("model", str(path), "its checksum is another than when it was written", _TRAIN)
    return content


def _object(content: Mapping[str, bytes], folder: Path, name: str) -> dict[str, Any]:
    try:
        value = json.loads(content[name])
    except (KeyError, ValueError) as error:
        raise InputError("model", str(folder / name), "not JSON, or not there", _TRAIN) from error
    if not isinstance(value, dict):
        raise InputError("model", str(folder / name), "not a JSON object", _TRAIN)
    return value


def _arrays(content: Mapping[str, bytes], folder: Path) -> dict[str, npt.NDArray[np.generic]]:
    try:
        return dict(load_arrays(content[ARRAYS]))
    except (KeyError, SafetensorError) as error:
        raise InputError("model", str(folder / ARRAYS), f"not safetensors: {error}", _TRAIN) from error


def _estimator(content: Mapping[str, bytes], folder: Path, name: str) -> object:
    # Where torch is installed skops loads it, for seconds: not at the start of a brain, which only looks for models.
    import skops.io
    from skops.io.exceptions import UntrustedTypesFoundException

    path = str(folder / name)
    try:
        return skops.io.loads(content[name], trusted=list(TRUSTED))
    except UntrustedTypesFoundException as error:
        raise InputError("model", path, f"holds types that are not trusted: {error}", "do not use this file") from error
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise InputError("model", path, f"not a skops file: {error!r}", _TRAIN) from error


def _card(content: Mapping[str, bytes], folder: Path) -> ModelCard:
    value = _object(content, folder, CARD)
    if set(value) != {one.name for one in fields(ModelCard)}:
        raise InputError("model", str(folder / CARD), "not a card of this version", "use the Tocsin that made it")
    parts: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
    return ModelCard(**parts)
