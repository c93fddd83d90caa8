# SPDX-License-Identifier: Apache-2.0
"""Tensors that a kernel computes from symbolic numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te

from ... import compat
from ...graph.extent import as_expr


def spelled(number: Any) -> Any:
    """Return a number as TVM's passes spell it: PyTorch has ``1 + (-1 + n) // 2`` for their ``(n - 1) // 2 + 1``."""
    return compat.Analyzer().simplify(as_expr(number))


def computed(
    builder: relax.BlockBuilder,
    name: str,
    function: Callable[..., te.Tensor],
    tensors: Sequence[relax.Expr],
    numbers: Sequence[Any],
) -> relax.Var:
    """Return the result of a function of tensors and symbolic numbers.

    The kernel takes the symbols of the numbers, not the numbers. TVM fuses kernels only if they spell extents alike.

    Args:
        builder: gets the call.
        name: of the kernel.
        function: takes tensors and int64 expressions, and returns a tensor.
        tensors: the tensors.
        numbers: numbers, or expressions of symbols that are known at this point.
    """
    values = [spelled(number) for number in numbers]
    symbols = sorted({var for value in values for var in compat.free_vars(value)}, key=str)

    def called(*given: Any) -> te.Tensor:
        own = dict(zip(symbols, given[len(tensors) :]))
        return function(*given[: len(tensors)], *(compat.substitute(value, own) for value in values))

    return builder.emit_te(called, *tensors, *symbols, primfunc_name_hint=name)
