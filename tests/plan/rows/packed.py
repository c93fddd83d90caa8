# SPDX-License-Identifier: Apache-2.0
"""Products of few rows by packed weights, in the forms in which models write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

Element = Callable[[te.Tensor, tirx.Var, tirx.Var], "tirx.PrimExpr"]


@dataclass(frozen=True)
class Form:
    """A form of packed weights.

    Attributes:
        bits: of an integer.
        dtype: of the elements that hold the integers.
        integer: the integer of a row and column, as an expression.
        zero: what is subtracted, from the converted integer.
        signed: whether integers are signed.
        order: the field of each column of a word, in order.
        zeros: the type of the elements that hold a zero point for each group, in fields of the same bits, if any.
    """

    bits: int
    dtype: str
    integer: Element
    zero: int = 0
    signed: bool = False
    order: tuple[int, ...] = ()
    zeros: str = ""

    @property
    def each(self) -> int:
        """The integers of an element."""
        return 8 * np.dtype(self.dtype).itemsize // self.bits

    @property
    def zeros_each(self) -> int:
        """The zero points of an element."""
        return 8 * np.dtype(self.zeros).itemsize // self.bits

    def unpacked(self, words: np.ndarray) -> np.ndarray:
        """Return the integers of words <n, k / each> as float64 <n, k>."""
        fields = np.arange(8 * words.itemsize // self.bits) if not self.order else np.asarray(self.order)
        wide = words.astype(f"uint{8 * words.itemsize}").astype("uint64")[:, :, None]
        found = ((wide >> (fields * self.bits).astype("uint64")) & np.uint64(2**self.bits - 1)).astype(
            "int64"
        )
        found -= (found >> self.bits - 1 << self.bits) if self.signed else 0
        return found.reshape(len(words), -1).astype("float64") - self.zero


def _word(dtype: str, bits: int) -> Element:
    each = 8 * np.dtype(dtype).itemsize // bits

    def integer(words: te.Tensor, n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        shift = (k % each).astype(dtype) * tirx.const(bits, dtype)
        return (words[n, k // each] >> shift) & tirx.const(2**bits - 1, dtype)

    return integer


def _moved_up(words: te.Tensor, n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
    moved = words[n, k // 8] >> ((k % 8).astype("uint32") * tirx.const(4, "uint32"))
    return (moved.astype("int8") << tirx.const(4, "int8")) >> tirx.const(4, "int8")


def _divided(words: te.Tensor, n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
    low = tirx.floormod(words[n, k // 2], tirx.const(16, "uint8"))
    high = tirx.floordiv(words[n, k // 2], tirx.const(16, "uint8"))
    return tirx.Select(k % 2 == 0, low, high)


def _odd_last(words: te.Tensor, n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
    field = tirx.floordiv(k % 8, 2) + 4 * (k % 2)
    return (words[n, k // 8] >> (field * 4).astype("uint32")) & tirx.const(15, "uint32")


FORMS = {
    "4 bits of 32": Form(4, "uint32", _word("uint32", 4), 7),
    "8 bits of 32": Form(8, "uint32", _word("uint32", 8), 127),
    "2 bits of 32": Form(2, "uint32", _word("uint32", 2), 1),
    "4 bits of 8": Form(4, "uint8", _word("uint8", 4), 8),
    "4 signed bits of 32": Form(4, "uint32", _moved_up, signed=True),
    "bytes": Form(8, "uint8", lambda words, n, k: words[n, k], 128),
    "4 bits of 32 with zeros": Form(4, "uint32", _word("uint32", 4), zeros="uint32"),
    "bytes with zeros": Form(8, "uint8", lambda words, n, k: words[n, k], zeros="uint8"),
    "signed bytes": Form(8, "int8", lambda words, n, k: words[n, k], signed=True),
}
"""Forms that are recognised."""
OTHERS = {
    "a choice of two": Form(4, "uint8", _divided, 8),
    "odd columns last": Form(4, "uint32", _odd_last, 7, order=(0, 4, 1, 5, 2, 6, 3, 7)),
}
"""Forms that are not."""


def product(
    form: Form, rows: int, columns: int, inner: int, group: int, dtype: str, scale: str = ""
) -> tvm.IRModule:
    """Return ``x @ w.T`` of <rows, inner> factors, by <columns, inner> weights with a scale for each group."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var("x", relax.TensorType((rows, inner), dtype)),
        relax.Var("words", relax.TensorType((columns, inner // form.each), form.dtype)),
        relax.Var("scales", relax.TensorType((columns, inner // group), scale or dtype)),
    ]
    if form.zeros:
        shape = columns, inner // group // form.zeros_each
        params.append(relax.Var("zeros", relax.TensorType(shape, form.zeros)))

    def dequantized(words: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        def weight(n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
            value = form.integer(words, n, k).astype(scales.dtype)
            if zeros:
                value = value - form.integer(zeros[0], n, k // group).astype(scales.dtype)
            if form.zero:
                value = value - tirx.const(form.zero, scales.dtype)
            return (value * scales[n, k // group]).astype(dtype)

        return te.compute((columns, inner), weight, "dequantize")

    with builder.function("main", params):
        with builder.dataflow():
            weight = builder.emit_te(dequantized, *params[1:], primfunc_name_hint="dequantize")
            result = builder.emit_output(op.matmul(params[0], op.permute_dims(weight)))
        builder.emit_func_output(result)
    return builder.get()


def drawn(
    form: Form, rows: int, columns: int, inner: int, group: int, dtype: str, scale: str = ""
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return random inputs of :func:`product`, and its result in float64."""
    rng = np.random.default_rng()
    x = rng.standard_normal((rows, inner)).astype(np.dtype(dtype))
    info = np.iinfo(form.dtype)
    words = rng.integers(info.min, int(info.max) + 1, (columns, inner // form.each), dtype=form.dtype)
    scales = (rng.random((columns, inner // group)) * 0.05).astype(np.dtype(scale or dtype))
    integers, inputs = form.unpacked(words), [x, words, scales]
    if form.zeros:
        info, shape = np.iinfo(form.zeros), (columns, inner // group // form.zeros_each)
        inputs.append(rng.integers(info.min, int(info.max) + 1, shape, dtype=form.zeros))
        integers = integers - np.repeat(form.unpacked(inputs[-1]), group, 1)
    weight = integers * np.repeat(scales.astype("float64"), group, 1)
    return inputs, x.astype("float64") @ weight.T
