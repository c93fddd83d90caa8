# SPDX-License-Identifier: Apache-2.0
"""Choose the matmuls of a Relax function that a library computes, how their operands lie, and their epilogues.

A matmul is followed through a permutation, which is then the order in which the result is stored. It is also followed
through a bias, a residual and ReLU. These are taken only if results, other library calls and later kernels alone read
their result. In any other kernel they are free, while the library would have to write the values that another reader
needs. A bias alone costs nothing: it is taken if any reader is such a call, because the operand of that call is
written anyway.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tvm import relax

from ...compute.cuda.strided import Axis, StridedProduct, strided
from ...graph.extent import Extent, is_number, same, same_shape
from ...support.failures import Refusal, error_text, reason_of, reraise_fatal
from ..rewriting.operators import ELEMENTWISE, PRODUCTS, operator_name
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
CAST = "relax.astype"
CONVOLUTIONS = PRODUCTS - {MATMUL}
ACTIVATIONS = {"relax.nn.relu": "relu"}
"""Activations that the library applies to a result, by operator. ``FlagsOf`` in ``cublaslt.cc`` reads the words."""


@dataclass(frozen=True)
class Planned:
    """A matmul that the library computes.

    Attributes:
        name: the variable that the matmul is bound to.
        layout: how its operands lie.
        left: the value that holds the layout's left side.
        right: the value that holds its right side.
        result: the variable that the call replaces: the matmul, or the result of its epilogue.
        bias: a vector that is added to each row, if any.
        residual: a tensor of the result's shape that is added, if any.
        activation: the activation of the results, a word of ``ACTIVATIONS``, if any.
    """

    name: str
    layout: StridedProduct
    left: relax.Expr
    right: relax.Expr
    result: relax.Var
    bias: relax.Expr | None = None
    residual: relax.Expr | None = None
    activation: str = ""

    @property
    def words(self) -> list[str]:
        """The words of the matmul's epilogue."""
        added = [word for word in ("bias", "residual") if getattr(self, word) is not None]
        return [*added, self.activation] if self.activation else added


def planned(
    func: relax.Function,
    check: Callable[[relax.Call], None],
    refused: Callable[[relax.Var, str], None],
    epilogues: bool,
    scheduled: Collection[relax.Var] = (),
) -> dict[relax.Var, Planned]:
    """Return the matmuls of a function that a library computes, by the variables that its calls replace.

    Args:
        func: a Relax function.
        check: raises a Refusal for a matmul that the library must not compute.
        refused: receives the variable of each matmul that the library does not compute, and the reason.
        epilogues: allow biases, residuals and ReLU to be computed with the matmul before them.
        scheduled: functions that are kernels already, which compute no epilogue.
    """
    return _Planner(func, scheduled).plan(check, refused, epilogues)


