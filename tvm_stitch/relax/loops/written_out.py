# SPDX-License-Identifier: Apache-2.0
"""Find the steps of a recurrent cell that a model writes one after the other.

``torch.export`` writes a Python loop over time steps so, and importers write short loops so. A *chain* is a sequence of
matmuls by one weight, each of a state that the matmul before leads to. A step is what lies between two of them. Equal
steps have equal operators, and differ in the states and the inputs that they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from ... import compat
from ...support.failures import Refusal
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers
from .arrays import array_of

MATMUL = "relax.matmul"


@dataclass(frozen=True, eq=False)
class Leaf:
    """A value that a step reads, one for each step: an input, a constant or a state."""

    values: tuple[relax.Expr, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A value that a step computes.

    Attributes:
        before: the value in one of the steps: a call or an element of a tuple.
        operands: the product (None), leaves, and numbers of values before it.
    """

    before: relax.Expr
    operands: tuple[Leaf | int | None, ...]


@dataclass(eq=False)
class Chain:
    """Equal steps.

    Attributes:
        products: the variables of the matmuls, of all steps.
        first: the state before the first step.
        states: the variables of the states behind all steps.
        values: what a step computes, in order. The last one is the state.
        cell_state: the leaf of a second state, and the number of the value that is the next one, or None.
        last_cell: the variable of the second state behind the last step, or None.
    """

    products: tuple[relax.Var, ...]
    first: relax.Expr
    states: tuple[relax.Var, ...]
    values: tuple[Value, ...]
    cell_state: tuple[Leaf, int] | None
    last_cell: relax.Var | None

    @property
    def state_leaf(self) -> tuple[relax.Expr, ...]:
        """The state before each step."""
        return (self.first, *self.states[:-1])


def chains_of(
    block: relax.DataflowBlock, values: Mapping[relax.Var, relax.Expr], readers: Readers, least: int
) -> list[Chain]:
    """Return the chains of a dataflow block that have ``least`` steps or more and are read only by their states.

    Args:
        block: the block.
        values: the values of the function's variables.
        readers: the readers of the function's variables.
        least: the least number of steps.
    """
    found = []
    for products in _products(block, values):
        if len(products) >= least:
            try:
                found.append(_Reader(block, values, readers, products).chain(least))
            except Refusal:
                continue
    return found


def weight_of(values: Mapping[relax.Var, relax.Expr], product: relax.Var) -> tuple[relax.Expr, bool]:
    """Return the weight of a matmul, and whether the matmul reads it transposed."""
    weight = values[product].args[1]
    made = values.get(weight) if isinstance(weight, relax.Var) else None
    if (
        isinstance(made, relax.Call)
        and operator_name(made) == "relax.permute_dims"
        and made.args[0].ty.ndim == 2
    ):
        return made.args[0], True
    return weight, False


def _products(block: relax.DataflowBlock, values: Mapping[relax.Var, relax.Expr]) -> list[list[relax.Var]]:
    """Return the matmuls of a block by their weights, in sequences in which each one depends on the one before."""
    groups: list[tuple[relax.Expr, bool, list[list[relax.Var]]]] = []
    last: dict[relax.Var, set[relax.Var]] = {}  # of each variable the matmuls of weights used before
    for binding in block.bindings:
        value, var = binding.value, binding.var
        behind: set[relax.Var] = set()
        for operand in _operands(value):
            behind |= last.get(operand, set()) if isinstance(operand, relax.Var) else set()
        if operator_name(value) == MATMUL and value.args[1].ty.ndim == 2 and value.args[0].ty.ndim == 2:
            weight, transposed = weight_of(values, var)
            group = next((g for g in groups if g[0].same_as(weight) and g[1] == transposed), None)
            if group is None:
                group = (weight, transposed, [])
                groups.append(group)
            sequence = next((s for s in group[2] if s[-1] in behind), None)
            if sequence is None:
                group[2].append([var])
            else:
                behind.discard(sequence[-1])
                sequence.append(var)
            behind = behind | {var}
        last[var] = behind
    return [sequence for group in groups for sequence in group[2]]


