# SPDX-License-Identifier: Apache-2.0
"""From a float32 module to mixed precision of a half type.

TVM's importer from PyTorch takes no half models (its products ask for float32 results), so a float32 one is imported
and turned by `ToMixedPrecision`: products, convolutions and what is element-wise in half, norms and softmaxes in
float32.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..graph.dtype import HALF
from .checked_module import checked_module
from .functions import with_own_functions
from .hidden_calls import hidden_from
from .operators import operator_name


def in_half_precision(mod: tvm.IRModule, dtype: str, products: str = "float32") -> tvm.IRModule:
    """A float32 module in mixed precision; its float32 inputs become ones of the half type.

    Args:
        mod: a Relax module of float32. Parameters that are weights become half as well.
        dtype: ``"float16"`` or ``"bfloat16"``.
        products: what products and convolutions give: ``"float32"``, which what follows them may keep, or ``"half"``.

    Raises:
        TypeError: when ``mod`` is no IRModule.
        ValueError: for another dtype.
    """
    if dtype not in HALF or products not in ("float32", "half"):
        wrong = f"dtype is {' or '.join(HALF)}, not {dtype!r}"
        raise ValueError(
            wrong if dtype not in HALF else f"products are 'float32' or 'half', not {products!r}"
        )
    mod = with_own_functions(checked_module(mod), _with_half_inputs)
    mod = relax.transform.ConvertToDataflow(min_size=1)(mod)
    # The pass loses what is added to the scores of attention.
    mod = with_own_functions(mod, lambda func: _HalfAttention().visit_expr(func))
    mixed = relax.transform.ToMixedPrecision("float16" if products == "half" else "float32")
    mod = hidden_from(mixed, mod, _is_attention)
    mod = with_own_functions(mod, lambda func: _Direct().visit_expr(func))
    mod = relax.transform.DeadCodeElimination()(mod)
    if dtype == "bfloat16":
        # The pass knows float16 only. Types and attributes name it in quotes, which encoded constants do not hold.
        mod = tvm.ir.load_json(tvm.ir.save_json(mod).replace('"float16"', '"bfloat16"'))
    return mod


def _with_half_inputs(func: Any) -> Any:
    """The function with float16 in place of float32 parameters.

    The pass can do so itself, but fails where a parameter has a symbolic extent.
    """
    builder, params, bindings = relax.BlockBuilder(), [], []
    for old in func.params:
        new = old
        if isinstance(old.ty, relax.TensorType) and old.ty.dtype == "float32":
            rank = old.ty.ndim if old.ty.shape is None else -1  # else the shape tells
            new = relax.Var(old.name, relax.TensorType(old.ty.shape, "float16", old.ty.vdevice, rank))
            wide = builder.normalize(relax.op.astype(new, "float32"))
            bindings.append(relax.VarBinding(old, wide))
        params.append(new)
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def _is_attention(value: Any) -> bool:
    return operator_name(value).startswith("relax.nn.attention")


@relax.expr_functor.mutator
class _HalfAttention(relax.PyExprMutator):
    """Has attention of float32 computed in float16."""

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if not _is_attention(call) or call.ty.dtype != "float32":
            return call
        half = [self.builder_.emit(relax.op.astype(arg, "float16")) for arg in call.args[:3]]
        args = [*half, *call.args[3:]]  # a mask of the least float32 would be -inf
        return relax.op.astype(self.builder_.emit(relax.Call(call.op, args, call.attrs)), "float32")


@relax.expr_functor.mutator
class _Direct(relax.PyExprMutator):
    """Drops casts of a float16 to float32 and back."""

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if not _is_cast(call, "float16"):
            return call
        made = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
        if made is None or not _is_cast(made, "float32"):
            return call
        source = made.args[0]
        return source if source.ty.dtype == "float16" else call


def _is_cast(value: Any, dtype: str) -> bool:
    return operator_name(value) == "relax.astype" and value.ty.dtype == dtype
