# SPDX-License-Identifier: Apache-2.0
"""Find attention among the values of a Relax function, and how its operands lie in memory.

Models and importers write it as ``matmul(softmax(scale * matmul(q, k^T) + mask), v)``. There may be reshapes between
batches of matrices and heads, casts around the softmax, and scales of q and k too. There may also be several masks,
and heads that share keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...compute.attention import Attention, Operand
from ...graph.dtype import HALF
from ...graph.extent import Extent, is_number, product, same, same_shape
from ...support.failures import Refusal
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader_inside, readers_of
from ..rewriting.views import RESHAPES, View, broadcast, permutation, reshaped, shape_of, whole
from .operands import LEADING_AXES, OperandReader, Rounded, as_operand, of_rows, of_scores, operand_of, three
from .scores import NotAttention, PatternReader, Scores

_OF_SHAPES = ("relax.full_like", "relax.ones_like", "relax.zeros_like", "relax.shape_of")
"""Operators that read no element of their operand."""


@dataclass(frozen=True)
class Planned:
    """Attention that one kernel computes.

    Attributes:
        attention: the computation.
        values: q, k and v, as they are stored or rounded.
        result: the variable that the kernel's result replaces.
        skipped: variables before ``result``, which view the result in another order.
        masks: the values that are added up to the mask, if there is one.
    """

    attention: Attention
    values: tuple[relax.Expr | Rounded, relax.Expr | Rounded, relax.Expr | Rounded]
    result: relax.Var
    masks: tuple[Mask, ...] = ()
    skipped: tuple[relax.Var, ...] = ()


@dataclass(frozen=True)
class Mask:
    """A value that is added to scores, and the shape in which it is added to other such values."""

    value: relax.Expr
    shape: tuple[Extent, ...]


class AttentionFinder:
    """Finds attention in a Relax function.

    Args:
        func: the function.
        widens: whether the kernel for a number of queries reads values of half types as the float32 of their casts.
        mixes: whether it reads operands of several types.
    """

    def __init__(
        self,
        func: relax.Function,
        widens: Callable[[Extent], bool] = lambda queries: False,
        mixes: bool = False,
    ):
        self.values = dict(relax.analysis.get_var2val(func).items())
        self.func = func
        self.reader = PatternReader(self.values)
        self._widens, self._mixes = widens, mixes

    def operands(self, queries: Extent, widened: bool = True) -> OperandReader:
        """Return the reader of the operands of attention of so many queries, which may be ``widened``."""
        return OperandReader(self.reader, widened and self._widens(queries))

    @cached_property
    def readers(self) -> Readers:
        """The readers of each variable. Most functions have no attention, and nothing asks."""
        return readers_of(self.func)

    def candidates(self) -> Iterator[relax.Var]:
        """Yield the variables of matmuls whose left side is a softmax."""
        for var, call in self.values.items():
            if operator_name(call) == "relax.matmul" and self.reader.weights(call.args[0]) is not None:
                yield var

    def planned(self, var: relax.Var, permuted: bool = True) -> Planned:
        """Return the attention whose last matmul is bound to ``var``.

        Args:
            var: the variable.
            permuted: allow the result to be stored in the order into which its only reader permutes it.

        Raises:
            NotAttention: if the matmul belongs to something else.
            Refusal: if the kernel cannot read the operands as they lie in memory.
        """
        plan = self._planned(var, permuted, True)
        of = plan.attention
        alike = of.q.dtype == of.k.dtype == of.v.dtype
        return (
            plan if alike or self._mixes else self._planned(var, permuted, False)
        )  # some of them are float32 themselves

    def _planned(self, var: relax.Var, permuted: bool, widened: bool) -> Planned:
        call = self.values[var]
        weights = self.reader.weights(call.args[0])
        if weights is None:
            raise NotAttention("the left side is not a softmax")
        scores = self.reader.scores(weights.softmax.args[0])
        out, of_scores = shape_of(call), shape_of(scores.product)
        if not out or not of_scores or min(len(out), len(of_scores)) < 2:
            raise Refusal("its shapes are not known")
        products = [*scores.product.args, *call.args]
        if any(len(shape_of(value) or ()) < 2 for value in products) or not same(out[-2], of_scores[-2]):
            raise NotAttention("a product is one of vectors")
        matrices = product(out[:-2])
        if not same(product(of_scores[:-2]), matrices):
            raise NotAttention("its products are of other numbers of matrices")
        self._check_members([*weights.members, *scores.members], var)
        shapes = [*weights.shapes, *scores.shapes, out]
        operands = self.operands(of_scores[-2], widened)
        shapes += operands.shapes(scores.product.args[1], (out[-1], of_scores[-1]))
        shapes += operands.shapes(call.args[1], (of_scores[-1], out[-1]))
        whole_shapes = [shape for shape in shapes if same(product(shape[:-2]), matrices)]
        few = [shape[:-2] for shape in whole_shapes if len(shape) <= LEADING_AXES + 2]
        if not few:
            raise Refusal(f"it has more than {LEADING_AXES} leading axes")
        return self._laid_out(var, call, scores, weights.safe, max(few, key=_fineness), permuted, operands)

    def _check_members(self, members: list[relax.Expr], result: relax.Expr) -> None:
        """Refuse attention if other operators read its scores or weights, which would then be computed twice."""
        inside = {*members, result}
        for var in members:
            for_data = [
                r for r in self.readers.get(var, []) if r is None or operator_name(r.value) not in _OF_SHAPES
            ]
            if not isinstance(var, relax.DataflowVar) or any(
                r is None or r.var not in inside for r in for_data
            ):
                raise NotAttention("its scores or weights are read elsewhere")

    # -- how it lies in memory -------------------------------------------------------------------------------------
    def _laid_out(
        self,
        var: relax.Var,
        call: relax.Call,
        scores: Scores,
        safe: bool,
        leading: tuple[Extent, ...],
        permuted: bool,
        operands: OperandReader,
    ) -> Planned:
        first, out = shape_of(scores.product), shape_of(call)
        assert first is not None and out is not None
        queries, keys, size = first[-2], first[-1], out[-1]
        if not isinstance(size, int):
            raise Refusal("its heads are of symbolic size")
        both = [same_shape(shape[:-2], leading) for shape in (first, out)]  # else matmul repeats matrices
        q, of_q = operands.rows(scores.product.args[0], (*leading, queries, size), both[0])
        k, of_k = operands.rows(scores.product.args[1], (*leading, size, keys), both[0], transposed=True)
        v, _ = operands.rows(call.args[1], (*leading, keys, size), both[1], factors=False)
        result, strides, skipped = self.stored(var, (*leading, queries, size), permuted)
        plan = Attention(
            three(leading),
            queries,
            keys,
            size,
            scores.scale * of_q * of_k,
            as_operand(q),
            as_operand(k),
            as_operand(v),
            operand_of(result, of_rows(strides)),
            safe=safe,
            wide_weights=str(call.args[0].ty.dtype) == "float32" and as_operand(v).dtype in HALF,
        )
        causal = [causal_offset(value, queries, keys) for value, _ in scores.masks]
        added = [mask for mask, offset in zip(scores.masks, causal) if offset is None]
        masks, of_mask = self._masks(added, (*leading, queries, keys))
        values = (q.value, k.value, v.value)
        last = min((offset for offset in causal if offset is not None), default=None)
        return Planned(replace(plan, mask=of_mask, causal=last), values, result, masks, tuple(skipped))

    def _masks(
        self, added: Sequence[tuple[relax.Expr, tuple[Extent, ...]]], extents: tuple[Extent, ...]
    ) -> tuple[tuple[Mask, ...], Operand | None]:
        """Return the values added to scores of shape ``extents``, and the layout of their sum."""
        if not added:
            return (), None
        masks = []
        for value, added_to in added:
            view: View | None = whole(value, shape_of(value) or ())
            for shape in (added_to, None):
                if view is not None:
                    view = reshaped(view, extents) if shape is None else broadcast(view, shape)
            if view is None:
                raise Refusal("a mask lies in another way")
            masks.append((value, view))
        if len(masks) == 1:
            value, view = masks[0]
            own = operand_of(value, of_scores(view.strides))
            return (Mask(value, own.shape),), own
        if len({str(value.ty.dtype) for value, _ in masks}) > 1:
            raise Refusal("its masks are of several types")
        shapes = [
            tuple(1 if is_number(s, 0) else e for e, s in zip(extents, view.strides)) for _, view in masks
        ]
        both = tuple(max(es, key=lambda e: not is_number(e, 1)) for es in zip(*shapes))
        of_sum = Operand(both, str(masks[0][0].ty.dtype), 0, of_scores(whole(None, both).strides))
        return tuple(Mask(value, shape) for (value, _), shape in zip(masks, shapes)), of_sum

    def stored(
        self, var: relax.Var, extents: tuple[Extent, ...], permuted: bool
    ) -> tuple[Any, tuple[Extent, ...], list[Any]]:
        """Return the variable that the kernel's result replaces, its strides, and the variables before it."""
        best: tuple[Any, tuple[Extent, ...], list[Any]] = (var, whole(None, extents).strides, [])
        at, order, passed = var, list(range(len(extents))), [var]
        while permuted and (binding := only_reader_inside(self.readers, at)) is not None:
            name, after = operator_name(binding.value), shape_of(binding.value)
            if after is None or name not in (*RESHAPES, "relax.permute_dims"):
                break
            if name == "relax.permute_dims":
                if not same_shape(shape_of(at) or (), [extents[i] for i in order]):
                    break
                order = [order[i] for i in permutation(binding.value, len(after))]
                if order[-1] != len(extents) - 1:
                    break
                inner = whole(None, after).strides
                best = binding.var, tuple(inner[order.index(i)] for i in range(len(order))), list(passed)
            at = binding.var
            passed.append(at)
        return best


def causal_offset(mask: relax.Expr, queries: Extent, keys: Extent) -> int | None:
    """Return the causal offset of a constant mask: query i sees the keys up to i + offset. None for any other mask.

    Each query sees a key. The result for a query that sees none depends on more than the mask.
    """
    if not isinstance(mask, tvm.ir.GenericConst):
        return None
    array = mask.value.numpy()
    if (
        not array.size
        or array.shape[-2:] != (queries, keys)
        or array.size != array.shape[-2] * array.shape[-1]
    ):
        return None
    array = array.reshape(array.shape[-2:]).astype("float32")
    seen = array == 0
    offset = int(seen[0].sum()) - 1
    expected = np.tril(np.ones(array.shape, bool), offset)
    return offset if offset >= 0 and (seen == expected).all() and np.isneginf(array[~seen]).all() else None


def _fineness(leading: tuple[Extent, ...]) -> tuple[int, bool, int]:
    """Return a key that is largest for separate leading axes, then for <batch, head>, as results are permuted."""
    return sum(not is_number(extent, 1) for extent in leading), len(leading) == 2, -len(leading)
