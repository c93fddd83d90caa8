# SPDX-License-Identifier: Apache-2.0
"""PropagatePermutations: run element-wise operators in the order that needs the fewest transpositions.

A residual may be added where channels are second, between layers that want them last. It is then transposed on its
way in and out at every layer. If it is added where channels are last, it is not.

``ConvertLayout`` propagates a layout only forwards: ConvNeXt has a transposition on either side of every layer. Here
connected element-wise operators, concatenations and the transpositions between them form one group. Each order of axes
that makes one of its borders free is a candidate. The pass takes the order in which the fewest bytes are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ...cost.choices import Choices
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, is_static, product, same_shape
from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import Readers, readers_of
from ..rewriting.views import permutation, shape_of
from .quantization import is_elementwise

CONCAT = "relax.concat"

Axes = tuple[int, ...]
"""An order: for each axis of the permuted value, the axis of the value that it is computed from."""


@module_pass
class PropagatePermutations:
    """Permute connected element-wise operators as a whole, if fewer bytes are transposed then.

    ``add(permute_dims(x), y)``, which is read through the inverse, becomes ``add(x, permute_dims(y))``. The condition
    is that ``y`` is a transposition itself, or that the other readers of the sum transpose it. Runs before
    ``LegalizeOps``.

    Args:
        choices: the device's constants of choice.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the Relax functions that have a permutation."""
        return with_own_functions(mod, partial(_rewritten, choices=self.choices))


def _rewritten(func: relax.Function, choices: Choices) -> relax.Function:
    values = dict(relax.analysis.get_var2val(func).items())
    if not any(operator_name(value) == PERMUTE for value in values.values()):
        return func
    readers = readers_of(func)
    orders: dict[relax.Var, Axes] = {}
    for block in getattr(func.body, "blocks", ()):
        if isinstance(block, relax.DataflowBlock):
            inside = _inside(block, readers)
            for group in _groups(block, values):
                orders |= _best(group, values, inside, choices)
    if not orders and not any(_is_of_another(value, values) for value in values.values()):
        return func
    return _Mutator(orders, values, readers).visit_expr(func)


def _is_of_another(value: relax.Expr, values: dict[relax.Var, relax.Expr]) -> bool:
    """Return whether a value transposes a transposition. The two are one transposition, or none."""
    return operator_name(value) == PERMUTE and operator_name(values.get(value.args[0])) == PERMUTE


def _inside(block: relax.DataflowBlock, readers: Readers) -> Readers:
    """Return the readers, with None in place of those in other blocks."""
    bound = {binding.var for binding in block.bindings}
    return {
        var: [each if each is not None and each.var in bound else None for each in bindings]
        for var, bindings in readers.items()
    }


def composed(first: Sequence[int], then: Sequence[int]) -> Axes:
    """Return the order that equals two orders in a row."""
    return tuple(first[axis] for axis in then)


def inverse(axes: Sequence[int]) -> Axes:
    """Return the inverse of an order."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _unchanged(rank: int) -> Axes:
    return tuple(range(rank))


# -- which operators go together -----------------------------------------------------------------------------------
Group = dict[relax.Var, Axes]
"""Connected operators of a dataflow block, by variable. Each has the order of its axes relative to the group's."""


def _groups(block: relax.DataflowBlock, values: dict[relax.Var, relax.Expr]) -> list[Group]:
    """Return the groups of operators that are connected directly, or only by transpositions."""
    parent: dict[relax.Var, tuple[relax.Var, Axes]] = {}  # with the order relative to the parent

    def root(var: relax.Var) -> tuple[relax.Expr, Axes]:
        """Return the variable that represents the group, and the order relative to it, and shorten the path to it."""
        way = []
        while parent[var][0] is not var:
            way.append(var)
            var = parent[var][0]
        order = _unchanged(len(_shape(var)))
        for each in reversed(way):
            order = composed(order, parent[each][1])
            parent[each] = var, order
        return var, order

    for binding in block.bindings:
        var, value = binding.var, binding.value
        if operator_name(value) == PERMUTE and value.args[0] in parent:
            parent[var] = value.args[0], tuple(permutation(value, len(_shape(var))))
        joins = _is_concatenation(value)
        if not joins and not _is_elementwise(value):
            continue
        parent[var] = var, _unchanged(len(_shape(var)))
        for arg in _args(value):
            if arg in parent and (joins or same_shape(_shape(arg), _shape(var))):
                (theirs, their_order), (mine, order) = root(arg), root(var)
                if theirs is not mine:
                    parent[mine] = theirs, composed(their_order, inverse(order))
    groups: dict[relax.Var, Group] = {}
    for var in parent:
        if operator_name(values[var]) != PERMUTE:
            top, order = root(var)
            groups.setdefault(top, {})[var] = order
    return list(groups.values())


