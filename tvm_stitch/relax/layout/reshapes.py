# SPDX-License-Identifier: Apache-2.0
"""SinkReshapes: compute element-wise operators on a product's result before the result is reshaped.

PyTorch's linear layers multiply matrices, and reshape the result behind the bias. An activation behind the reshape
has other axes than the product, and would be a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from ...graph.dtype import item_bytes
from ...graph.extent import Extent, is_number, same, same_shape
from ...support.module_pass import module_pass
from ..quantize.parameters import DEQUANTIZE, QUANTIZE
from ..rewriting.operators import ELEMENTWISE, PRODUCTS
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, has_elements, shape_of
from .quantization import is_elementwise


@module_pass
class SinkReshapes:
    """Sink reshapes of products, and of element-wise operators on these, through further element-wise operators.

    ``gelu(reshape(x))`` becomes ``reshape(gelu(x))``. The other operands of an operator are scalars, tensors of the
    result's shape, or tensors that vary along a last axis which the reshape keeps. Tensors of the result's shape are
    reshaped back. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the Relax functions in which products are reshaped."""
        return apply_rules(mod, [RULE], unique_names=True)


def _computed_before(match: Match) -> relax.Expr | None:
    """Return the reshape of an element-wise operator on the values before its operands' reshapes, or None.

    The matches' notes map a product's result, and element-wise operators on it, to None. They map a reshape of such a
    value to the value before it.
    """
    call, name, var, notes = match.before, match.name, match.var, match.notes
    shape = shape_of(var)
    if shape is None or not isinstance(match.block, relax.DataflowBlock):
        return None
    if name in RESHAPES:
        (data, *_) = call.args
        if data in notes:
            notes[var] = match.now(data) if notes[data] is None else notes[data]
        return None
    if name in PRODUCTS:
        notes[var] = None
        return None
    if not is_elementwise(call):
        return None
    source = _on_sources(match, shape) if shape and not _is_stored_wider(match) else None
    if source is not None:
        notes[var] = source
        return relax.op.reshape(source, var.ty.shape)
    if any(notes.get(arg, 0) is None and same_shape(shape_of(arg) or (), shape) for arg in call.args):
        notes[var] = None
    return None


def _is_stored_wider(match: Match) -> bool:
    """Return whether the operator widens elements, and something else than element-wise operators reads these.

    Behind a reshape each reader casts elements as it loads them. In front of it, the wider elements are stored.
    """
    if match.name != "relax.astype":
        return False
    before, after = (item_bytes(str(value.ty.dtype)) for value in (match.before.args[0], match.before))
    readers = match.readers.get(match.var, [None])
    return before < after and any(each is None or not is_elementwise(each.value) for each in readers)


def _on_sources(match: Match, shape: Sequence[Extent]) -> relax.Var | None:
    """Return the operator on the values before its operands' reshapes, with the result's name.

    None if these values differ in shape.
    """
    call = match.before
    sources = {arg: match.notes[arg] for arg in call.args if match.notes.get(arg) is not None}
    if not sources or not all(same_shape(shape_of(arg) or (), shape) for arg in sources):
        return None
    if not has_elements(*sources):  # a reshape to extent 0 copies that extent from its operand
        return None
    before, *others = (shape_of(source) for source in sources.values())
    if not before or not all(same_shape(other or (), before) for other in others):
        return None
    operands = zip(call.args, match.value.args, strict=True)
    args = [sources[arg] if arg in sources else _beside(now, before, shape) for arg, now in operands]
    if any(arg is None for arg in args):
        return None
    return match.emit(relax.Call(call.op, args, call.attrs, call.ty_args), str(match.var.name))


def _beside(arg: relax.Expr, before: Sequence[Extent], after: Sequence[Extent]) -> relax.Expr | None:
    """Return another operand for the shape before: a scalar, a tensor of the last axis, or one of full size."""
    shape = shape_of(arg)
    if shape is None:
        return None
    if same_shape(shape, after):
        return relax.op.reshape(arg, relax.ShapeExpr(list(before)))
    if not all(is_number(extent, 1) for extent in shape):
        is_last = all(is_number(extent, 1) for extent in shape[:-1]) and same(shape[-1], after[-1])
        if not (is_last and same(before[-1], after[-1])):
            return None
    return arg if len(shape) <= len(before) else relax.op.reshape(arg, relax.ShapeExpr(list(shape[-1:])))


RULE = Rule(
    "an activation is computed with the product before it",
    _computed_before,
    (*PRODUCTS, *RESHAPES, *ELEMENTWISE, QUANTIZE, DEQUANTIZE),
    needs=(PRODUCTS, RESHAPES),
    leaves_unused=True,
)
