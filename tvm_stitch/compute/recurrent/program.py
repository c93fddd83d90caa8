# SPDX-License-Identifier: Apache-2.0
"""An element-wise function of one hidden unit: a recurrent cell that has no name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Node = tuple[str, tuple[str, ...]]
"""An operator of an ``Arithmetic``, and its operands by name."""


@dataclass(frozen=True)
class Program:
    """The next state of a unit, as operators on values of the unit.

    An operand's name is a kind and a number. ``product0`` is the unit's first product of the state, and ``input0`` its
    first input of the step. ``vector0`` is its first value that all steps read, ``node0`` the first operator's result.
    ``state`` and ``cell_state`` are the states before the step. Other names are numbers.

    Attributes:
        nodes: the operators. Each reads nodes before it.
        results: names of the next state, and of the next cell state if there is one.
        products, inputs, vectors: numbers of products, inputs and vectors.
    """

    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    products: int
    inputs: int
    vectors: int = 0

    @staticmethod
    def of_fields(fields: dict[str, Any]) -> Program:
        """Return the program whose fields were read from JSON, where tuples are lists."""
        nodes = tuple((operator, tuple(operands)) for operator, operands in fields["nodes"])
        return Program(**{**fields, "nodes": nodes, "results": tuple(fields["results"])})

    def values(
        self,
        arithmetic: Any,
        inputs: Sequence[Any],
        products: Sequence[Any],
        state: Any,
        cell_state: Any = None,
        vectors: Sequence[Any] = (),
    ) -> tuple[Any, Any]:
        """Return the next state, and the next cell state or None.

        Args:
            arithmetic: makes the values, an ``Arithmetic``.
            inputs, products, vectors: the unit's values.
            state, cell_state: the states before.
        """
        known = {"state": state, "cell_state": cell_state}
        for kind, values in (("input", inputs), ("product", products), ("vector", vectors)):
            known |= {f"{kind}{number}": value for number, value in enumerate(values)}

        def value(name: str) -> Any:
            return known[name] if name in known else arithmetic.constant(float(name))

        for number, (operator, operands) in enumerate(self.nodes):
            known[f"node{number}"] = arithmetic.apply(operator, *map(value, operands))
        after = [value(name) for name in self.results]
        return after[0], after[1] if len(after) > 1 else None
