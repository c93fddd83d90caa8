# SPDX-License-Identifier: Apache-2.0
"""RoundedConvolutions: write convolutions of half types whose float32 results are rounded at once as half ones.

Importers ask for float32 sums, add a bias, and cast to a half type. cuDNN sums in float32 too. It stores half results,
so the cast belongs to its call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...graph.dtype import HALF
from ...support.module_pass import module_pass
from ..rewriting.operators import PRODUCTS, has_operators, operator_name, with_results_of
from ..rewriting.readers import only_reader_inside
from ..rewriting.rules import Match, Rule, apply_rules

CAST = "relax.astype"
CONVOLUTIONS = frozenset(name for name in PRODUCTS if name.startswith("relax.nn.conv"))
WHY = "cuDNN sums halves in float32, and rounds where it stores"


@module_pass
class RoundedConvolutions:
    """Write ``astype(conv(x, w, out_dtype="float32"), half)`` as a convolution with half results.

    The same with a bias in between, if each element of it is a half number. Results are then rounded before the bias
    is added, too, unless cuDNN adds it. Other kernels would sum in the result's type. So this applies to convolutions
    that cuDNN computes.

    Args:
        is_called: returns whether cuDNN is installed. Only modules with convolutions ask.
        is_computed: returns whether cuDNN computes a convolution.
    """

    def __init__(self, is_called: Callable[[], bool], is_computed: Callable[[relax.Call], bool]):
        self.is_called, self.is_computed = is_called, is_computed

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, CONVOLUTIONS) or not self.is_called():
            return mod
        rule = Rule(WHY, partial(_rounded, self.is_computed), operators=(CAST,), leaves_unused=True)
        return apply_rules(mod, [rule])


def _rounded(is_computed: Callable[[relax.Call], bool], match: Match) -> relax.Expr | None:
    """Return the half value of a cast, or None if it rounds no convolution that cuDNN computes."""
    dtype, value = str(match.before.ty.dtype), match.before.args[0]
    call, bias = match.values.get(value), None
    if dtype not in HALF or call is None or only_reader_inside(match.readers, value) is None:
        return None
    if operator_name(call) == "relax.add":
        sides = [_is_convolution_of(match.values.get(each), dtype) for each in call.args]
        if sum(sides) != 1:
            return None
        value, bias = call.args if sides[0] else reversed(call.args)
        if only_reader_inside(match.readers, value) is None:
            return None
        bias = _as_half(match, bias, dtype)
        if bias is None:
            return None
        call = match.values.get(value)
    if call is None or not _is_convolution_of(call, dtype):
        return None
    rounded = match.builder.normalize(with_results_of(call, map(match.now, call.args), dtype))
    if not is_computed(rounded):
        return None
    return rounded if bias is None else R.add(match.emit(rounded), bias)


def _is_convolution_of(value: Any, dtype: str) -> bool:
    """Return whether a value is a convolution of two tensors of a half type with a float32 result."""
    if not isinstance(value, relax.Call) or operator_name(value) not in CONVOLUTIONS:
        return False
    return str(value.ty.dtype) == "float32" and all(str(each.ty.dtype) == dtype for each in value.args)


def _as_half(match: Match, bias: relax.Expr, dtype: str) -> relax.Expr | None:
    """Return a float32 bias as a half constant, or None if an element would change or it is computed."""
    constant = bias if isinstance(bias, tvm.ir.GenericConst) else match.values.get(bias)
    if not isinstance(constant, tvm.ir.GenericConst):
        return None
    value = constant.value.numpy()
    with np.errstate(over="ignore"):
        half = value.astype(dtype)
    return relax.const(half, dtype) if np.array_equal(half.astype(value.dtype), value) else None