class _Planner:
    def __init__(self, func: relax.Function, scheduled: Collection[relax.Var]):
        self.scheduled = scheduled
        self.values = dict(relax.analysis.get_var2val(func).items())
        self.readers = readers_of(func)
        bindings = (binding for block in func.body.blocks for binding in block.bindings)
        self.order = {binding.var: i for i, binding in enumerate(bindings)}
        self.products: dict[relax.Var, Planned] = {}  # by the variables that matmuls are bound to
        self.residuals: set[relax.Var] = set()  # operands that matmuls add to their results
        self.claimed: set[relax.Var] = set()  # results of the epilogues of earlier matmuls

    def plan(
        self, check: Callable[[relax.Call], None], refused: Callable[[relax.Var, str], None], epilogues: bool
    ) -> dict[relax.Var, Planned]:
        for var, call in self.values.items():
            if not is_product(call):
                continue
            try:
                check(call)
                self.products[var] = self._product(var, call, shape_of(call))
            except Exception as err:
                reraise_fatal(err)
                refused(var, error_text(err))
        plans = self._all_grown(epilogues)
        self.residuals = {p.residual for p in plans if isinstance(p.residual, relax.Var)}
        if self.residuals:  # they are written anyway, so a matmul that makes one may compute its epilogue
            plans = self._all_grown(epilogues)
        return {p.result: p for p in plans}

    def _all_grown(self, epilogues: bool) -> list[Planned]:
        self.claimed = set()
        return [self._grown_or_plain(var, p, epilogues) for var, p in self.products.items()]

    def _product(
        self,
        var: relax.Var,
        call: relax.Call,
        out: tuple[Extent, ...] | None,
        stored: tuple[Extent, ...] = (),
    ) -> Planned:
        """Return the matmul of the earliest values that its operands view and that the library can read."""
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
        assert last is not None  # the refusal of the operands themselves
        raise last

    # -- what follows a product -------------------------------------------------------------------------------
    def _grown_or_plain(self, var: relax.Var, plan: Planned, epilogues: bool) -> Planned:
        try:
            return self._grown(var, plan, epilogues)
        except Exception as err:  # the matmul itself is not affected
            reason_of(err, f"what follows {plan.name}")
            return plan

    def _grown(self, var: relax.Var, plan: Planned, epilogues: bool) -> Planned:
        """Return the matmul with its epilogue, as long as no kernel behind it would compute the epilogue anyway."""
        plan = self._stored_as_permuted(var, plan)
        best, at = plan, plan.result
        path: list[relax.Var] = []
        while epilogues and not plan.activation and (binding := self._only_reader(at)) is not None:
            taken = self._taken(plan, at, binding.value)
            # The sum of two matmuls is computed with one of them.
            if taken is None or binding.var in self.claimed:
                break
            plan, at = replace(taken, result=binding.var), binding.var
            path.append(at)
            free = plan.words == ["bias"] and self._is_written_anyway(at)
            if free or (plan.words and self._needs_no_kernel(at)):
                best = plan
                self.claimed.update(path)
        return best

    def _only_reader(self, var: relax.Var) -> relax.Binding | None:
        """Return the only binding that reads a variable, in its block. None if several do, or another matmul does."""
        return None if self._is_operand(var) else only_reader_inside(self.readers, var)

    def _stored_as_permuted(self, var: relax.Var, plan: Planned) -> Planned:
        """Return the matmul stored in the order into which its only reader permutes it, if one call can do that."""
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

    def _taken(self, plan: Planned, at: relax.Var, call: relax.Call) -> Planned | None:
        """Return the matmul with one more operation, which reads ``at``, or None if the library does not have it."""
        name = operator_name(call)
        if name in RESHAPES:
            return plan
        if name in ACTIVATIONS:
            return replace(plan, activation=ACTIVATIONS[name])
        if (
            name != "relax.add"
            or not isinstance(plan.layout.reduction, int)
            or str(call.ty.dtype) != _dtype(at)
        ):
            return None  # the library takes no reduction (K) extent that may be 0
        (other,) = [a for a in call.args if not a.same_as(at)] or [None]
        extents, shape, own = (None if v is None else shape_of(v) for v in (other, call, at))
        if extents is None or not shape or own is None or _dtype(other) != _dtype(at):
            return None
        if not same_shape(own, shape):  # the addition broadcasts the matmul
            return None
        vector = bool(extents) and all(is_number(e, 1) for e in extents[:-1])
        if vector and same(extents[-1], plan.layout.columns) and same(shape[-1], plan.layout.columns):
            if plan.bias is None and plan.residual is None:
                return replace(plan, bias=other)
        full = plan.residual is None and same_shape(extents, shape)
        return replace(plan, residual=other) if full else None

    def _needs_no_kernel(self, var: relax.Var) -> bool:
        """Return whether only kernels, library calls and results read a value. Others would compute an epilogue.

        A residual of a library call is in memory for that call, whatever else reads it.
        """
        return var in self.residuals or all(
            self._reads_memory(binding)
            or self._reads_later(binding, var)
            or (_is(binding.value, RESHAPES) and self._needs_no_kernel(binding.var))
            or (_is(binding.value, VIEWS) and self._is_unread(binding.var))
            for binding in self._reading(var)
        )

    def _is_written_anyway(self, var: relax.Var) -> bool:
        """Return whether any kernel, library call or result reads a value as it is."""
        return var in self.residuals or any(
            self._reads_memory(binding)
            or (_is(binding.value, RESHAPES) and self._is_written_anyway(binding.var))
            for binding in self._reading(var)
        )

    def _reading(self, var: relax.Var) -> Iterator[relax.Binding]:
        """Yield the bindings that read a value under any name, and None for a result."""
        for binding in self.readers.get(var, []):
            if binding is not None and isinstance(binding.value, relax.Var):
                yield from self._reading(binding.var)
            else:
                yield binding

    def _reads_memory(self, binding: relax.Binding) -> bool:
        """Return whether a reader is a result, or a call that reads its operands from memory."""
        if binding is None or binding.var in self.products or operator_name(binding.value) in CONVOLUTIONS:
            return True
        return is_call_tir(binding.value) and binding.value.args[0] in self.scheduled

    def _reads_later(self, binding: relax.Binding, var: relax.Var) -> bool:
        """Return whether a reader uses a value with the result of a later library call, so that its kernel is later.

        The reader is an element-wise operator, as those are that compute its other operands of the later result. A
        cast or a reshape of the value is read instead of the value.
        """
        if _is(binding.value, (CAST, *RESHAPES)):
            readers = list(self._reading(binding.var))
            return bool(readers) and all(reader and self._reads_later(reader, var) for reader in readers)
        if operator_name(binding.value) not in ELEMENTWISE:
            return False
        left, seen = list(binding.value.args), set[relax.Var]()
        while left:
            operand = left.pop()
            value = self.values.get(operand) if isinstance(operand, relax.Var) else None
            if value is None or operand in seen or self.order.get(operand, -1) <= self.order.get(var, -1):
                continue
            seen.add(operand)
            if operand in self.products or operator_name(value) in CONVOLUTIONS:
                return True
            if _is(value, (*ELEMENTWISE, *RESHAPES)):
                left.extend(value.args)
        return False

    def _is_unread(self, view: relax.Binding) -> bool:
        """Return whether all readers of a view read the value behind it instead."""
        return not self._is_operand(view) and all(
            binding is not None
            and (binding.var in self.products or (_is(binding.value, VIEWS) and self._is_unread(binding.var)))
            for binding in self.readers.get(view, [])
        )

    def _is_operand(self, value: relax.Expr) -> bool:
        """Return whether a library call reads a value, directly or in place of a view of it."""
        return any(v.same_as(value) for plan in self.products.values() for v in (plan.left, plan.right))


