# SPDX-License-Identifier: Apache-2.0
"""ConstantViews: transpose, reshape, cast and split constants at compile time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax

from ...graph.extent import is_static
from ...support.module_pass import module_pass
from ..rewriting.movement import SPLIT
from ..rewriting.operators import operator_name
from ..rewriting.rules import ITEM, Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, parts_of, permutation, shape_of

_FLOATS = {"float32", "float16", "bfloat16"}
_INTEGERS = {"bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))}
"""Casts are folded between floats, and between integers, where NumPy wraps around as a kernel does.

TVM's legalization refuses an integer that does not fit into the type of the result. Floats outside the range of an
integer type are left to ``FoldConstants``.
"""

Meaning = Callable[[np.ndarray, Any, tuple[Any, ...]], np.ndarray]


def _cast(array: np.ndarray, call: relax.Call, _shape: tuple[Any, ...]) -> np.ndarray:
    with np.errstate(over="ignore"):  # to an infinity, as in kernels
        return array.astype(str(call.ty.dtype))


FOLDED: dict[str, Meaning] = {
    "relax.permute_dims": lambda array, call, shape: array.transpose(permutation(call, len(shape))),
    "relax.astype": _cast,
    **dict.fromkeys(RESHAPES, lambda array, _call, shape: array.reshape(shape)),
}
"""The folded operators: each computes the result from the constant, the call and the result's shape."""


@module_pass
class ConstantViews:
    """Fold operators that rearrange a constant, split it, or cast it between floats or between integers, with NumPy.

    ``FoldConstant`` compiles and runs a function for each of them. That was 16 of the 28 seconds that MobileNetV3
    took to compile. Equal views of one constant become one constant. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        known: dict[Any, relax.Expr] = {}
        rules = [
            Rule(
                "FoldConstant compiles a function for each view",
                partial(_view, known),
                tuple(FOLDED),
                when=_is_of_constant,
            ),
            Rule(
                "FoldConstant compiles a function for each slice",
                partial(_part, known),
                (ITEM,),
                leaves_unused=True,
                needs=[(SPLIT,)],
            ),
        ]
        return apply_rules(mod, rules, inlines_constants=True)


def _is_of_constant(call: relax.Call) -> bool:
    return isinstance(call.args[0], tvm.ir.GenericConst)


def _view(known: dict[Any, relax.Expr], match: Match) -> relax.Expr | None:
    call = match.value
    source = call.args[0]
    if not isinstance(source, tvm.ir.GenericConst):
        return None
    name, shape = match.name, shape_of(call)
    if shape is None or not is_static(shape):
        return None
    array, dtype = source.value, str(call.ty.dtype)
    types = {str(array.dtype), dtype}
    is_cast = types <= _FLOATS or types <= _INTEGERS
    if "float8" in dtype or (name == "relax.astype" and not is_cast):
        return None
    key = array, name, str(getattr(call.attrs, "axes", "")), shape, dtype
    return _once(known, key, dtype, lambda: FOLDED[name](array.numpy(), call, shape).reshape(shape))


def _part(known: dict[Any, relax.Expr], match: Match) -> relax.Expr | None:
    item = match.value
    split = match.definition(item.tuple_value)
    if split is None or operator_name(split) != SPLIT or not isinstance(split.args[0], tvm.ir.GenericConst):
        return None
    source, index = split.args[0].value, item.index
    key = source, SPLIT, str(split.attrs), index

    def part() -> np.ndarray:
        array = source.numpy()
        axis = int(split.attrs.axis) % array.ndim
        return array[(slice(None),) * axis + (slice(*parts_of(split)[index]),)]

    return _once(known, key, str(source.dtype), part)


def _once(
    known: dict[Any, relax.Expr], key: Any, dtype: str, compute: Callable[[], np.ndarray]
) -> relax.Expr:
    """Return the constant of a key. ``compute`` computes it at its first use."""
    if key not in known:
        array = compute()
        known[key] = relax.const(np.ascontiguousarray(array).reshape(array.shape), dtype)
    return known[key]
