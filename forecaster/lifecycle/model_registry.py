"""The folder of models: every version in a folder of its own, and which one is in service.

``VERSION/model/`` is the artefact (`tocsin.forecaster.hazard.artefact`), ``VERSION/cases.safetensors`` past cases for
explanations, ``VERSION/kinds.safetensors`` which class a fault will be of, ``VERSION/reference.safetensors`` how
features were spread in training, ``VERSION/gate.json`` where it may be heard (`tocsin.forecaster.lifecycle.gate`).
``service.json`` says which version serves, and which served before.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.hazard import artefact
from tocsin.forecaster.hazard.artefact import ModelCard
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.lifecycle.cases import CaseRecord
from tocsin.forecaster.lifecycle.drift import FeatureReference
from tocsin.forecaster.lifecycle.fault_kinds import FaultKinds
from tocsin.forecaster.lifecycle.gate import GateRecord, ModelGate

MODEL, SERVICE = "model", "service.json"
CASES, REFERENCE, KINDS = "cases.safetensors", "reference.safetensors", "kinds.safetensors"
GATE = "gate.json"
PRIOR = "prior"
"""Name of the version that ships; it lies in the package, not in the folder."""


@dataclass(frozen=True, slots=True)
class Served:
    """A version that was put into service at `at_ms` by `actor`; `back` where it was put back by a rollback."""

    version: str
    at_ms: int
    actor: str
    back: bool = False


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version as it is loaded: scorer, card, past cases, the spread of features, the classes of faults, and where it
    may be heard."""

    version: str
    scorer: Scorer
    card: ModelCard
    cases: CaseRecord | None
    reference: FeatureReference | None = None
    kinds: FaultKinds | None = None
    gate: ModelGate = field(default_factory=ModelGate)


def _trail(history: list[Served]) -> list[str]:
    """Versions in the order in which they were put into service; each step back has taken the last away."""
    trail: list[str] = []
    for one in history:
        if one.back:
            trail.pop()
            trail = trail or [one.version]
        else:
            trail.append(one.version)
    return trail


def shipped() -> Path | None:
    """The folder of the prior that ships with the package; None where this installation has none."""
    folder = Path(__file__).parents[1] / PRIOR
    return folder if (folder / MODEL).is_dir() else None


class ModelRegistry:
    """Models below `folder`, which need not exist. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def versions(self) -> list[str]:
        return sorted(
            path.parent.name for path in self._folder.glob(f"*/{MODEL}") if not path.parent.name.startswith(".")
        )

    def place(self, version: str) -> Path:
        """The folder of a version, the prior among them. Raises InputError for one that is not there."""
        prior = shipped()
        if version == PRIOR and prior is not None:
            return prior
        if version not in self.versions():
            known = ", ".join([*self.versions(), *([PRIOR] if prior else [])]) or "there is none; run tocsin train"
            raise InputError("model", version, f"no such version in {self._folder}", f"use one of: {known}")
        return self._folder / version

    def card(self, version: str) -> ModelCard:
        """What a version says of itself. Raises InputError for a damaged one."""
        return artefact.read_card(self.place(version) / MODEL)

    def load(self, version: str) -> ModelVersion:
        """A version ready to score. Raises InputError for a damaged one."""
        place = self.place(version)
        scorer, card = artefact.load(place / MODEL)
        cases = CaseRecord.load(place / CASES) if (place / CASES).exists() else None
        reference = FeatureReference.load(place / REFERENCE) if (place / REFERENCE).exists() else None
        kinds = FaultKinds.load(place / KINDS) if (place / KINDS).exists() else None
        return ModelVersion(version, scorer, card, cases, reference, kinds, ModelGate.load(place / GATE))

    def gate(self, version: str) -> ModelGate:
        """Where a version may be heard. Raises InputError for one that is not there, and for a damaged record."""
        return ModelGate.load(self.place(version) / GATE)

    def record(self, version: str, record: GateRecord) -> ModelGate:
        """Add a judgement to those of `version`. Raises InputError for one that is not there or that ships."""
        if version == PRIOR:
            raise InputError("version", version, "ships with the package", "judge a version of your own")
        gate = self.gate(version).also(record)
        gate.save(self.place(version) / GATE)
        return gate

    def add(self, one: ModelVersion) -> None:
        """Add a version. Raises InputError where the name is taken."""
        version = one.version
        if version == PRIOR or (self._folder / version).exists():
            raise InputError("version", version, "the name is taken", "give the version another name")
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=self._folder) as made:
            artefact.save(Path(made) / MODEL, one.scorer, one.card)
            for part, name in ((one.cases, CASES), (one.reference, REFERENCE), (one.kinds, KINDS)):
                if part is not None:
                    part.save(Path(made) / name)
            one.gate.save(Path(made) / GATE)
            Path(made).chmod(0o755)
            Path(made).rename(self._folder / version)
            Path(made).mkdir()  # what the context removes

    # ------------------------------------------------------------------ service

    def history(self) -> list[Served]:
        """Who put what into service, oldest first. Raises InputError where the file cannot be read."""
        path = self._folder / SERVICE
        if not path.exists():
            return []
        try:
            return [Served(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["served"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError("models", str(path), f"unreadable: {error}", "promote a version again") from error

    @property
    def in_service(self) -> str | None:
        """The version that serves: the last promoted one, else the prior; None where there is neither."""
        history = self.history()
        if history:
            return history[-1].version
        return PRIOR if shipped() is not None else None

    def promote(self, version: str, at_ms: int, actor: str) -> str | None:
        """Put `version` into service; returns the one that served before. Raises InputError, or Conflict where it
        serves already."""
        self.place(version)
        before = self.in_service
        if before == version:
            raise Conflict(f"{version} is in service already")
        self._write([*self.history(), Served(version, at_ms, actor)])
        return before

    def rollback(self, at_ms: int, actor: str) -> tuple[str, str]:
        """Put back what served before; returns (what serves now, what served until now). Raises Conflict."""
        history = self.history()
        if not history:
            raise Conflict("nothing was promoted, so there is nothing to roll back")
        now, trail = history[-1].version, _trail(history)
        back = trail[-2] if len(trail) > 1 else PRIOR
        if back == now:
            raise Conflict(f"{now} is what everything began with, so there is nothing to roll back to")
        if back == PRIOR and shipped() is None:
            raise Conflict(f"{now} is the first version, and no prior ships with this installation")
        self.place(back)
        self._write([*history, Served(back, at_ms, actor, back=True)])
        return back, now

    def _write(self, history: list[Served]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"served": [asdict(one) for one in history]}, indent=1) + "\n"
        write_atomically(self._folder / SERVICE, text, 0o600)