def is_product(value: relax.Expr) -> bool:
    """Return whether a value is ``R.matmul(...)`` of tensors that have elements."""
    return _is(value, (MATMUL,)) and has_elements(*value.args)


def _is(value: relax.Expr, names: tuple[str, ...]) -> bool:
    return operator_name(value) in names


def _dtype(value: relax.Expr) -> str:
    return str(value.ty.dtype)


def product_axes(
    left: View, right: View, out: tuple[Extent, ...], stored: tuple[Extent, ...] = ()
) -> list[Axis]:
    """Return the axes of a matmul whose operands are views. The last axis is the reduction (K) axis.

    Args:
        left: the left operand.
        right: the right operand.
        out: the extents of the result.
        stored: the strides of the result if it is not compact, for a matmul of matrices.

    Raises:
        Refusal: if extents may be broadcast at run time, or there are no elements.
    """
    if any(is_number(e, 0) for e in (*left.extents, *right.extents)):
        raise Refusal("it has no elements")
    sides = [_as_matrices(left, 0), _as_matrices(right, 1)]
    reduction = [sides[0].extents[-1], sides[1].extents[-2]]
    if not same(*reduction):
        raise Refusal(
            f"its reduction dimension is {reduction[0]} on the left and {reduction[1]} on the right"
        )
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
    axes.append(Axis(reduction[0], sides[0].strides[-1], sides[1].strides[-2], 0))
    return axes


def _as_matrices(view: View, at: int) -> View:
    """Return a vector as a matrix of one row (on the left, ``at`` 0) or one column (on the right)."""
    if len(view.extents) > 1:
        return view
    extents, strides = list(view.extents), list(view.strides)
    extents.insert(at, 1)
    strides.insert(at, 0)
    return View(view.value, tuple(extents), tuple(strides))


def _batch_stride(side: View, axis: int, out: list[Extent]) -> Extent:
    """Return the stride of a side along an axis of the result, counted from the innermost. 0 if it is broadcast."""
    own = axis - len(out) + len(side.extents)
    if own < 0 or is_number(side.extents[own], 1):
        return 0
    if not same(side.extents[own], out[axis]):
        raise Refusal(f"whether {side.extents[own]} is broadcast to {out[axis]} is known at run time only")
    return side.strides[own]
