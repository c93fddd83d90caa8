# SPDX-License-Identifier: Apache-2.0
"""Turn a step that a model writes out into the program of a recurrent cell: operators on values of one hidden unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from ...compat import int_value
from ...compute.recurrent.program import Node, Program
from ...graph.extent import same
from ...support.failures import Refusal
from ..rewriting.operators import operator_name
from .arrays import array_of
from .written_out import Chain, Leaf

Names = list[str]
"""The operands of a program that stand for a value: one for each group of as many columns as there are units."""

_OPERATORS = {
    f"relax.{name}": name
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "abs", "exp", "log", "tanh", "sigmoid",
    )
}  # fmt: skip


class StepProgram:
    """The program of a chain, and the values that its inputs and vectors stand for.

    Attributes:
        hidden: the number of units.
        program: the program.
        inputs: the leaves of the inputs, each with its width: a multiple of the units, or 1 for all units.
        vectors: the expressions of the vectors, each with its width.

    Raises:
        Refusal: if the step is no element-wise function of units.
    """

    def __init__(self, chain: Chain, values: Mapping[relax.Var, relax.Expr]):
        self.chain, self.values = chain, values
        self.hidden = _width(chain.states[0])
        whole = _width(chain.products[0])
        if self.hidden < 2 or whole % self.hidden or _rank(chain.states[0]) != 2:
            raise Refusal("a product has no columns for each unit")
        self.inputs: list[tuple[Leaf, int]] = []
        self.vectors: list[tuple[relax.Expr, int]] = []
        self._nodes: list[Node] = []
        self._of_leaf: dict[int, Names] = {}
        self._counts = {"input": 0, "vector": 0}
        self._found: list[Any] = []
        self._product = [f"product{gate}" for gate in range(whole // self.hidden)]
        for value in chain.values:
            self._found.append(self._computed(value.before, [self._operand(each) for each in value.operands]))
        results = [self._one(self._found[-1])]
        if chain.cell_state is not None:
            results.append(self._one(self._found[chain.cell_state[1]]))
        counts = self._counts
        self.program = Program(
            tuple(self._nodes), tuple(results), len(self._product), counts["input"], counts["vector"]
        )

    @staticmethod
    def _one(names: Any) -> str:
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise Refusal("a state has other units")
        return names[0]

    def _operand(self, operand: Leaf | int | None) -> Any:
        if operand is None:
            return self._product
        if isinstance(operand, int):
            return self._found[operand]
        if id(operand) not in self._of_leaf:
            self._of_leaf[id(operand)] = self._named(operand)
        return self._of_leaf[id(operand)]

    def _named(self, leaf: Leaf) -> Names:
        """Return the names of a leaf's values."""
        own = leaf.values[-1]
        if own.same_as(self.chain.state_leaf[-1]):
            return ["state"]
        if self.chain.cell_state is not None and leaf is self.chain.cell_state[0]:
            return ["cell_state"]
        rank, width = _rank(own), _width(own)
        if not isinstance(own, relax.Var):
            array = array_of(own, lambda _: None)
            if array is None:
                raise Refusal("a step reads an unknown constant")
            if array.size == 1:
                return [repr(float(array.reshape(-1)[0]))]
        unchanging = all(each.same_as(own) for each in leaf.values) or not isinstance(own, relax.Var)
        if unchanging and (rank == 1 or (rank == 2 and _extent(own, 0) == 1)) and not width % self.hidden:
            self.vectors.append((own, width))
            return self._next("vector", width // self.hidden)
        rows = rank == 2 and same(own.ty.shape.values[0], self.chain.states[0].ty.shape.values[0])
        if rows and (width == 1 or not width % self.hidden):
            self.inputs.append((leaf, width))
            return self._next("input", max(1, width // self.hidden))
        raise Refusal("a step reads a value that has other units")

    def _next(self, kind: str, count: int) -> Names:
        first = self._counts[kind]
        self._counts[kind] += count
        return [f"{kind}{number}" for number in range(first, first + count)]

    def _computed(self, value: relax.Expr, operands: list[Any]) -> Any:
        """Return the names of what a value of the step is, or such lists for a tuple."""
        if isinstance(value, relax.TupleGetItem):
            return operands[0][value.index]
        name = operator_name(value)
        if name == "relax.split":
            return self._split(value, operands[0])
        if name == "relax.negative":
            return [self._node("multiply", "-1.0", each) for each in operands[0]]
        if name == "relax.nn.relu":
            return [self._node("maximum", "0.0", each) for each in operands[0]]
        if name == "relax.nn.silu":
            return [self._node("multiply", each, self._node("sigmoid", each)) for each in operands[0]]
        if name not in _OPERATORS:
            raise Refusal(f"{name} is not computed unit by unit")
        count = max(map(len, operands))
        if any(len(each) not in (1, count) for each in operands) or count * self.hidden != _width(value):
            raise Refusal("operands have different units")
        if any(len(each) == 1 and count > 1 and not self._is_common(each[0]) for each in operands):
            raise Refusal("operands have different units")
        spread = [each * (count // len(each)) for each in operands]
        return [self._node(_OPERATORS[name], *each) for each in zip(*spread, strict=True)]

    def _is_common(self, name: str) -> bool:
        """Return whether a value is one number, or one for all units."""
        if name.startswith("input"):
            first = 0
            for _, width in self.inputs:
                if name == f"input{first}":
                    return width == 1
                first += max(1, width // self.hidden)
            return False
        return name[0] in "-.0123456789"

    def _split(self, value: relax.Call, names: Names) -> list[Names]:
        axis, at = int(value.attrs.axis), value.attrs.indices_or_sections
        if axis not in (-1, 1):
            raise Refusal("rows of a batch are split")
        whole = len(names) * self.hidden
        count = int_value(at) if hasattr(at, "value") else None
        ends = [whole // count * i for i in range(1, count)] if count else [int(each) for each in at]
        starts, ends = [0, *ends], [*ends, whole]
        if any(each % self.hidden for each in starts):
            raise Refusal("columns are split inside of a gate")
        return [names[a // self.hidden : b // self.hidden] for a, b in zip(starts, ends, strict=True)]

    def _node(self, operator: str, *operands: str) -> str:
        self._nodes.append((operator, operands))
        return f"node{len(self._nodes) - 1}"


def _rank(value: relax.Expr) -> int:
    return int(value.ty.ndim)


def _extent(value: relax.Expr, axis: int) -> int | None:
    shape = value.ty.shape.values if value.ty.shape is not None else ()
    return int_value(shape[axis]) if len(shape) > axis else None


def _width(value: relax.Expr) -> int:
    """Return the static last extent.

    Raises:
        Refusal: if there is none.
    """
    rank = _rank(value)
    found = _extent(value, rank - 1) if rank > 0 else 1
    if found is None:
        raise Refusal("a value has a symbolic number of columns")
    return found
