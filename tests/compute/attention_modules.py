# SPDX-License-Identifier: Apache-2.0
"""Attention as its kernels take it, and modules that call one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from stitch_testing.workloads.attention import Case, inputs, reference
from tvm_stitch.compute.attention import Attention, Operand


def described(case: Case) -> Attention:
    """Return the case with the strides of the operands."""
    row = case.heads * case.size

    def operand(rows: int) -> Operand:
        shape = (case.batch, rows, case.heads, case.size)
        return Operand(shape, case.dtype, 0, (0, rows * row, case.size, row))

    q, k, v, out = (operand(n) for n in (case.queries, case.keys, case.keys, case.queries))
    leading = (1, case.batch, case.heads)
    return Attention(leading, case.queries, case.keys, case.size, case.scale, q, k, v, out)


def check_causal(
    case: Case, offset: int, kernel: Callable[[Attention, list[np.ndarray]], np.ndarray], atol: float
) -> None:
    """Check that query ``i`` sees keys up to ``i + offset``. One that sees none gives NaN, as its softmax does.

    Args:
        case: attention without a mask.
        offset: see above.
        kernel: runs an attention on inputs.
        atol: the most error.
    """
    arrays = inputs(case, np.random.default_rng())
    found = kernel(replace(described(case), causal=offset), arrays)
    with np.errstate(invalid="ignore"):
        mask = np.where(np.arange(case.keys) > np.arange(case.queries)[:, None] + offset, -np.inf, 0.0)
        wanted = reference(replace(case, mask=mask.shape), [*arrays, mask])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(
        np.nan_to_num(found.astype("float64")), np.nan_to_num(wanted), rtol=0, atol=atol
    )


def calling(kernel: Any, attention: Attention) -> tvm.IRModule:
    """Return a module whose function calls the kernel of an attention without symbols."""
    builder = relax.BlockBuilder()
    gvar = builder.add_func(kernel, "attention")
    params = [
        relax.Var(f"x{i}", relax.TensorType(list(o.shape), o.dtype)) for i, o in enumerate(attention.inputs)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            out = relax.TensorType(list(attention.out.shape), attention.out.dtype)
            made = builder.emit_output(relax.call_tir(gvar, params, out))
        builder.emit_func_output(made)
    return builder.get()
