# SPDX-License-Identifier: Apache-2.0
"""Which products of a Relax function a library computes, how their operands lie, and what is computed with them.

A product is followed through a permutation, which then is the order in which the result is stored, through a bias, a
residual and ReLU. They are taken only if results and other calls of libraries alone read what comes out: in any other
kernel they are free, while in the library they would cost the values that another reader needs. A bias alone costs
none: it is taken wherever such a call is among the readers, since what that reads is written anyway.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm import relax

from ...compute.cuda.strided import Axis, StridedProduct, strided
from ...graph.extent import Extent, is_number, same, same_shape
from ...support.failures import Refusal, error_text, reason_of, reraise_fatal
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import only_reader_inside, readers_of
from ..rewriting.views import (
    RESHAPES,
    VIEWS,
    View,
    definition,
    has_elements,
    permutation,
    shape_of,
    views,
    whole,
)
from ..stitch.dataflow import is_call_tir

MATMUL = "relax.matmul"
CONVOLUTIONS = PRODUCTS - {MATMUL}
ACTIVATIONS = {"relax.nn.relu": "relu"}
"""Activations that the library applies to a result, by operator; ``FlagsOf`` in ``cublaslt.cc`` reads the words."""


@dataclass(frozen=True)
class Planned:
    """A product that the library computes.

    Attributes:
        name: the variable that the product is bound to.
        layout: how its operands lie.
        left: the value that holds the layout's left side.
        right: the one that holds its right side.
        result: the variable that the call stands for: the product, or what is computed of it.
        bias: a vector that is added to each row, if any.
        residual: a tensor of the result's shape that is added, if any.
        activation: what is computed of the results, a word of ``ACTIVATIONS``, if anything.
    """

    name: str
    layout: StridedProduct
    left: Any
    right: Any
    result: Any
    bias: Any = None
    residual: Any = None
    activation: str = ""

    @property
    def words(self) -> list[str]:
        """What is computed with the product."""
        added = [word for word in ("bias", "residual") if getattr(self, word) is not None]
        return [*added, self.activation] if self.activation else added


def planned(
    func: Any,
    check: Callable[[Any], None],
    refused: Callable[[str, str], None],
    epilogues: bool,
    scheduled: Collection[Any] = (),
) -> dict[Any, Planned]:
    """What a library computes of a function, by the variables that its calls stand for.

    Args:
        func: a Relax function.
        check: raises a Refusal for a product that is not to be computed by the library.
        refused: is told the name of each product that the library does not compute, and the reason.
        epilogues: may biases, residuals and ReLU be computed with the product before them?
        scheduled: functions that are kernels already, which compute nothing else on their way.
    """
    return _Planner(func, scheduled).plan(check, refused, epilogues)


class _Planner:
    def __init__(self, func: Any, scheduled: Collection[Any]):
        self.scheduled = scheduled
        self.values = dict(relax.analysis.get_var2val(func).items())
        self.readers = readers_of(func)
        self.products: dict[Any, Planned] = {}  # by the variables that products are bound to

    def plan(
        self, check: Callable[[Any], None], refused: Callable[[str, str], None], epilogues: bool
    ) -> dict[Any, Planned]:
        for var, call in self.values.items():
            if not is_product(call):
                continue
            try:
                check(call)
                self.products[var] = self._product(var, call, shape_of(call))
            except Exception as err:
                reraise_fatal(err)
                refused(str(var.name), error_text(err))
        made = [self._grown_or_plain(var, p, epilogues) for var, p in self.products.items()]
        return {p.result: p for p in made}

    def _product(
        self, var: Any, call: Any, out: tuple[Extent, ...] | None, stored: tuple[Extent, ...] = ()
    ) -> Planned:
        """The product over the earliest values that its operands are views of and the library can read."""
        chains = [list(views(arg, partial(definition, self.values))) for arg in call.args]
        if out is None or not all(chains):
            raise Refusal("its shapes are not known")
        pairs = itertools.product(*(range(len(chain)) for chain in chains))
        last: Refusal | None = None
        for i, j in sorted(pairs, key=sum, reverse=True):
            left, right = chains[0][i], chains[1][j]
            try:
                layout = strided(product_axes(left, right, out, stored))
            except Refusal as refusal:
                last = refusal
                continue
            if layout.swapped:
                left, right = right, left
            return Planned(str(var.name), layout, left.value, right.value, var)
        assert last is not None  # what is wrong with the operands themselves
        raise last

    # -- what follows a product -------------------------------------------------------------------------------
    def _grown_or_plain(self, var: Any, plan: Planned, epilogues: bool) -> Planned:
        try:
            return self._grown(var, plan, epilogues)
        except Exception as err:  # the product itself is none the worse for it
            reason_of(err, f"what follows {plan.name}")
            return plan

    def _grown(self, var: Any, plan: Planned, epilogues: bool) -> Planned:
        """The product with what follows it, as far as no kernel is needed behind that anyway."""
        plan = self._stored_as_permuted(var, plan)
        best, at = plan, plan.result
        while epilogues and not plan.activation and (binding := self._only_reader(at)) is not None:
            taken = self._taken(plan, at, binding.value)
            if taken is None:
                break
            plan, at = replace(taken, result=binding.var), binding.var
            free = plan.words == ["bias"] and self._is_written_anyway(at)
            if free or (plan.words and self._needs_no_kernel(at)):
                best = plan
        return best

    def _only_reader(self, var: Any) -> Any:
        """The binding that alone reads a variable of its own block; None if several do, or another product."""
        return None if self._is_operand(var) else only_reader_inside(self.readers, var)

    def _stored_as_permuted(self, var: Any, plan: Planned) -> Planned:
        """The product stored in the order in which its only reader permutes it, where that is one call as well."""
        binding = self._only_reader(var)
        if binding is None or operator_name(binding.value) != "relax.permute_dims":
            return plan
        call, extents = self.values[var], shape_of(binding.value)
        if extents is None:
            return plan
        order = permutation(binding.value, len(extents))
        strides = whole(None, extents).strides
        stored = tuple(strides[order.index(i)] for i in range(len(order)))
        try:
            return replace(self._product(var, call, shape_of(call), stored), result=binding.var)
        except Refusal:
            return plan

    def _taken(self, plan: Planned, at: Any, call: Any) -> Planned | None:
        """The product with one more operation that reads it at ``at``; None where the library has none such."""
        name = operator_name(call)
        if name in RESHAPES:
            return plan
        if name in ACTIVATIONS:
            return replace(plan, activation=ACTIVATIONS[name])
        if name != "relax.add" or not isinstance(plan.layout.depth, int) or str(call.ty.dtype) != _dtype(at):
            return None  # a depth that may be 0 is none that the library takes
        (other,) = [a for a in call.args if not a.same_as(at)] or [None]
        extents, shape, own = (None if v is None else shape_of(v) for v in (other, call, at))
        if extents is None or not shape or own is None or _dtype(other) != _dtype(at):
            return None
        if not same_shape(own, shape):  # the addition repeats the product
            return None
        vector = bool(extents) and all(is_number(e, 1) for e in extents[:-1])
        if vector and same(extents[-1], plan.layout.columns) and same(shape[-1], plan.layout.columns):
            if plan.bias is None and plan.residual is None:
                return replace(plan, bias=other)
        full = plan.residual is None and same_shape(extents, shape)
        return replace(plan, residual=other) if full else None

    def _needs_no_kernel(self, var: Any) -> bool:
        """Do only kernels, library calls and results read a value? Any other reader computes an epilogue on the way."""
        return all(
            self._reads_memory(binding)
            or (_is(binding.value, RESHAPES) and self._needs_no_kernel(binding.var))
            or (_is(binding.value, VIEWS) and self._is_unread(binding.var))
            for binding in self._reading(var)
        )

    def _is_written_anyway(self, var: Any) -> bool:
        """Does any kernel, library call or result read a value as it is?"""
        return any(
            self._reads_memory(binding)
            or (_is(binding.value, RESHAPES) and self._is_written_anyway(binding.var))
            for binding in self._reading(var)
        )

    def _reading(self, var: Any) -> Iterator[Any]:
        """The bindings that read a value under any name; None for a result."""
        for binding in self.readers.get(var, []):
            if binding is not None and isinstance(binding.value, relax.Var):
                yield from self._reading(binding.var)
            else:
                yield binding

    def _reads_memory(self, binding: Any) -> bool:
        """Is it a result, or the binding of a call that reads its operands from memory?"""
        if binding is None or binding.var in self.products or operator_name(binding.value) in CONVOLUTIONS:
            return True
        return is_call_tir(binding.value) and binding.value.args[0] in self.scheduled

    def _is_unread(self, view: Any) -> bool:
        """Do all readers of a view read what it is made from in its stead?"""
        return not self._is_operand(view) and all(
            binding is not None
            and (binding.var in self.products or (_is(binding.value, VIEWS) and self._is_unread(binding.var)))
            for binding in self.readers.get(view, [])
        )

    def _is_operand(self, value: Any) -> bool:
        """Does a call of the library read a value, directly or in the stead of a view of it?"""
        return any(v.same_as(value) for plan in self.products.values() for v in (plan.left, plan.right))


def is_product(value: Any) -> bool:
    """True for ``R.matmul(...)`` of tensors that have elements."""
    return _is(value, (MATMUL,)) and has_elements(*value.args)


def _is(value: Any, names: tuple[str, ...]) -> bool:
    return operator_name(value) in names


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def product_axes(
    left: View, right: View, out: tuple[Extent, ...], stored: tuple[Extent, ...] = ()
) -> list[Axis]:
    """The axes of a matmul whose operands are views; the last one is that which it sums over.

    Args:
        left: the left operand.
        right: the right operand.
        out: the extents of the result.
        stored: its strides, where it is not compact; of a product of matrices.

    Raises:
        Refusal: where extents may be broadcast at run time, or there are no elements.
    """
    if any(is_number(e, 0) for e in (*left.extents, *right.extents)):
        raise Refusal("it has no elements")
    sides = [_as_matrices(left, 0), _as_matrices(right, 1)]
    depth = [sides[0].extents[-1], sides[1].extents[-2]]
    if not same(*depth):
        raise Refusal(f"its depth is {depth[0]} on the left and {depth[1]} on the right")
    full = list(out)
    if len(left.extents) == 1:
        full.insert(len(full) - (len(right.extents) > 1), 1)
    if len(right.extents) == 1:
        full.append(1)
    if stored and len(full) != len(stored):
        raise Refusal("a product of vectors is not stored in another order")
    strides = stored or whole(None, full).strides
    axes = [
        Axis(extent, _batch_stride(sides[0], i, full), _batch_stride(sides[1], i, full), strides[i])
        for i, extent in enumerate(full[:-2])
    ]
    axes.append(Axis(full[-2], sides[0].strides[-2], 0, strides[-2]))
    axes.append(Axis(full[-1], 0, sides[1].strides[-1], strides[-1]))
    axes.append(Axis(depth[0], sides[0].strides[-1], sides[1].strides[-2], 0))
    return axes


def _as_matrices(view: View, at: int) -> View:
    """A vector as a matrix of one row (on the left, ``at`` 0) or one column (on the right)."""
    if len(view.extents) > 1:
        return view
    extents, strides = list(view.extents), list(view.strides)
    extents.insert(at, 1)
    strides.insert(at, 0)
    return View(view.value, tuple(extents), tuple(strides))


def _batch_stride(side: View, axis: int, out: list[Extent]) -> Extent:
    """The stride of a side along an axis of the result, counted from the innermost: 0 where it is broadcast."""
    own = axis - len(out) + len(side.extents)
    if own < 0 or is_number(side.extents[own], 1):
        return 0
    if not same(side.extents[own], out[axis]):
        raise Refusal(f"whether {side.extents[own]} is broadcast to {out[axis]} is known at run time only")
    return side.strides[own]