def _operands(value: relax.Expr) -> list[relax.Expr]:
    """Return what a value reads, with the fields of tuples."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    if isinstance(value, relax.Call):
        return [e for arg in value.args for e in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    return [value] if isinstance(value, relax.Var) else []


@dataclass(eq=False)
class _Step:
    """The values of one step in the order of a walk, their operands, and all leaves in the order of their reads."""

    vars: list[relax.Var] = field(default_factory=list)
    operands: list[list[Any]] = field(default_factory=list)
    leaves: list[relax.Expr] = field(default_factory=list)


class _Reader:
    """Reads the steps of a sequence of matmuls."""

    def __init__(
        self,
        block: relax.DataflowBlock,
        values: Mapping[relax.Var, relax.Expr],
        readers: Readers,
        products: Sequence[relax.Var],
    ):
        self.values, self.readers, self.products = values, readers, list(products)
        states = {values[var].args[0]: at for at, var in enumerate(products)}
        self.level: dict[relax.Var, int] = {}
        for binding in block.bindings:
            known = [states.get(each, self._level(each)) for each in _operands(binding.value)]
            self.level[binding.var] = max(known, default=-1)

    def _level(self, value: relax.Expr) -> int:
        """Return the number of the last step whose state before a value depends on, or -1."""
        return self.level.get(value, -1) if isinstance(value, relax.Var) else -1

    def _state(self, step: int) -> relax.Expr:
        """Return the state before a step."""
        return self.values[self.products[step]].args[0]

    def chain(self, least: int) -> Chain:
        """Return the chain.

        Raises:
            Refusal: if steps differ, or others read what is inside of a step.
        """
        count = len(self.products)
        steps = [self._walked(at, self._state(at + 1)) for at in range(count - 1)]
        equal = next((at for at in range(2, count - 1) if not self._equal(steps[1], steps[at])), count - 1)
        if equal < count - 1 or not self._equal(steps[1], steps[0]):
            raise Refusal("its steps differ")
        last = self._last(steps[0], steps[1], steps[-1])
        steps += [last] if last is not None else []
        if len(steps) < least:
            raise Refusal("it has few steps")
        leaves = [Leaf(tuple(step.leaves[at] for step in steps)) for at in range(len(steps[1].leaves))]
        unique = self._unique(leaves)
        numbers = iter(unique)
        made = []
        for var, operands in zip(steps[1].vars, steps[1].operands, strict=True):
            of = tuple(next(numbers) if each == "leaf" else each for each in operands)
            made.append(Value(self.values[var], of))
        states = tuple(step.vars[-1] for step in steps)
        cell_state = self._cell_state(steps, unique)
        last_cell = None if cell_state is None else steps[-1].vars[cell_state[1]]
        products = tuple(self.products[: len(steps)])
        found = Chain(products, self._state(0), states, tuple(made), cell_state, last_cell)
        self._check_readers(found, {var for step in steps for var in step.vars})
        return found

    def _walked(self, at: int, state: relax.Expr) -> _Step:
        """Return the values of a step that lead to the next state."""
        step, number = _Step(), dict[relax.Var, int]()

        def visit(var: relax.Var) -> None:
            operands: list[Any] = []
            for each in _operands(self.values[var]):
                if each.same_as(self.products[at]):
                    operands.append(None)
                elif not each.same_as(self._state(at)) and self._level(each) == at:
                    if each not in number:
                        visit(each)
                    operands.append(number[each])
                else:
                    if 0 <= self._level(each) < at - 1:
                        raise Refusal("a step reads a step before the last one")
                    operands.append("leaf")
                    step.leaves.append(each)
            number[var] = len(step.vars)
            step.vars.append(var)
            step.operands.append(operands)

        if self._level(state) != at or state.same_as(self.products[at]):
            raise Refusal("a state does not depend on the matmul before")
        visit(state)
        # Leaves are read in the order of the walk, which visits operands first.
        step.leaves = [
            each for var, operands in zip(step.vars, step.operands) for each in self._leaves(var, operands)
        ]
        return step

    def _leaves(self, var: relax.Var, operands: Sequence[Any]) -> list[relax.Expr]:
        return [
            each for each, kind in zip(_operands(self.values[var]), operands, strict=True) if kind == "leaf"
        ]

    def _equal(self, a: _Step, b: _Step) -> bool:
        """Return whether two steps have equal operators, with values of equal types and equal constants."""
        if a.operands != b.operands:
            return False
        if not all(self._alike(x, y) for x, y in zip(a.vars, b.vars)):
            return False
        return all(self._same_kind(x, y) for x, y in zip(a.leaves, b.leaves))

    def _alike(self, a: relax.Var, b: relax.Var) -> bool:
        """Return whether two variables are results of the same operator with the same attributes and type."""
        x, y = self.values[a], self.values[b]
        if not compat.structural_equal(a.ty, b.ty):
            return False
        if isinstance(x, relax.TupleGetItem) or isinstance(y, relax.TupleGetItem):
            items = isinstance(x, relax.TupleGetItem) and isinstance(y, relax.TupleGetItem)
            return items and x.index == y.index
        calls = isinstance(x, relax.Call) and isinstance(y, relax.Call)
        return (
            calls and operator_name(x) == operator_name(y) != "" and compat.structural_equal(x.attrs, y.attrs)
        )

    def _same_kind(self, a: relax.Expr, b: relax.Expr) -> bool:
        if isinstance(a, relax.Var) or isinstance(b, relax.Var):
            return bool(compat.structural_equal(a.ty, b.ty))
        return same_constant(a, b)

    def _unique(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """Return for each leaf the first one with the same values in all steps but the first."""
        found: list[Leaf] = []
        for leaf in leaves:
            same = (
                each
                for each in found
                if all(same_constant(a, b) for a, b in zip(each.values[1:], leaf.values[1:], strict=True))
                and (same_constant(each.values[0], leaf.values[0]))
            )
            found.append(next(same, leaf))
        return found

    def _last(self, first: _Step, like: _Step, before: _Step) -> _Step | None:
        """Return the last step, whose state no matmul reads, or None. Its values are found forwards.

        Args:
            first: the first step.
            like: the second one.
            before: the last but one.
        """
        at, step = len(self.products) - 1, _Step()
        leaves = iter(like.leaves)
        for var, operands in zip(like.vars, like.operands, strict=True):
            own = [next(leaves) for kind in operands if kind == "leaf"]
            fixed = [self._carried(leaf, first, before) for leaf in own]
            inner = [
                self.products[at] if kind is None else step.vars[kind] for kind in operands if kind != "leaf"
            ]
            source = next((each for each in (*inner, *fixed) if each is not None), None)
            made = next(
                (
                    binding.var
                    for binding in self.readers.get(source, [])
                    if binding is not None
                    and self._alike(binding.var, var)
                    and self._fits(binding.value, operands, step, at, fixed, own)
                ),
                None,
            )
            if made is None:
                return None
            step.vars.append(made)
            step.operands.append(operands)
            step.leaves += self._leaves(made, operands)
        return step

    @staticmethod
    def _carried(leaf: relax.Expr, first: _Step, before: _Step) -> relax.Expr | None:
        """Return the value of the last but one step that the last one reads in the place of a state, or None.

        ``leaf`` is what the second step reads. If it is a value of the first one, it is a state.
        """
        where = next((i for i, var in enumerate(first.vars) if var.same_as(leaf)), None)
        return None if where is None else before.vars[where]

    def _fits(
        self,
        value: relax.Expr,
        operands: Sequence[Any],
        step: _Step,
        at: int,
        fixed: Sequence[relax.Expr | None],
        like: Sequence[relax.Expr],
    ) -> bool:
        """Return whether a value of the last step reads what the values of other steps read."""
        given = _operands(value)
        if len(given) != len(operands):
            return False
        states = iter(zip(fixed, like, strict=True))
        for each, kind in zip(given, operands, strict=True):
            if kind == "leaf":
                state, other = next(states)
                if state is not None:
                    if not each.same_as(state):
                        return False
                elif self._level(each) >= 0 or not self._same_kind(each, other):
                    return False
            elif not each.same_as(self.products[at] if kind is None else step.vars[kind]):
                return False
        return True

    def _cell_state(self, steps: Sequence[_Step], leaves: Sequence[Leaf]) -> tuple[Leaf, int] | None:
        """Return the leaf of a second state and the number of the value behind it, if there is one.

        Raises:
            Refusal: if there are several, or a step reads another value of the step before.
        """
        found: dict[int, tuple[Leaf, int]] = {}
        for leaf in leaves:
            if all(self._level(each) < 0 for each in leaf.values[1:]):
                continue
            where = {
                next((i for i, var in enumerate(before.vars) if var.same_as(each)), -1)
                for before, each in zip(steps, leaf.values[1:])
            }
            if len(where) > 1 or where == {-1}:
                raise Refusal("a step reads different values of the step before")
            (number,) = where
            if number != len(steps[0].vars) - 1:
                found[number] = (leaf, number)
        if len(found) > 1:
            raise Refusal("it has more than two states")
        return next(iter(found.values()), None)

    def _check_readers(self, chain: Chain, computed: set[relax.Var]) -> None:
        """Raise a Refusal if others than the steps read what is inside of them."""
        inside = {*computed, *chain.products}
        for var in inside - {*chain.states, chain.last_cell}:
            for reader in self.readers.get(var, []):
                if reader is None or reader.var not in inside:
                    raise Refusal("others read what is inside of a step")


def same_value(values: Mapping[relax.Var, relax.Expr], a: relax.Expr, b: relax.Expr) -> bool:
    """Return whether two expressions are one variable, equal constants, or equal views of such."""
    if same_constant(a, b):
        return True
    x, y = (values.get(each) if isinstance(each, relax.Var) else None for each in (a, b))
    views = (
        each
        for each in (x, y)
        if isinstance(each, relax.Call) and operator_name(each) == "relax.permute_dims"
    )
    if len(list(views)) < 2 or x is None or y is None:
        return False
    return compat.structural_equal(x.attrs, y.attrs) and same_constant(x.args[0], y.args[0])


def same_constant(a: relax.Expr, b: relax.Expr) -> bool:
    """Return whether two expressions are one variable, or equal constants."""
    if a.same_as(b):
        return True
    x, y = (array_of(each, lambda _: None) if not isinstance(each, relax.Var) else None for each in (a, b))
    return (
        x is not None and y is not None and x.shape == y.shape and x.dtype == y.dtype and bool((x == y).all())
    )
