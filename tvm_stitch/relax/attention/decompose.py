# SPDX-License-Identifier: Apache-2.0
"""DecomposeAttention: write ``R.nn.attention`` as matmuls and softmax, which templates and libraries compute well."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax import op as R

from ...graph.extent import as_expr
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from .operator import OPERATORS, attention_of


@module_pass
class DecomposeAttention:
    """Write ``R.nn.attention`` as its two matmuls and softmax.

    TVM legalizes it to one function, whose matmuls no template or library computes. The scores have the operands'
    dtype, as matmuls have, or that of a mask. TVM keeps attention with a window, and attention whose keys have other
    heads than the queries. The pass runs before any pass that chooses what computes matmuls.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(
            mod, OPERATORS, _decomposed, why="no template or library computes the matmuls in TVM's function"
        )


def _decomposed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    try:
        attention = attention_of(call)
    except Refusal:
        return call
    emit, dtype = builder.emit, str(call.ty.dtype)
    q, k, v = (emit(R.permute_dims(value, [0, 2, 1, 3])) for value in call.args[:3])
    scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2])), out_dtype=dtype))
    scores = emit(R.multiply(scores, relax.const(attention.scale, dtype)))
    if attention.mask is not None:
        mask = call.args[3]
        if str(mask.ty.dtype) != dtype:
            scores = emit(R.astype(scores, str(mask.ty.dtype)))
        scores = emit(R.add(scores, mask))
    if attention.causal is not None:
        queries, keys, offset = map(as_expr, (attention.queries, attention.keys, attention.causal))
        last = emit(R.reshape(emit(R.arange(offset, queries + offset, 1, "int64")), [queries, 1]))
        hidden = emit(R.greater(emit(R.arange(0, keys, 1, "int64")), last))
        scores = emit(R.where(hidden, relax.const(float("-inf"), str(scores.ty.dtype)), scores))
    weights = emit(R.nn.softmax(scores, -1))
    weights = weights if str(weights.ty.dtype) == dtype else emit(R.astype(weights, dtype))
    return R.permute_dims(emit(R.matmul(weights, v, out_dtype=dtype)), [0, 2, 1, 3])
