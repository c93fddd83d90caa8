# SPDX-License-Identifier: Apache-2.0
"""Convert a float32 module to mixed precision of a half type.

TVM's importer from PyTorch takes no half models, because its products ask for float32 results. So a float32 model is
imported and converted.

TVM has a pass for that, ``ToMixedPrecision``, which is not used here. It knows no bfloat16. It fails at calls with
numbers next to tensors (``R.clip``) and at symbolic parameters. It loses the bias that is added to the scores of
attention, and casts constants that a half type does not hold to infinities.

Every value keeps its type. A value computed as half is cast back at once, and readers of the half value read it
before that cast. So a module is well-typed at every step, results keep their types, and dead casts are removed.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...graph.dtype import HALF
from ..rewriting.checked_module import checked_module
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import PRODUCTS, operator_name, with_results_of
from .crossings import with_half_crossings
from .scaled_weights import with_scaled_weights

NORMS = frozenset(f"relax.nn.{kind}_norm" for kind in ("batch", "group", "instance", "layer", "rms"))
"""Operators that read and return float32."""

MOVEMENT = frozenset(
    f"relax.{name}" for name in ("flip", "gather_elements", "gather_nd", "repeat", "take", "tile")
)
"""Operators that follow their operands' type although TVM's table does not list them."""

_FOLLOWS = 1
"""Entry of TVM's table (``TMixedPrecisionPolicy``) for operators that are half if their operands are."""


def in_half_precision(mod: tvm.IRModule, dtype: str, products: str = "float32") -> tvm.IRModule:
    """Return a float32 module in mixed precision. Float32 inputs get the half type, and results keep their types.

    Args:
        mod: a Relax module of float32. Parameters and constants that are weights become half as well.
        dtype: ``"float16"`` or ``"bfloat16"``.
        products: the dtype of results of products and convolutions. With ``"float32"``, later operators may keep it.
            With ``"half"``, values that are read again after a product are half too. Scales of batch norms then
            become part of constant weights of convolutions, before these are rounded.

    Raises:
        TypeError: when ``mod`` is no IRModule.
        ValueError: for another dtype.
    """
    if dtype not in HALF:
        raise ValueError(f"dtype is {' or '.join(HALF)}, not {dtype!r}")
    if products not in ("float32", "half"):
        raise ValueError(f"products are 'float32' or 'half', not {products!r}")
    mod = checked_module(mod)
    if products == "half":
        mod = with_scaled_weights(relax.transform.ConvertToDataflow(min_size=1)(mod), dtype)
    mod = with_own_functions(mod, lambda func: _with_half_inputs(func, dtype))
    mod = relax.transform.ConvertToDataflow(min_size=1)(mod)
    if products == "half":
        mod = with_own_functions(mod, lambda func: with_half_crossings(func, dtype))
    given = dtype if products == "half" else "float32"
    mod = with_own_functions(mod, lambda func: _HalfCalls(dtype, given).visit_expr(func))
    return relax.transform.DeadCodeElimination()(mod)


def _with_half_inputs(func: relax.Function, dtype: str) -> relax.Function:
    """Return the function with the half type in place of float32 parameters."""
    builder, params, bindings = relax.BlockBuilder(), [], []
    for old in func.params:
        new = old
        if isinstance(old.ty, relax.TensorType) and old.ty.dtype == "float32":
            rank = old.ty.ndim if old.ty.shape is None else -1  # else the shape says it
            new = relax.Var(old.name, relax.TensorType(old.ty.shape, dtype, old.ty.vdevice, rank))
            wide = builder.normalize(R.astype(new, "float32"))
            bindings.append(relax.VarBinding(old, wide))
        params.append(new)
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


