"""What commit 2bd2118 left on disk, and what it made of it itself: see ``tests/data/compat/2bd2118/README.md``.

Everything that names a type of today's code is in this module, so that a rename changes imports here alone.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tocsin.actions.model.controls import Breaker
from tocsin.actions.model.decision_json import dump_decision, dump_outcome, dump_verdicts
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.decision import Outcome, Verdict
from tocsin.domain.reading import Reading
from tocsin.journal.journal import Journal
from tocsin.store.port import Columns, Series, Store

FOLDER = Path(__file__).parents[2] / "data" / "compat" / "2bd2118"
WHEEL = FOLDER / "tocsin-0.1.0-py3-none-any.whl"
"""The agent of that commit."""
CHARTED = ("gpu_temperature_celsius", "gpu_power_watts", "gpu_energy_joules_total", 'gpu_nvlink_up{link="0"}')
JOURNALS = ("journals/catalogue.db", "journals/loop.db", "journals/plans.db", "brain/journal.db")
STORES = ("store/store.db", "brain/store.db")


def unpack(folder: Path) -> Path:
    """The files in a new folder below `folder`."""
    with tarfile.open(FOLDER / "state.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder / "state"


def install_wheel(target: Path) -> Path:
    """The wheel in the folder `target`, and nothing else."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--target", str(target)]
    subprocess.run([*command, "--disable-pip-version-check", str(WHEEL)], check=True, timeout=120)
    return target


def old_environment(wheel: Path, **more: str) -> dict[str, str]:
    """Of a process that runs the code of the folder `wheel`, with none of our settings but `more`."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    return {**ours, "PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": "1", **more}


@cache
def expected() -> dict[str, Any]:
    """What the code of that commit read from the same files."""
    found: dict[str, Any] = json.loads(lzma.decompress((FOLDER / "expected.json.xz").read_bytes()))
    return found


def plain(value: Any) -> Any:
    """`value` as JSON has it; an outcome, a verdict or the breaker without what it has not from then."""
    if isinstance(value, Outcome):
        return dump_outcome(value)
    if isinstance(value, Verdict):
        return dump_verdicts((value,))[0]
    if isinstance(value, Breaker):
        return plain({name: one for name, one in asdict(value).items() if name != "reason_zh" or one})
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {"|".join(k) if isinstance(k, tuple) else str(k): plain(one) for k, one in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(plain(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def named(found: Any, names: Iterable[str]) -> dict[str, Any]:
    """The attributes of `found` by these names."""
    return {name: plain(getattr(found, name)) for name in names}


def settings_of(folder: Path) -> Settings:
    """Of a brain over the files in `folder`."""
    chosen = {
        "store": {"path": folder / "store.db"},
        "journal": {"path": folder / "journal.db"},
        "forecast": {"worker": False, "models": folder / "models"},
        "actions": {"mode": "act", "earn_waived": ["*"]},
    }
    return Settings.model_validate(chosen)


# ------------------------------------------------------------------------------------------------ journals

_OF_DECISION = (
    "state", "overall", "verdicts", "outcome", "approved_by", "reason", "updated_ms", "executor", "detail", "attempts",
    "lasting", "changed", "before", "effect", "checked", "seen", "steps",
)  # fmt: skip
_OF_CONTROLS = (
    "paused", "breaker", "approvals", "rejections", "hold_offs", "started", "attempts", "busy", "renewals", "cancelled",
    "finished", "doubtful", "confirmed", "failures", "experience", "capping",
)  # fmt: skip


def fold(path: Path) -> dict[str, Any]:
    """What the ledger makes of the journal at `path`."""
    with closing(Journal.open(path, ManualClock(0))) as journal:
        book = DecisionLog(journal)
    ledger, controls = book.ledger, book.ledger.controls()
    told = {key: plain(dict(ledger.deliveries.done(key))) for key in sorted(ledger.known)}
    return {
        "decisions": {
            record.decision.id: plain(dump_decision(record.decision)) | named(record, _OF_DECISION)
            for record in book.records()
        },
        "controls": {"effects": sorted(controls.effects), **named(controls, _OF_CONTROLS)},
        "known": sorted(ledger.known),
        "ended": plain(ledger.ended),
        "causes": plain(ledger.causes),
        "open": {c: {m: sorted(keys) for m, keys in one.items()} for c, one in ledger.deliveries.open.items()},
        "told": {key: one for key, one in told.items() if one},
    }


# ------------------------------------------------------------------------------------------------ stores


def reading_row(one: Reading) -> dict[str, Any]:
    """A reading as `expected` has it."""
    return {
        "gpu": one.gpu.uuid,
        "at_ms": one.at_ms,
        "values": dict(one.values),
        "missing": {name: int(reason) for name, reason in one.missing.items()},
        "owners": [owner.as_json() for owner in one.owners],
    }


def whole(values: Any) -> list[list[float | None]]:
    """An array with None for what is not there."""
    return [[None if math.isnan(one) else one for one in row] for row in values.tolist()]


def series_row(found: Series) -> dict[str, Any]:
    """A series as `expected` has it."""
    return {
        "gpu": found.gpu,
        "metrics": list(found.metrics),
        "at_ms": found.at_ms.tolist(),
        "values": whole(found.values),
    }


def columns_row(found: Columns) -> list[Any]:
    """Columns as `expected` has them."""
    return [[found.gpus[n] for n in found.gpu], found.at_ms.tolist(), whole(found.values)]


def sums(store: Store, start_ms: int, end_ms: int) -> dict[str, Any]:
    """Readings by GPU, values and their sum by metric, reasons, owners."""
    gpus: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    owners: Counter[str] = Counter()
    values: dict[str, list[float]] = {}
    for one in store.readings(start_ms, end_ms):
        gpus[one.gpu.uuid] += 1
        for name, value in one.values.items():
            counts[name] += 1
            values.setdefault(name, []).append(value)
        missing.update(f"{name} {int(reason)}" for name, reason in one.missing.items())
        owners.update(json.dumps(owner.as_json(), sort_keys=True) for owner in one.owners)
    added = {name: math.fsum(found) for name, found in values.items()}
    return {"gpus": dict(gpus), "counts": dict(counts), "sums": added, "missing": dict(missing), "owners": dict(owners)}


def identified(found: Iterable[Any]) -> list[dict[str, Any]]:
    """Events, findings or predictions as `expected` has them."""
    return [{"id": one.id, **plain(one)} for one in found]


def within(wanted: Any, found: Any) -> bool:
    """Whether `found` says all that `wanted` does; a new version may say more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(name in found and within(wanted[name], found[name]) for name in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(wanted) == len(found) and all(map(within, wanted, found))
    return bool(wanted == found)
