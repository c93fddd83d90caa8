# SPDX-License-Identifier: Apache-2.0
"""ConstantBatchNorm: replace a batch norm of constants by one multiplication and one addition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls


@module_pass
class ConstantBatchNorm:
    """Replace ``R.nn.batch_norm`` at inference by ``x * scale + shift`` if all its parameters are constants.

    TVM legalizes it to one PrimFunc of four operators and three results, and nothing can be fused with that. Scale
    and shift are computed in float64. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        found: list[Any] = []
        rewritten = with_calls(
            mod,
            ("relax.nn.batch_norm",),
            partial(_scaled, found),
            why="nothing fuses with TVM's function for a batch norm",
        )
        if not found:
            return mod
        passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(passes)(rewritten)


def _scaled(found: list[relax.Call], builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the replacement of a call, and append a replaced call to ``found``."""
    if call.attrs.training:
        return call
    x, *constants = call.args
    if not all(isinstance(c, tvm.ir.GenericConst) for c in constants):
        return call
    dtype = str(constants[0].value.dtype)
    if dtype not in ("float32", "float64") or any(str(c.value.dtype) != dtype for c in constants):
        return call
    gamma, beta, mean, variance = (c.value.numpy().astype("float64") for c in constants)
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt(variance + call.attrs.epsilon)
        if call.attrs.scale:
            scale = gamma * scale
        shift = -mean * scale
        if call.attrs.center:
            shift = beta + shift
    shape = [1] * len(x.ty.shape)
    shape[call.attrs.axis] = -1
    scaled = builder.emit(relax.op.multiply(x, _constant(scale, shape, dtype)))
    result = builder.emit(relax.op.add(scaled, _constant(shift, shape, dtype)))
    found.append(call)
    return relax.Tuple([result, constants[2], constants[3]])


def _constant(values: np.ndarray, shape: list[int], dtype: str) -> relax.Expr:
    with np.errstate(over="ignore"):
        return relax.const(values.astype(dtype).reshape(shape), dtype)
