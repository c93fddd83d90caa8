# SPDX-License-Identifier: Apache-2.0
"""Operators and attribute values that TVM's converters honour.

The table was made by reading TVM's converters. An attribute that a converter never names is not listed, so that nodes
with it are refused. ONNX's node cases and comparisons with ONNX Runtime are the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..converters.node import ANY


@dataclass(frozen=True)
class Stock:
    """Attributes with the values that TVM's converter honours, from a version of the operator set on."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    since: int = 1


_REDUCED = {"axes": ANY, "keepdims": ANY, "noop_with_empty_axes": (0, 1)}
_BROADCAST = "Add And Div Equal Greater Less Mul Or Sub Xor"
_PLAIN = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Cos Cosh Erf"
    " Exp Floor GlobalAveragePool GlobalMaxPool GreaterOrEqual HardSwish Identity IsNaN LessOrEqual Log"
    " MatMul Neg NonZero Not OptionalGetElement OptionalHasElement Range Reciprocal Relu Round"
    " SequenceConstruct Sigmoid Sign Sin Sinh Size Softsign Sqrt Tan Tanh Where"
)

STOCK: dict[str, Stock] = {
    **{name: Stock(since=7) for name in _BROADCAST.split()},
    **{
        name: Stock(since=6 if name in ("Abs", "Exp", "Log", "Neg", "Relu") else 1) for name in _PLAIN.split()
    },
    **{f"Reduce{kind}": Stock(_REDUCED) for kind in ("Prod", "Sum")},
    **{name: Stock({"axis": ANY}) for name in ("Hardmax", "LogSoftmax", "Softmax", "Compress", "Concat")},
    "AffineGrid": Stock({"align_corners": ANY}),
    "Gemm": Stock(dict.fromkeys(("alpha", "beta", "transA", "transB"), ANY), since=7),
    "GridSample": Stock(
        {
            "align_corners": ANY,
            "mode": ("bilinear", "linear", "nearest", "bicubic", "cubic"),
            "padding_mode": ("zeros", "border", "reflection"),
        }
    ),
    "LeakyRelu": Stock({"alpha": ANY}, since=6),
    "MaxRoiPool": Stock({"pooled_shape": ANY, "spatial_scale": ANY}),
    "Optional": Stock({"type": ANY}),
    "SequenceEmpty": Stock({"dtype": ANY}),
    "Shape": Stock({"start": ANY, "end": ANY}),
    "Slice": Stock(since=10),
}
"""TVM's converters by operator, in ONNX's own domain."""
