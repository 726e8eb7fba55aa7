"""A builder as arrays, so that a service that starts again need not read a month."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.domain.errors import InputError
from tocsin.domain.identity import Gpu
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.plan import Plan

VERSION = 1
_ABOUT = "about"


def save(builder: FeatureBuilder) -> dict[str, npt.NDArray[Any]]:
    """Everything that `restore` needs: numeric arrays, one of them JSON text as bytes."""
    parts = builder.parts
    about = {
        "version": VERSION,
        "plan": _fingerprint(builder.plan),
        "gpus": [{**asdict(gpu), "labels": dict(gpu.labels)} for gpu in parts.roster.gpus],
        "jobs": dict(parts.roster.jobs),
        "installed_ms": parts.installed_ms,
        "events": dict(parts.happenings.known()),
        "newest_ms": int(builder.newest_ms),
        "late": builder.late,
        "step": int(parts.rings.step),
    }
    text = json.dumps(about, ensure_ascii=False, sort_keys=True)
    return {**parts.arrays.state(), _ABOUT: np.frombuffer(text.encode(), dtype=np.uint8).copy()}


def restore(plan: Plan, state: Mapping[str, npt.NDArray[Any]]) -> FeatureBuilder:
    """The builder that `save` was given. Raises InputError for a state of another plan or version, or none at all."""
    remedy = "read the past from the store"
    try:
        about = json.loads(state[_ABOUT].tobytes())
    except (KeyError, ValueError):
        raise InputError("state", sorted(state)[:5], "not the state of a feature builder", remedy) from None
    if about.get("version") != VERSION or about.get("plan") != _fingerprint(plan):
        raise InputError("state", about.get("version"), "of another version or plan", remedy)
    builder = FeatureBuilder(plan, [Gpu(**gpu) for gpu in about["gpus"]], installed_ms=about["installed_ms"])
    builder.parts.arrays.restore(state)
    builder.parts.rings.step = about["step"]
    builder.parts.happenings.recall(about["events"])
    builder.assign(about["jobs"])
    builder.newest_ms, builder.late = about["newest_ms"], about["late"]
    return builder


def _fingerprint(plan: Plan) -> str:
    return repr(plan)
