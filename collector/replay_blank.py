"""DCGM's blank sentinels, which older exporters print as if they were values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
"""dcgm_structs.h DCGM_INT64_BLANK; the next three say not found, not supported and no permission."""
FP64_BLANK = 140_737_488_355_328.0
"""dcgm_structs.h DCGM_FP64_BLANK, 2^47; the next three alike."""
INT32_BLANK = float(0x7FFFFFF0)
"""dcgm_structs.h DCGM_INT32_BLANK; the next three alike."""


def is_blank(raw: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which raw values, before any scaling, stand for nothing: a sentinel, a NaN or an infinity."""
    small = ((raw >= FP64_BLANK) & (raw <= FP64_BLANK + 3)) | ((raw >= INT32_BLANK) & (raw <= INT32_BLANK + 3))
    return small | (raw >= INT64_BLANK) | ~np.isfinite(raw)