@relax.expr_functor.mutator
class _HalfCalls(relax.PyExprMutator):
    """Computes products in half types, and later operators too if their other operands are half.

    Every value keeps its type: a value computed as half is cast back, and readers of the half value read it before
    that.
    """

    def __init__(self, dtype: str, given: str):
        super().__init__()
        self.dtype, self.given = dtype, given
        self.halves: dict[Any, Any] = {}  # by value, the cast of it that exists already
        self.gone: set[Any] = set()  # variables visible only in dataflow blocks and branches that have ended

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        rewritten = super().visit_dataflow_block_(block)
        self.gone |= {each.var for each in rewritten.bindings if isinstance(each.var, relax.DataflowVar)}
        return rewritten

    def visit_seq_expr_(self, seq: relax.SeqExpr) -> relax.SeqExpr:
        rewritten = super().visit_seq_expr_(seq)
        self.gone |= {each.var for block in rewritten.blocks for each in block.bindings}
        return rewritten

    def visit_call_(self, call: relax.Call) -> relax.Expr:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        name = operator_name(call)
        if name == "relax.astype" and str(call.ty.dtype) == self.dtype and _is_float32(call.args[0].ty):
            known = self._known_half(call.args[0])
            return call if known is None else known
        if not _is_float32(call.ty):
            return call
        if name in PRODUCTS:
            return self._wide(self._product(call, name))
        following = self._following(call) if _follows(call) else None
        if following is None:
            return call
        if isinstance(following.ty, relax.TensorType):
            return self._wide(following)
        return relax.Tuple(
            [self._wide(relax.TupleGetItem(following, i)) for i in range(len(following.ty.fields))]
        )

    def _product(self, call: relax.Call, name: str) -> relax.Expr | None:
        if name.startswith("relax.nn.attention"):
            # Its mask stays: the least float32 would become an infinity, and a row of infinities gives NaN.
            half = [self._half(arg) for arg in call.args[:3]]
            return relax.Call(call.op, [*half, *call.args[3:]], call.attrs)
        return with_results_of(call, map(self._half, call.args), self.given)

    def _following(self, call: relax.Call) -> relax.Expr | None:
        """Return the call with half operands, or None if an operand cannot be half."""
        half = [self._half_operand(arg) for arg in call.args]
        if any(each is None for each in half) or not any(map(_has_var, half)):
            return None
        result = self.builder_.emit(relax.Call(call.op, half, call.attrs, call.ty_args))
        types = result.ty.fields if isinstance(result.ty, relax.TupleType) else [result.ty]
        return result if all(str(ty.dtype) == self.dtype for ty in types) else None

    def _half_operand(self, value: relax.Expr) -> relax.Expr | None:
        """Return an operand that is half without a cast at run time, or that is not a float32, or else None."""
        if isinstance(value, relax.Tuple):
            fields = [self._half_operand(field) for field in value.fields]
            return None if any(field is None for field in fields) else relax.Tuple(fields)
        return self._known_half(value) if _is_float32(value.ty) else value

    def _known_half(self, value: relax.Expr) -> relax.Expr | None:
        """Return the half value that a float32 value was cast from or to, or None if none is visible here."""
        half = self._half_of(value)
        return None if half in self.gone else half

    def _half_of(self, value: relax.Expr) -> relax.Expr | None:
        if isinstance(value, tvm.ir.GenericConst):
            return self._half_constant(value.value.numpy())
        if isinstance(value, relax.TupleGetItem):
            definition = self.lookup_binding(value.tuple_value)
            return (
                self._half_of(definition.fields[value.index]) if isinstance(definition, relax.Tuple) else None
            )
        if not isinstance(value, relax.Var):
            return None
        if value in self.halves:
            return self.halves[value]
        definition = self.lookup_binding(value)
        if operator_name(definition) == "relax.astype":
            return definition.args[0] if str(definition.args[0].ty.dtype) == self.dtype else None
        return self._half_of(definition) if isinstance(definition, (relax.Var, relax.TupleGetItem)) else None

    def _half_constant(self, array: np.ndarray) -> relax.Expr | None:
        """Return a constant in the half type, or None.

        The result is None if the half type would turn a finite number into an infinity, or round a constant of one
        element.
        """
        with np.errstate(over="ignore"):
            half = array.astype(self.dtype)
        wide = half.astype(array.dtype)
        if np.isinf(wide[np.isfinite(array)]).any() or (array.size == 1 and not np.array_equal(wide, array)):
            return None
        return relax.const(half, self.dtype)

    def _half(self, value: relax.Expr) -> relax.Expr:
        """Return a float32 value in the half type, cast if necessary. Other values stay as they are."""
        if not _is_float32(value.ty):
            return value
        known = self._known_half(value)
        if known is not None:
            return known
        half = self.builder_.emit(R.astype(value, self.dtype))
        if isinstance(value, relax.Var):
            self.halves[value] = half
        return half

    def _wide(self, value: relax.Expr) -> relax.Expr:
        wide = value if isinstance(value, relax.Var) else self.builder_.emit(value)
        return wide if str(wide.ty.dtype) == "float32" else R.astype(wide, "float32")


def _is_float32(ty: relax.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return bool(ty.fields) and all(map(_is_float32, ty.fields))
    return isinstance(ty, relax.TensorType) and str(ty.dtype) == "float32"


def _follows(call: relax.Call) -> bool:
    name = operator_name(call)
    if not name or name in NORMS:
        return False
    policy = call.op.get_attr("TMixedPrecisionPolicy")
    return name in MOVEMENT or (policy is not None and int(policy) == _FOLLOWS)


def _has_var(operand: relax.Expr) -> bool:
    """Return True if an operand, or an element of a tuple, is not a constant."""
    if isinstance(operand, relax.Tuple):
        return any(map(_has_var, operand.fields))
    return isinstance(operand, relax.Var)