def _is_elementwise(value: relax.Expr) -> bool:
    """Return whether a call computes each element of a tensor of known shape from one element of each operand."""
    if not is_elementwise(value):
        return False
    shape = shape_of(value)
    if shape is None or len(shape) < 2:
        return False
    operands = [(arg, shape_of(arg)) for arg in value.args]
    return all(_has_axes(arg, own, len(shape)) for arg, own in operands) and any(
        same_shape(own, shape) for _, own in operands if own is not None
    )


def _is_concatenation(value: relax.Expr) -> bool:
    """Return whether a call joins tensors of static shape, with two axes or more."""
    if operator_name(value) != CONCAT or not isinstance(value.args[0], relax.Tuple):
        return False
    shapes = [shape_of(each) for each in (value, *value.args[0].fields)]
    return all(shape is not None and len(shape) > 1 and is_static(shape) for shape in shapes)


def _args(value: relax.Expr) -> Sequence[relax.Expr]:
    """Return the operands of an operator, those of a concatenation one by one."""
    fields: Sequence[relax.Expr] = value.args[0].fields if operator_name(value) == CONCAT else value.args
    return fields


def _has_axes(arg: relax.Expr, shape: tuple[Extent, ...] | None, rank: int) -> bool:
    """Return whether an operand has ``rank`` axes, no axes, or is a constant, which can get more axes."""
    return shape is not None and (len(shape) in (0, rank) or isinstance(arg, tvm.ir.GenericConst))


def _shape(value: relax.Expr) -> tuple[Extent, ...]:
    shape = shape_of(value)
    assert shape is not None
    return shape


def _peeled(value: relax.Expr, order: Axes, values: dict[relax.Var, relax.Expr]) -> tuple[relax.Expr, Axes]:
    """Return the value before the transpositions that are visible in this block, and its order."""
    while isinstance(value, relax.DataflowVar) and operator_name(values.get(value)) == PERMUTE:
        order = composed(permutation(values[value], len(order)), order)
        value = values[value].args[0]
    return value, order


# -- in which order ------------------------------------------------------------------------------------------------
def _best(group: Group, values: dict[relax.Var, relax.Expr], readers: Readers, choices: Choices) -> Group:
    """Return the order of each operator's result with the fewest transposed bytes. Empty: the group stays."""
    rank = len(_shape(next(iter(group))))
    candidates: set[Axes] = set()
    for var, arg in _operands(group, values):
        base, order = _peeled(arg, _unchanged(rank), values)
        if base not in group:
            candidates.add(composed(group[var], inverse(order)))
    read = {var: _read_in(var, group, values, readers) for var in group}
    for var, orders in read.items():
        candidates |= {composed(group[var], order) for order in orders}

    bases = {_peeled(arg, _unchanged(rank), values)[0] for _, arg in _operands(group, values)}
    there = {
        (base, order)
        for base in bases
        if base not in group and len(_shape(base)) == rank
        for order in _read_in(base, group, values, readers)
    }

    def cost(order_of: Callable[[relax.Var], Axes]) -> float:
        transposed = {}
        for var, arg in _operands(group, values):
            base, order = _peeled(arg, order_of(var), values)
            if base in group:
                order = composed(inverse(order_of(base)), order)
            if isinstance(base, tvm.ir.GenericConst) or (base, order) in there:
                continue
            if order != _unchanged(rank):
                is_product = operator_name(values.get(base)) in PRODUCTS
                weight = choices.product_permutation_cost if is_product else 1.0
                transposed[base, order] = weight * _bytes(arg) * _share(arg, var, choices) * _elements(var)
        for var in group:
            for order in read[var]:
                if order != order_of(var):
                    transposed[var, composed(inverse(order_of(var)), order)] = _bytes(var) * _elements(var)
        return sum(transposed.values())

    best, least = dict[relax.Var, Axes](), cost(lambda _: _unchanged(rank))
    for axes in sorted(candidates):
        moved = {var: composed(inverse(own), axes) for var, own in group.items()}
        spent = cost(moved.__getitem__)
        if spent < least:
            best, least = moved, spent
    return best


def _operands(group: Group, values: dict[relax.Var, relax.Expr]) -> Iterator[tuple[relax.Var, relax.Expr]]:
    """Yield the operators, each with each operand that has axes."""
    for var in group:
        for arg in _args(values[var]):
            if _shape(arg):
                yield var, arg


