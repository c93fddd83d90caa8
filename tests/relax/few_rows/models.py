# SPDX-License-Identifier: Apache-2.0
"""A norm, a product of few rows, an activation and a residual, with weights of 4 or 8 bits or of floats."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

GROUP = 4
"""Weights of one scale."""


def dequantized(words: te.Tensor, scales: te.Tensor, bits: int, dtype: str, group: int = GROUP) -> te.Tensor:
    """Return weights as mlc-llm writes them: unsigned integers in words of 32 bits, a scale for each group."""
    each, zero = 32 // bits, 2 ** (bits - 1) - 1

    def weight(n: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        shift = (k % each).astype("uint32") * tirx.const(bits, "uint32")
        integer = (words[n, k // each] >> shift) & tirx.const(2**bits - 1, "uint32")
        return (integer.astype(dtype) - tirx.const(zero, dtype)) * scales[n, k // group]

    return te.compute((words.shape[0], words.shape[1] * each), weight, "dequantize")


def layer(
    rows: int,
    columns: int,
    inner: int,
    bits: int = 0,
    dtype: str = "float32",
    gated: bool = False,
    group: int = GROUP,
) -> tvm.IRModule:
    """Return ``silu(norm(x) @ w.T) + residual``, or ``silu(gate) * up`` of the halves of the product.

    ``w`` is <columns, inner>, of integers of so many bits, or of floats if ``bits`` is 0.
    """
    builder = relax.BlockBuilder()
    half = columns // 2 if gated else columns
    params = [
        relax.Var("x", relax.TensorType((1, rows, inner), dtype)),
        relax.Var("gain", relax.TensorType((inner,), dtype)),
        relax.Var("residual", relax.TensorType((1, rows, half), dtype)),
    ]
    if bits:
        params += [
            relax.Var("words", relax.TensorType((columns, inner * bits // 32), "uint32")),
            relax.Var("scales", relax.TensorType((columns, inner // group), dtype)),
        ]
    else:
        params.append(relax.Var("weight", relax.TensorType((columns, inner), dtype)))
    with builder.function("main", params):
        with builder.dataflow():
            x, gain, residual, weight = params[:4]
            if bits:
                weight = builder.emit_te(
                    dequantized, *params[3:], bits, dtype, group, primfunc_name_hint="dequantize"
                )
            normed = builder.emit(op.nn.rms_norm(x, gain, axes=[-1], epsilon=1e-5))
            product = builder.emit(op.matmul(normed, op.permute_dims(weight)))
            if gated:
                halves = builder.emit(op.split(product, 2, axis=-1))
                product = builder.emit(op.multiply(op.nn.silu(halves[0]), halves[1]))
            else:
                product = builder.emit(op.nn.silu(product))
            result = builder.emit_output(op.add(product, residual))
        builder.emit_func_output(result)
    return builder.get()


def drawn(
    rows: int,
    columns: int,
    inner: int,
    bits: int = 0,
    dtype: str = "float32",
    gated: bool = False,
    seed: int = 0,
    group: int = GROUP,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return random inputs of :func:`layer`, and its result in float64."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    half = columns // 2 if gated else columns
    x, gain, residual = (
        rng.standard_normal(shape).astype(kind) for shape in ((1, rows, inner), (inner,), (1, rows, half))
    )
    if bits:
        words = rng.integers(0, 2**32, (columns, inner * bits // 32), dtype=np.uint32)
        scales = (rng.random((columns, inner // group)) * 0.05).astype(kind)
        shifts = np.arange(32 // bits, dtype=np.uint32) * bits
        integers = (words[:, :, None] >> shifts & (2**bits - 1)).reshape(columns, inner).astype("float64")
        weight = (integers - (2 ** (bits - 1) - 1)) * np.repeat(scales.astype("float64"), group, 1)
        stored = [words, scales]
    else:
        stored = [(rng.standard_normal((columns, inner)) * inner**-0.5).astype(kind)]
        weight = stored[0].astype("float64")
    wide = x.astype("float64")
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gain
    product = normed @ weight.T
    if gated:
        gate, up = np.split(product, 2, -1)
        product = gate / (1 + np.exp(-gate)) * up
    else:
        product = product / (1 + np.exp(-product))
    return [x, gain, residual, *stored], product + residual
