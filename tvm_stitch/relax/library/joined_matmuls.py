# SPDX-License-Identifier: Apache-2.0
"""JoinedProducts: join matmuls of one operand with several constant weights into one matmul, and split its result.

Examples are the queries, keys and values of attention, and the two halves of a gated layer. At a small batch each
matmul alone is too small for a device. Their biases are joined too. Attention reads the slices as they lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...graph.dtype import MULTIPLIED
from ...graph.extent import is_number
from ...support.module_pass import module_pass
from ..rewriting.contents import contents_of
from ..rewriting.functions import own_functions
from ..rewriting.marked_names import joined
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader_inside, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import shape_of


@dataclass(eq=False)
class Member:
    """A matmul that is joined with others.

    Attributes:
        call: the matmul.
        weight: its right operand, a matrix.
        result: the variable that a slice of the joined result replaces, behind the bias if there is one.
        bias: the vector that is added, if any.
    """

    call: relax.Call
    weight: tvm.ir.GenericConst
    result: relax.Var
    bias: tvm.ir.GenericConst | None = None


@module_pass
class JoinedProducts:
    """Join matmuls of one variable with constant matrices, and the constant vectors that are added to them.

    Runs before matmuls become library calls, and before attention becomes a kernel.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Join the module's matmuls."""
        plans: dict[relax.Var, tuple[list[Member], int]] = {}
        for _, func in own_functions(mod):
            plans |= planned(func)
        joined_results: dict[int, relax.Var] = {}  # by group of members

        def part(match: Match) -> relax.Expr:
            members, index = plans[match.var]
            if id(members) not in joined_results:
                joined_results[id(members)] = _joined(match, members)
            return relax.TupleGetItem(joined_results[id(members)], index)

        return apply_rules(mod, [Rule("one product is larger", part, variables=plans, leaves_unused=True)])


def planned(func: relax.Function) -> dict[relax.Var, tuple[list[Member], int]]:
    """Return for each variable that becomes a slice: the matmuls that are joined, and the slice's index."""
    weights = [call.args[1] for call in contents_of(func).get("relax.matmul", ())]
    plans: dict[relax.Var, tuple[list[Member], int]] = {}
    if sum(isinstance(weight, tvm.ir.GenericConst) for weight in weights) < 2:
        return plans
    readers = readers_of(func)
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


def _members(block: relax.DataflowBlock, readers: Readers) -> Iterator[tuple[Any, Member]]:
    """Yield the matmuls of a block that may be joined, each with what they share: the left operand and dtypes."""
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
        if reader is not None and bias is not None:
            member = Member(call, weight, reader.var, bias)
        yield (left, str(weight.ty.dtype), str(call.ty.dtype)), member


def _bias(call: relax.Expr, product: relax.Var, of: relax.Call) -> tvm.ir.GenericConst | None:
    """Return the constant vector that a call adds to a matmul, of its dtype, else None."""
    if operator_name(call) != "relax.add":
        return None
    others = [arg for arg in call.args if not arg.same_as(product)]
    if len(others) != 1 or not isinstance(others[0], tvm.ir.GenericConst):
        return None
    (bias,), columns = others, (shape_of(of) or (None,))[-1]
    *outer, last = shape_of(bias) or (None,)
    is_row = last == columns and all(is_number(extent, 1) for extent in outer)
    return bias if is_row and len(outer) < len(of.ty.shape.values) and bias.ty.dtype == of.ty.dtype else None


def _joined(match: Match, members: list[Member]) -> relax.Var:
    """Emit one matmul for all members, and split it into their slices."""
    first = members[0].call
    weight = _constant(np.concatenate([m.weight.value.numpy() for m in members], 1), members[0].weight)
    result = relax.op.matmul(match.now(first.args[0]), weight, out_dtype=str(first.ty.dtype))
    if any(member.bias is not None for member in members):
        result = relax.op.add(match.emit(result), _constant(_biases(members), first))
    result = match.emit(result, joined(str(member.result.name) for member in members))
    widths = [int((shape_of(member.weight) or ())[1]) for member in members]
    cuts = list(itertools.accumulate(widths[:-1]))
    return match.emit(relax.op.split(result, cuts, axis=len(first.ty.shape.values) - 1))


def _constant(array: np.ndarray, like: relax.Expr) -> relax.Expr:
    return relax.const(array, str(like.ty.dtype))


def _biases(members: list[Member]) -> np.ndarray:
    """Return the members' biases one after the other, with zeros for members without one."""
    (known, *_) = (m.bias.value.numpy().dtype for m in members if m.bias is not None)
    return np.concatenate(
        [
            np.zeros(m.weight.value.shape[1], known) if m.bias is None else m.bias.value.numpy().reshape(-1)
            for m in members
        ]
    )
