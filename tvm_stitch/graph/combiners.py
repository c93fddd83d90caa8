# SPDX-License-Identifier: Apache-2.0
"""The combining operations of reductions: the reader, the planner and the emitters know exactly these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Combiner:
    """An associative and commutative operation.

    ``node`` is the class name of its TIR node. Partial results start from ``neutral``. None means that they may
    start from any value of the data, because taking in a value twice changes nothing.
    """

    node: str
    neutral: int | None


COMBINERS = {
    "sum": Combiner("Add", 0),
    "prod": Combiner("Mul", 1),
    "max": Combiner("Max", None),
    "min": Combiner("Min", None),
    "all": Combiner("And", 1),
    "any": Combiner("Or", 0),
}
"""Combiners by the name that ``Operator.combiner`` holds."""
