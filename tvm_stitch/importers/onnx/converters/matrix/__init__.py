# SPDX-License-Identifier: Apache-2.0
"""Converters of operators that multiply matrices: attention, convolutions, Einsum, and quantized products."""

from __future__ import annotations

from ..node import Conversion
from .attention import CONVERSIONS as ATTENTION
from .convolution import CONVERSIONS as CONVOLUTION
from .einsum import CONVERSIONS as EINSUM
from .quantized import CONVERSIONS as QUANTIZED

CONVERSIONS: dict[tuple[str, str], Conversion] = {**ATTENTION, **CONVOLUTION, **EINSUM, **QUANTIZED}
"""Converters by ``(domain, operator)``."""
