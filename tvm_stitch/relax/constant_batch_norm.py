# SPDX-License-Identifier: Apache-2.0
"""ConstantBatchNorm: a batch norm of constants is one multiplication and one addition.

TVM's batch norm has three results, and nothing can be fused with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..interrupts import carrying
from .functions import with_own_functions
from .operators import operator_name


@tvm.transform.module_pass(opt_level=0, name="ConstantBatchNorm")
class ConstantBatchNorm:
    """Replace ``R.nn.batch_norm`` at inference, where all its parameters are constants, by ``x * scale + shift``.

    TVM's own has one PrimFunc of four operators and three results, which nothing can be fused with. Scale and shift are
    computed in float64. Runs before ``LegalizeOps``.
    """

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such calls."""
        found: list[Any] = []
        rewritten = with_own_functions(mod, lambda func: _Mutator(found).visit_expr(func))
        if not found:
            return mod
        passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(passes)(rewritten)


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    """Appends to ``found`` the calls that it replaces."""

    def __init__(self, found: list[Any]):
        super().__init__()
        self.found = found

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if operator_name(call) != "relax.nn.batch_norm" or call.attrs.training:
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
        scaled = self.builder_.emit(relax.op.multiply(x, _constant(scale, shape, dtype)))
        result = self.builder_.emit(relax.op.add(scaled, _constant(shift, shape, dtype)))
        self.found.append(call)
        return relax.Tuple([result, constants[2], constants[3]])


def _constant(values: np.ndarray, shape: list[int], dtype: str) -> Any:
    with np.errstate(over="ignore"):
        return relax.const(values.astype(dtype).reshape(shape), dtype)
