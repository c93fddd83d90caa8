# SPDX-License-Identifier: Apache-2.0
"""Products ``x @ w.T`` with weights of every kind that a decoder has: floats, and integers with scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

from .decoder_step import GROUP, dequantized


@dataclass(frozen=True)
class Weight:
    """A kind of weight.

    Attributes:
        name: as the command line has it.
        bits: of an integer, or 0 for floats.
        dtype: the type of floats, of scales and of the product.
        stored: the type of the tensor that holds the integers.
        by_channel: whether a row has one scale. Else each group of ``GROUP`` has one.
        zeros: whether each group has a zero point, a float.
    """

    name: str
    bits: int
    dtype: str
    stored: str = ""
    by_channel: bool = False
    zeros: bool = False

    def parameters(self, rows: int, columns: int) -> list[tuple[str, tuple[int, ...], str]]:
        """Return the names, shapes and types of the tensors that hold a weight of <rows, columns>."""
        if not self.bits:
            return [("weight", (rows, columns), self.dtype)]
        each = np.dtype(self.stored).itemsize * 8 // self.bits
        scales = (rows, 1 if self.by_channel else columns // GROUP)
        names = ["scales", "zeros"] if self.zeros else ["scales"]
        return [
            ("integers", (rows, columns // each), self.stored),
            *((name, scales, self.dtype) for name in names),
        ]

    def drawn(self, rows: int, columns: int, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """Return random tensors that hold a weight, and the weight in float64."""
        rng = np.random.default_rng(seed)
        found = []
        for name, shape, dtype in self.parameters(rows, columns):
            if name == "weight":
                found.append((rng.standard_normal(shape, "float32") * columns**-0.5).astype(dtype))
            elif name == "integers":
                kind = np.iinfo(dtype)
                found.append(rng.integers(kind.min, kind.max, shape, dtype=dtype, endpoint=True))
            else:
                spread = 0.05 if name == "scales" else 15
                found.append((rng.random(shape, "float32") * spread).astype(dtype))
        return found, self._weight(found, rows, columns)

    def _weight(self, tensors: list[np.ndarray], rows: int, columns: int) -> np.ndarray:
        if not self.bits:
            return tensors[0].astype("float64")
        integers, scales = tensors[0], tensors[1].astype("float64")
        if self.bits < 8:
            each = integers.itemsize * 8 // self.bits
            shifts = np.arange(each, dtype=integers.dtype) * integers.dtype.type(self.bits)
            integers = integers[:, :, None] >> shifts & integers.dtype.type(2**self.bits - 1)
        floats = integers.reshape(rows, scales.shape[1], -1).astype("float64")
        zero = tensors[2].astype("float64")[:, :, None] if self.zeros else self.zero
        return ((floats - zero) * scales[:, :, None]).reshape(rows, columns)

    @property
    def zero(self) -> int:
        """The zero point of all groups, where groups have none of their own: mlc-llm's for words, ONNX's for bytes."""
        return 0 if self.bits == 8 else 7 if self.stored == "uint32" else 8

    def computed(self, *tensors: te.Tensor) -> te.Tensor:
        """Return the weight that tensors hold."""
        integers, scales, *zeros = tensors
        if self.stored == "uint32" and not zeros:
            return dequantized(integers, scales, self.bits)
        each = np.dtype(self.stored).itemsize * 8 // self.bits

        def weight(n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
            integer = integers[n, k // each]
            if each > 1:
                shift = (k % each).astype(self.stored) * tirx.const(self.bits, self.stored)
                integer = (integer >> shift) & tirx.const(2**self.bits - 1, self.stored)
            group = 0 if self.by_channel else k // GROUP
            value = integer.astype(self.dtype)
            if zeros:
                value = value - zeros[0][n, group]
            elif self.zero:
                value = value - tirx.const(self.zero, self.dtype)
            return value * scales[n, group]

        return te.compute((integers.shape[0], integers.shape[1] * each), weight, "dequantize")


KINDS = {
    kind.name: kind
    for kind in (
        Weight("float32", 0, "float32"),
        Weight("float16", 0, "float16"),
        Weight("bfloat16", 0, "bfloat16"),
        Weight("int8", 8, "float32", "int8"),
        Weight("int8-channel", 8, "float32", "int8", by_channel=True),
        Weight("4bit-words", 4, "float16", "uint32"),
        Weight("4bit-bytes", 4, "float32", "uint8"),
        Weight("4bit-zeros", 4, "float32", "uint8", zeros=True),
    )
}
"""The kinds by name."""


def product(kind: Weight, rows: int, columns: int, inner: int) -> tvm.IRModule:
    """Return a module whose ``main`` returns ``x @ w.T``, <rows, columns>, of ``x`` and the tensors that hold ``w``."""
    builder = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType((rows, inner), kind.dtype))]
    params += [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in kind.parameters(columns, inner)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            weight: relax.Expr = params[1]
            if kind.bits:
                made: Callable[..., te.Tensor] = kind.computed
                weight = builder.emit_te(made, *params[1:], primfunc_name_hint="dequantize")
            result = builder.emit_output(op.matmul(params[0], op.permute_dims(weight)))
        builder.emit_func_output(result)
    return builder.get()
