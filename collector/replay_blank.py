"""DCGM's blank sentinels over whole columns, which older exporters print as if they were values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.collector.dcgm_fields import FP64_BLANK, INT32_BLANK, INT64_BLANK


def is_blank(raw: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which raw values, before any scaling, stand for nothing: a sentinel, a NaN or an infinity."""
    small = ((raw >= FP64_BLANK) & (raw <= FP64_BLANK + 3)) | ((raw >= INT32_BLANK) & (raw <= INT32_BLANK + 3))
    return small | (raw >= float(INT64_BLANK)) | ~np.isfinite(raw)
