# SPDX-License-Identifier: Apache-2.0
"""Plan ``R.nn.attention`` as attention that one kernel computes."""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from ...compat import Analyzer
from ...compute.attention import Attention, Operand
from ...graph.extent import Extent, as_expr, as_extent, same_shape
from ...support.failures import Refusal
from ..rewriting.views import broadcast, shape_of, whole
from .operands import as_operand, operand_of
from .plan import AttentionFinder, Mask, Planned

OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")


def attention_of(call: relax.Call) -> Attention:
    """Return the attention of an ``R.nn.attention`` call, whose operands are <batch, row, head, element>.

    The operands are read as they are.

    Raises:
        Refusal: for a window, for keys whose heads differ from those of the queries, and for unknown shapes.
    """
    of_q, of_k, of_v, out = (shape_of(value) for value in (*call.args[:3], call))
    if of_q is None or of_k is None or of_v is None or out is None:
        raise Refusal("its shapes are not known")
    if call.attrs.window_size is not None:
        raise Refusal("it has a window")
    (batch, queries, heads, size), keys = of_q, of_k[1]
    if not isinstance(size, int) or not same_shape(of_k, of_v) or not same_shape(of_k[2:], (heads, size)):
        raise Refusal("keys and values have other heads than queries")
    q, k, v, *masks = call.args
    return Attention(
        (1, batch, heads),
        queries,
        keys,
        size,
        float(call.attrs.scale) if call.attrs.scale is not None else size**-0.5,
        _operand(q),
        _operand(k),
        _operand(v),
        _operand(call),
        _mask(masks[0], (batch, heads, queries, keys)) if masks else None,
        _causal(call, queries, keys),
    )


def planned_operator(finder: AttentionFinder, var: relax.Var, permuted: bool = True) -> Planned:
    """Return the attention of the operator that ``var`` is bound to, with its operands read behind views.

    Args:
        finder: reads the function.
        var: the variable.
        permuted: allow the result to be stored in the order into which its only reader permutes it.

    Raises:
        Refusal: as :func:`attention_of`.
    """
    call = finder.values[var]
    plain = attention_of(call)
    operands = finder.operands(plain.queries)
    (q, of_q), (k, of_k), (v, _) = (
        operands.heads(value, factors) for value, factors in zip(call.args, (True, True, False))
    )
    result, strides, skipped = finder.stored(var, tuple(shape_of(call) or ()), permuted)
    batch, row, head, _ = strides
    out = operand_of(result, (0, batch, head, row))
    plan = replace(
        plain, scale=plain.scale * of_q * of_k, q=as_operand(q), k=as_operand(k), v=as_operand(v), out=out
    )
    masks = tuple(Mask(value, tuple(shape_of(value) or ())) for value in call.args[3:])
    return Planned(plan, (q.value, k.value, v.value), result, masks, tuple(skipped))


def _operand(value: relax.Expr) -> Operand:
    batch, row, head, _ = whole(value, shape_of(value) or ()).strides
    return operand_of(value, (0, batch, head, row))


def _mask(value: relax.Expr, scores: tuple[Extent, ...]) -> Operand:
    shape = shape_of(value)
    view = broadcast(whole(value, shape), scores) if shape is not None else None
    if view is None:
        raise Refusal("its mask is of another shape than its scores")
    return operand_of(value, (0, *view.strides))


def _causal(call: relax.Call, queries: Extent, keys: Extent) -> Extent | None:
    """Return the causal offset: query i sees the keys up to i + offset. None if every query sees every key."""
    kind = None if call.attrs.causal_mask is None else str(call.attrs.causal_mask)
    if kind is None:
        return None
    if kind == "TopLeft":
        return 0
    return as_extent(Analyzer().simplify(as_expr(keys) - as_expr(queries)))
