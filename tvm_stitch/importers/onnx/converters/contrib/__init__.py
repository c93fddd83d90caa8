# SPDX-License-Identifier: Apache-2.0
"""Converters of the operators that ONNX Runtime's optimizer and quantizer write, of its domain ``com.microsoft``."""

from __future__ import annotations

from ..node import Conversion
from .attention import CONVERSIONS as ATTENTION
from .fused import CONVERSIONS as FUSED
from .quantized import CONVERSIONS as QUANTIZED

CONVERSIONS: dict[tuple[str, str], Conversion] = {**ATTENTION, **FUSED, **QUANTIZED}
"""Converters by ``(domain, operator)``."""
