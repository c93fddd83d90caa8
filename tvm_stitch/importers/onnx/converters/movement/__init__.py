# SPDX-License-Identifier: Apache-2.0
"""Converters of operators that move elements: constants and shapes, indices, and sequences."""

from __future__ import annotations

from ..node import Conversion
from .constants import CONVERSIONS as CONSTANTS
from .coordinates import CONVERSIONS as COORDINATES
from .indexing import CONVERSIONS as INDEXING
from .selection import CONVERSIONS as SELECTION
from .sequences import CONVERSIONS as SEQUENCES

CONVERSIONS: dict[tuple[str, str], Conversion] = {
    **CONSTANTS,
    **COORDINATES,
    **INDEXING,
    **SELECTION,
    **SEQUENCES,
}
"""Converters by ``(domain, operator)``."""
