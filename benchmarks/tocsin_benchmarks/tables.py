"""Tables of examples put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tocsin.forecaster.features.examples import Examples


def joined(parts: Sequence[Examples]) -> Examples:
    """Rows of several tables with the same devices, groups and features, one after the other, without sequences."""
    first = parts[0]
    arrays = [one.name for one in fields(first) if isinstance(getattr(first, one.name), np.ndarray)]
    values: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    return replace(first, **values, sequences=None)
