# SPDX-License-Identifier: Apache-2.0
"""DividedProducts: products whose channels are divided become products of some channels each.

A gated block multiplies rows once, and divides the channels: some are convolved, and others are gates. cuDNN reads no
slice. So a kernel copies the channels to convolve, and stores the gates on the way. A product of these channels alone
writes the operand of the convolution. The kernels that need the gates read them where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import tvm
from tvm import relax

from ...cost.choices import Choices
from ...graph.dtype import HALF
from ...graph.extent import is_static, product
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.movement import SPLIT
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader_inside, reader_name, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, parts_of, shape_of
from .rows import CAST, CONVOLUTIONS, RowProduct, Values, channel_constant, keeps_rows, row_product

Range = tuple[int, int]
"""The first channel, and the channel behind the last one."""


@dataclass(frozen=True)
class Division:
    """A product, the operators behind it, and the ranges of channels that become products.

    Attributes:
        product: the product.
        chain: the variables of casts, reshapes and operators with constants behind it, in order.
        parts: the channels of each item of the split.
        ranges: the channels of each new product, in order.
    """

    product: RowProduct
    chain: tuple[relax.Var, ...]
    parts: tuple[Range, ...]
    ranges: tuple[Range, ...]


@module_pass
class DividedProducts:
    """Rewrite ``split(product(x, weight))`` as products by parts of the weight.

    The product is a matmul or a convolution with channels last, by a constant weight. Operators with a number for each
    channel, casts and reshapes of positions may follow it. A convolution reads at least one part as it is: such a part
    becomes a product. Neighbouring other parts stay together if rows of theirs begin at multiples of 16 bytes.

    Runs once layouts are chosen.

    Args:
        choices: the device's constants of choice.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        divisions: dict[relax.Var, tuple[Division, relax.Var]] = {}
        for _, func in own_functions(mod):
            divisions |= dict(_divided(func, self.choices))
        made: dict[tuple[relax.Var, Range], relax.Var] = {}

        def part(match: Match) -> relax.Expr:
            division, split = divisions[match.var]
            begin, end = division.parts[match.before.index]
            (own,) = [r for r in division.ranges if r[0] <= begin and end <= r[1]]
            if own == (begin, end):
                return _product_of(match, division, own, self.choices)
            if (split, own) not in made:
                made[split, own] = match.emit(_product_of(match, division, own, self.choices))
            whole = made[split, own]
            axis = len(shape_of(whole) or ()) - 1
            return relax.op.strided_slice(
                whole, [axis], [begin - own[0]], [end - own[0]], assume_inbound=True
            )

        rule = Rule("no channels are copied", part, variables=divisions, leaves_unused=True)
        return apply_rules(mod, [rule], unique_names=True) if divisions else mod


def _divided(
    func: relax.Function, choices: Choices
) -> Iterator[tuple[relax.Var, tuple[Division, relax.Var]]]:
    """Yield the variable of each item of a split to rewrite, with its division and the split."""
    values: Values = dict(relax.analysis.get_var2val(func).items())
    splits = [var for var, call in values.items() if operator_name(call) == SPLIT]
    readers = readers_of(func) if splits else {}
    for split in splits:
        items = readers.get(split, [])
        names = {b.var: int(b.value.index) for b in items if b and isinstance(b.value, relax.TupleGetItem)}
        if not items or len(set(names.values())) < len(items) or not isinstance(split, relax.DataflowVar):
            continue
        division = _division(split, names, values, readers, choices)
        if division is not None:
            yield from ((var, (division, split)) for var in names)


def _division(
    split: relax.Var, items: dict[relax.Var, int], values: Values, readers: Readers, choices: Choices
) -> Division | None:
    call = values[split]
    parts, shape = parts_of(call), shape_of(call.args[0]) or ()
    if len(parts) < 2 or int(call.attrs.axis) % max(len(shape), 1) != len(shape) - 1:
        return None
    if any(begin == end for begin, end in parts):
        return None
    found = _product_before(split, call.args[0], values, readers)
    if found is None:
        return None
    made, chain = found
    copied = {parts[i] for var, i in items.items() if _is_convolved(var, readers)}
    half = str(made.call.ty.dtype) in HALF
    ranges = _ranges(parts, copied, choices.aligned_channels if half else 1)
    data, result = shape_of(made.call.args[0]), shape_of(made.call)
    if not copied or data is None or result is None or not is_static((*data, *result)):
        return None
    read_again = product(data) * (len(ranges) - 1)
    moved = product(result[:-1]) * sum(end - begin for begin, end in copied)
    if read_again > choices.divided_product_reads * moved:
        return None
    return Division(made, chain, tuple(parts), ranges)


