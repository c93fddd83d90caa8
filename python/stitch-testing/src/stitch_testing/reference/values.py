# SPDX-License-Identifier: Apache-2.0
"""Values of the reference evaluators of all front ends: exact values, and comparison of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import network as reference_nn
from . import operators as reference_ops
from .operators import Operation, Rule, is_float

RULES: Mapping[str, Rule] = {**reference_ops.RULES, **reference_nn.RULES}
"""The rule of every known operator, by its name in Relax without the prefix."""


class Exact:
    """Tensors as NumPy arrays: float64 for floats, integers and booleans in their own dtype."""

    def wrap(self, array: np.ndarray, dtype: str) -> Any:
        """Return the value of an input or constant of ``dtype``."""
        return np.asarray(array).astype(np.float64) if is_float(dtype) else np.asarray(array, np.dtype(dtype))

    def apply(self, rule: Rule, operation: Operation, args: list[Any]) -> Any:
        """Return the value of an operation."""
        return rule.apply(operation, *args)

    def shape(self, value: Any) -> tuple[int, ...]:
        """Return the shape of a tensor's value."""
        return value.shape


def flatten(value: Any) -> list[Any]:
    """Return the leaves of nested tuples, in order."""
    return [leaf for part in value for leaf in flatten(part)] if type(value) is tuple else [value]


def mismatches(
    outputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    tolerance: Mapping[str, tuple[float, float]],
) -> list[str]:
    """Describe errors of ``outputs``, one line for each. The list is empty if all are right.

    ``tolerance`` is (relative, absolute) by dtype of an output. A dtype without an entry must be equal. A NaN or
    infinity is right only at a position at which the reference has the same.
    """
    if len(outputs) != len(reference):
        return [f"{len(outputs)} outputs, the reference has {len(reference)}"]
    problems = []
    for place, (actual, expected) in enumerate(zip(outputs, reference, strict=True)):
        if actual.shape != expected.shape:
            problems.append(f"output {place}: shape {actual.shape}, the reference has {expected.shape}")
            continue
        relative, absolute = tolerance.get(str(actual.dtype), (0.0, 0.0))
        wide, wanted = np.asarray(actual).astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.abs(wide - wanted)
            allowed = absolute + relative * np.abs(wanted)
            right = (error <= allowed) | (wide == wanted) | (np.isnan(wide) & np.isnan(wanted))
        if not right.all():
            worst = np.unravel_index(
                np.argmin(np.where(right, np.inf, -np.nan_to_num(error, nan=np.inf))), right.shape
            )
            problems.append(
                f"output {place} ({actual.dtype}{list(actual.shape)}): {np.count_nonzero(~right)} wrong, "
                f"worst at {tuple(int(i) for i in worst)}: {wide[worst]!r} for {wanted[worst]!r}"
            )
    return problems
