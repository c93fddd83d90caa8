# SPDX-License-Identifier: Apache-2.0
"""JoinedProducts: products of one operand with several constant weights become one product, whose result is split.

The queries, keys and values of attention, and the two halves of a gated layer, are such: each alone is too small for a
device at a small batch. Their biases are joined with them. Attention reads the parts as they lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from ...graph.dtype import MULTIPLIED
from ...graph.extent import is_number
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.marked_names import joined
from ..rewriting.operators import operator_name
from ..rewriting.planned import PlannedRewriter
from ..rewriting.readers import only_reader_inside, readers_of
from ..rewriting.views import shape_of


@dataclass(eq=False)
class Member:
    """A product that is joined with others.

    Attributes:
        call: the product.
        weight: its right operand, a matrix.
        result: the variable that a part of the joined result stands for: of the product, or of the bias added to it.
        bias: the vector that is added, if any.
    """

    call: Any
    weight: Any
    result: Any
    bias: Any = None


@module_pass
class JoinedProducts:
    """Join products of one variable with constant matrices, and the constant vectors that are added to them.

    Runs before products become calls of a library, and attention a kernel.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Join the module's products."""
        plans = {gvar: planned(func) for gvar, func in own_functions(mod)}
        return _Rewriter(mod).rewritten(plans) if any(plans.values()) else mod


def planned(func: Any) -> dict[Any, tuple[list[Member], int]]:
    """For each variable that becomes a part: the products that are joined, and which part it is."""
    readers = readers_of(func)
    plans: dict[Any, tuple[list[Member], int]] = {}
    for block in func.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            continue
        groups: dict[Any, list[Member]] = {}
        for operand, member in _members(block, readers):
            groups.setdefault(operand, []).append(member)
        for members in groups.values():
            if len(members) > 1:
                plans |= {member.result: (members, i) for i, member in enumerate(members)}
    return plans


def _members(block: Any, readers: dict[Any, list[Any]]) -> Iterator[tuple[Any, Member]]:
    """The products of a block that may be joined, by what they share: the left operand, and dtypes."""
    seen = set()
    for binding in block.bindings:
        call = binding.value
        if operator_name(call) != "relax.matmul" or not isinstance(call.args[0], tvm.ir.Var):
            continue
        left, weight = call.args
        is_matrix = isinstance(weight, tvm.ir.GenericConst) and len(shape_of(weight) or ()) == 2
        if not is_matrix or len(shape_of(left) or ()) < 2 or str(weight.ty.dtype) not in MULTIPLIED:
            continue
        if weight.value in seen:
            continue  # the same product again, or shared: joined it would be stored twice
        seen.add(weight.value)
        member = Member(call, weight, binding.var)
        reader = only_reader_inside(readers, binding.var)
        bias = None if reader is None else _bias(reader.value, binding.var, call)
        if bias is not None:
            member = Member(call, weight, reader.var, bias)
        yield (left, str(weight.ty.dtype), str(call.ty.dtype)), member


def _bias(call: Any, product: Any, of: Any) -> Any:
    """The constant vector that a call adds to a product, of its dtype; None where it does something else."""
    if operator_name(call) != "relax.add":
        return None
    others = [arg for arg in call.args if not arg.same_as(product)]
    if len(others) != 1 or not isinstance(others[0], tvm.ir.GenericConst):
        return None
    (bias,), columns = others, (shape_of(of) or (None,))[-1]
    *outer, last = shape_of(bias) or (None,)
    is_row = last == columns and all(is_number(extent, 1) for extent in outer)
    return bias if is_row and len(outer) < len(of.ty.shape.values) and bias.ty.dtype == of.ty.dtype else None


@mutator
class _Rewriter(PlannedRewriter):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.made: dict[int, Any] = {}

    def replaced(self, plan: tuple[list[Member], int], call: Any) -> Any:
        members, part = plan
        if id(members) not in self.made:
            self.made[id(members)] = self._joined(members)
        return relax.TupleGetItem(self.made[id(members)], part)

    def _joined(self, members: list[Member]) -> Any:
        """One product for all members, and its parts."""
        first = members[0].call
        weight = _constant(np.concatenate([m.weight.value.numpy() for m in members], 1), members[0].weight)
        left = self.visit_expr(first.args[0])
        made = relax.op.matmul(left, weight, out_dtype=str(first.ty.dtype))
        if any(member.bias is not None for member in members):
            made = relax.op.add(self.builder_.emit(made), _constant(_biases(members), first))
        made = self.builder_.emit(made, joined(str(member.result.name) for member in members))
        widths = [int((shape_of(member.weight) or ())[1]) for member in members]
        cuts = list(itertools.accumulate(widths[:-1]))
        return self.builder_.emit(relax.op.split(made, cuts, axis=len(first.ty.shape.values) - 1))


def _constant(array: np.ndarray, like: Any) -> Any:
    return relax.const(array, str(like.ty.dtype))


def _biases(members: list[Member]) -> np.ndarray:
    """The members' biases one after the other, zeros where there is none."""
    (known, *_) = (m.bias.value.numpy().dtype for m in members if m.bias is not None)
    return np.concatenate(
        [
            np.zeros(m.weight.value.shape[1], known) if m.bias is None else m.bias.value.numpy().reshape(-1)
            for m in members
        ]
    )