def _product_before(
    reader: relax.Var, var: relax.Expr, values: Values, readers: Readers
) -> tuple[RowProduct, tuple[relax.Var, ...]] | None:
    """Return the product that a value is computed from row by row, and the variables of the operators behind it."""
    chain: list[relax.Var] = []
    while isinstance(var, relax.DataflowVar):
        binding, call = only_reader_inside(readers, var), values.get(var)
        if binding is None or not binding.var.same_as(reader):
            return None
        made = row_product(call, values)
        if made is not None:
            return made, tuple(chain[::-1])
        operand = _operand(call, values)
        if operand is None:
            return None
        chain.append(var)
        reader, var = var, operand
    return None


def _operand(call: relax.Expr | None, values: Values) -> relax.Expr | None:
    """Return what an operator of a chain reads, or None for other operators."""
    name = operator_name(call)
    if name == CAST or (name in RESHAPES and keeps_rows(call)):
        return call.args[0]  # type: ignore[union-attr]
    if name in ("relax.add", "relax.multiply"):
        for arg in call.args:  # type: ignore[union-attr]
            if isinstance(arg, relax.Var) and channel_constant(call, arg, values) is not None:
                return arg
    return None


def _is_convolved(var: relax.Var, readers: Readers) -> bool:
    """Return whether a convolution reads a value, as it is or rounded or under another shape."""
    for binding in readers.get(var, ()):
        name = reader_name(binding)
        if name in CONVOLUTIONS and binding.value.args[0].same_as(var):
            return True
        if name in (CAST, *RESHAPES) and _is_convolved(binding.var, readers):
            return True
    return False


def _ranges(parts: Sequence[Range], copied: set[Range], aligned: int) -> tuple[Range, ...]:
    """Return the ranges of new products: each part that is copied, and what lies between them."""
    ranges: list[Range] = []
    for begin, end in parts:
        joins = ranges and (begin, end) not in copied and ranges[-1] not in copied
        ranges[-1:] = [(ranges[-1][0], end)] if joins else [*ranges[-1:], (begin, end)]
    cuts = [
        cut
        for begin, end in ranges
        for cut in ([begin] if (end - begin) % aligned == 0 else [b for b, _ in parts if begin <= b < end])
    ]
    return tuple(pairwise([*cuts, parts[-1][1]]))


def _product_of(match: Match, division: Division, own: Range, choices: Choices) -> relax.Expr:
    """Return a product of a range of channels with the operators behind it.

    Missing channels of 16 bytes are zeros, which a slice leaves out.
    """
    begin, end = own
    weight = division.product.weight[begin:end]
    spare = -len(weight) % choices.aligned_channels if str(division.product.call.ty.dtype) in HALF else 0
    if spare:
        weight = np.concatenate([weight, np.zeros((spare, *weight.shape[1:]), weight.dtype)])
    call = division.product.of_weight(weight)
    made: relax.Expr = relax.Call(call.op, [match.now(call.args[0]), call.args[1]], call.attrs, call.ty_args)
    if spare:
        axis = len(shape_of(division.product.call) or ()) - 1
        made = relax.op.strided_slice(match.emit(made), [axis], [0], [end - begin], assume_inbound=True)
    for var in division.chain:
        made = _step(match.values[var], match.values, match.emit(made), own)
    return made


def _step(call: relax.Call, values: Values, made: relax.Var, own: Range) -> relax.Expr:
    """Return an operator of a chain on a range of channels."""
    begin, end = own
    name = operator_name(call)
    if name == CAST:
        return relax.Call(call.op, [made], call.attrs, call.ty_args)
    if name in RESHAPES:
        return relax.op.reshape(made, [*(shape_of(call) or ())[:-1], end - begin])
    operand = _operand(call, values)
    array = channel_constant(call, operand, values)
    assert operand is not None and array is not None
    if array.size > 1:
        array = array[..., begin:end]
    constant = relax.const(np.ascontiguousarray(array), str(call.ty.dtype))
    return relax.Call(call.op, [made, constant], call.attrs, call.ty_args)
