# SPDX-License-Identifier: Apache-2.0
"""Converters of ONNX operators, by domain and name. Each file has a table, and this one joins them."""

from __future__ import annotations

from .casts import CONVERSIONS as CASTS
from .contrib import CONVERSIONS as CONTRIB
from .control import CONVERSIONS as CONTROL
from .elementwise import CONVERSIONS as ELEMENTWISE
from .matrix import CONVERSIONS as MATRIX
from .movement import CONVERSIONS as MOVEMENT
from .node import Conversion
from .normalization import CONVERSIONS as NORMALIZATION
from .pooling import CONVERSIONS as POOLING
from .recurrent import CONVERSIONS as RECURRENT
from .reductions import CONVERSIONS as REDUCTIONS
from .resize import CONVERSIONS as RESIZE
from .signal import CONVERSIONS as SIGNAL
from .vision import CONVERSIONS as VISION

CONVERSIONS: dict[tuple[str, str], Conversion] = {
    **CASTS,
    **CONTRIB,
    **CONTROL,
    **ELEMENTWISE,
    **MATRIX,
    **MOVEMENT,
    **NORMALIZATION,
    **POOLING,
    **RECURRENT,
    **REDUCTIONS,
    **RESIZE,
    **SIGNAL,
    **VISION,
}
"""Converters of this package by ``(domain, operator)``. ONNX's own domain is ``""``."""
