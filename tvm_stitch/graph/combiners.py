# SPDX-License-Identifier: Apache-2.0
"""The ways in which reductions combine values: every one that is read, planned and emitted stands here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Combiner:
    """An associative and commutative operation.

    ``node`` is the kind of TIR's node for it. Partial results start from ``neutral``; None where they may start from
    anything, since to take in a value twice changes nothing.
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
"""By the name that an operator has in ``combiner``."""