def _read_in(
    var: relax.Expr, group: Group, values: dict[relax.Var, relax.Expr], readers: Readers
) -> set[Axes]:
    """Return the orders in which a result is read outside its group."""
    rank = len(_shape(var))
    orders = set()
    for binding in readers.get(var, [None]):
        value = getattr(binding, "value", None)
        if operator_name(value) == PERMUTE:
            axes = permutation(value, rank)
            orders |= {composed(axes, order) for order in _read_in(binding.var, group, values, readers)}
        elif binding is None or binding.var not in group:
            orders.add(_unchanged(rank))
    return orders


def _bytes(value: relax.Expr) -> int:
    return item_bytes(str(value.ty.dtype))


def _elements(value: relax.Expr) -> float:
    """Return the number of elements of a static shape. In a group of other shapes all have the same number."""
    size = product(_shape(value))
    return float(size) if isinstance(size, int) else 1.0


def _share(operand: relax.Expr, result: relax.Expr, choices: Choices) -> float:
    """Return the number of elements of an operand for each element of the result."""
    own, whole = product(_shape(operand)), product(_shape(result))
    if isinstance(own, int) and isinstance(whole, int):
        return own / max(whole, 1)
    return 1.0 if same_shape(_shape(operand), _shape(result)) else choices.broadcast_permutation_share


# -- rewriting -----------------------------------------------------------------------------------------------------
@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, orders: dict[relax.Var, Axes], values: dict[relax.Var, relax.Expr], readers: Readers):
        super().__init__()
        self.orders, self.values, self.readers = orders, values, readers
        self.permuted: dict[Any, relax.Var] = {}  # each operator's result, in the operator's order
        self.operands: dict[Any, relax.Var] = {}  # by base value and order

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        self.permuted.clear()  # not visible in other blocks
        self.operands.clear()
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        if var in self.orders:
            axes = self.orders[var]
            args = [self._ordered(arg, axes) if _shape(arg) else self.visit_expr(arg) for arg in _args(value)]
            if operator_name(value) == CONCAT:
                axis = axes.index(int(value.attrs.axis or 0) % len(axes))
                call = relax.op.concat(args, axis)
            else:
                call = relax.Call(value.op, args, value.attrs, value.ty_args)
            self.permuted[var] = self.builder_.emit(call, var.name)
            self._bind(var, var, _unchanged(len(axes)))
        elif self._is_permuted(binding):
            self._bind(var, value.args[0], tuple(permutation(value, len(_shape(var)))))
        else:
            super().visit_var_binding_(binding)

    def _bind(self, var: relax.Var, source: relax.Expr, order: Axes) -> None:
        """Map a variable to the transposition that it holds, if anything reads the variable as it is."""
        if not isinstance(var, relax.DataflowVar):
            self.set_var_remap(var, self.builder_.emit_output(self._ordered(source, order), var.name))
        elif any(map(self._reads_its_own_order, self.readers.get(var, ()))):
            ordered = self._ordered(source, order)
            self.set_var_remap(
                var, ordered if isinstance(ordered, relax.Var) else self.builder_.emit(ordered, var.name)
            )

    def _reads_its_own_order(self, reader: relax.Binding | None) -> bool:
        """Return whether a reader takes a value as it is: not in a group's order, and not through a transposition."""
        return reader is None or (reader.var not in self.orders and operator_name(reader.value) != PERMUTE)

    def _is_permuted(self, binding: relax.VarBinding) -> bool:
        """Return whether a binding is a transposition that may exist already, from operators that have moved."""
        value = binding.value
        if not self.builder_.current_block_is_dataflow() or operator_name(value) != PERMUTE:
            return False
        return isinstance(value.args[0], relax.Var) and bool(shape_of(value))

    def _ordered(self, value: relax.Expr, axes: Axes) -> relax.Expr:
        """Return the permuted value: one that exists in that order already, or a transposition of its base value."""
        base, order = _peeled(value, axes, self.values)
        if isinstance(base, tvm.ir.GenericConst):
            array = base.value.numpy()
            array = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
            return relax.const(array.transpose(order), base.ty.dtype)
        if base in self.permuted:
            source, order = self.permuted[base], composed(inverse(self.orders[base]), order)
        else:
            source = self.visit_expr(base)
        if order == _unchanged(len(order)):
            return source
        if (base, order) not in self.operands:
            self.operands[base, order] = self.builder_.emit(relax.op.permute_dims(source, list(order)))
        return self.operands[base, order]
