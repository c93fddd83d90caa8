# SPDX-License-Identifier: Apache-2.0
"""ScaledBatchNorm: replace a batch norm at inference by one multiplication and one addition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.views import shape_of


@module_pass
class ScaledBatchNorm:
    """Replace ``R.nn.batch_norm`` at inference by ``x * scale + shift``.

    TVM legalizes it to one PrimFunc of four operators and three results, and nothing can be fused with that. Scale
    and shift of constants are computed in float64. Those of other parameters are computed in each call, in the type of
    the parameters, as PyTorch computes them. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        norms: list[Any] = []
        rewritten = with_calls(
            mod,
            ("relax.nn.batch_norm",),
            partial(_scaled, norms),
            why="nothing fuses with TVM's function for a batch norm",
        )
        if not norms:
            return mod
        passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(passes)(rewritten)


def _scaled(norms: list[relax.Call], builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the replacement of a call, and append a replaced call to ``norms``."""
    if call.attrs.training:
        return call
    x, *parameters = call.args
    dtype = str(parameters[0].ty.dtype)
    if dtype not in ("float32", "float64") or any(str(each.ty.dtype) != dtype for each in (x, *parameters)):
        return call
    channels = shape_of(parameters[0])
    if channels is None:
        return call
    shape = [1] * len(x.ty.shape)
    if all(isinstance(each, tvm.ir.GenericConst) for each in parameters):
        shape[call.attrs.axis] = -1
        scale, shift = (_constant(each, shape, dtype) for each in _folded(call))
    else:
        shape[call.attrs.axis] = channels[0]
        scale, shift = (builder.emit(relax.op.reshape(each, shape)) for each in _computed(builder, call))
    scaled = builder.emit(relax.op.multiply(x, scale))
    result = builder.emit(relax.op.add(scaled, shift))
    norms.append(call)
    return relax.Tuple([result, parameters[2], parameters[3]])


def _folded(call: relax.Call) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of constants, in float64."""
    gamma, beta, mean, variance = (each.value.numpy().astype("float64") for each in call.args[1:])
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt(variance + call.attrs.epsilon)
        if call.attrs.scale:
            scale = gamma * scale
        shift = -mean * scale
        if call.attrs.center:
            shift = beta + shift
    return scale, shift


def _computed(builder: relax.BlockBuilder, call: relax.Call) -> tuple[relax.Expr, relax.Expr]:
    """Emit the computation of scale and shift."""
    _, gamma, beta, mean, variance = call.args
    dtype = str(variance.ty.dtype)
    moved = builder.emit(relax.op.add(variance, relax.const(call.attrs.epsilon, dtype)))
    deviation = builder.emit(relax.op.sqrt(moved))
    scale = builder.emit(relax.op.divide(gamma if call.attrs.scale else relax.const(1, dtype), deviation))
    shift = builder.emit(relax.op.negative(builder.emit(relax.op.multiply(mean, scale))))
    return scale, builder.emit(relax.op.add(beta, shift)) if call.attrs.center else shift


def _constant(values: np.ndarray, shape: list[int], dtype: str) -> relax.Expr:
    with np.errstate(over="ignore"):
        return relax.const(values.astype(dtype).reshape(shape), dtype)
