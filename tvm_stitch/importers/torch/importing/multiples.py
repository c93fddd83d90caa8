# SPDX-License-Identifier: Apache-2.0
"""Find numbers that a program's guards make extents of its inputs multiples of.

PyTorch notes a guard for each comparison of sizes that an export needs. A network that halves an image and joins the
doubled result with the image itself has the guard ``h == 2*(h//2)``. TVM does not use such conditions, and takes the
two extents for different ones. With ``2*k`` in place of ``h`` they are equal.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from .guards import UnknownGuard, comparisons, extents_of, guards_of, size_of

_LARGEST_PERIOD = 4096
_SAMPLES = (64, 65)
_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def multiples_of(program: Any) -> dict[str, int]:
    """Return the greatest known divisors of symbolic extents, by the names of PyTorch's symbols. All are above one.

    Args:
        program: a ``torch.export.ExportedProgram``. Its guards are the texts that PyTorch keeps with it.
    """
    symbols = _symbols(program)
    guards: dict[str, list[tuple[ast.Compare, int]]] = defaultdict(list)
    for text in guards_of(program):
        for compared in comparisons(text):
            try:
                names, period = _read(compared, symbols)
            except UnknownGuard:
                continue
            if len(names) == 1:
                guards[names.pop()].append((compared, period))
    found = {name: _divisor(each) for name, each in guards.items()}
    return {name: divisor for name, divisor in found.items() if divisor > 1}


def _symbols(program: Any) -> dict[tuple[str, int], str]:
    """Return the symbols that are extents of inputs, by the input's name and the axis."""
    extents = extents_of(program).items()
    return {at: str(extent) for at, extent in extents if isinstance(extent, sympy.Symbol)}


def _read(compared: ast.Compare, symbols: Mapping[tuple[str, int], str]) -> tuple[set[str], int]:
    """Return the symbols of an equation, and a period after which its quotients are whole again.

    Raises:
        UnknownGuard: if it is no equation, or not linear in multiples of the period.
    """
    names: set[str] = set()
    period = 1

    def visit(node: ast.expr) -> bool:
        """Return whether an expression has symbols."""
        nonlocal period
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return False
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            left, right = visit(node.left), visit(node.right)
            if isinstance(node.op, ast.Mult) and left and right:
                raise UnknownGuard
            if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
                divisor = node.right
                if not (
                    isinstance(divisor, ast.Constant) and type(divisor.value) is int and divisor.value > 0
                ):
                    raise UnknownGuard
                period *= divisor.value
            return left or right
        if (size := size_of(node)) not in symbols:
            raise UnknownGuard
        names.add(symbols[size])
        return True

    if not isinstance(compared.ops[0], ast.Eq):
        raise UnknownGuard

    for each in (compared.left, *compared.comparators):
        visit(each)
    if period > _LARGEST_PERIOD:
        raise UnknownGuard
    return names, period


def _divisor(guards: list[tuple[ast.Compare, int]]) -> int:
    """Return the greatest divisor of an extent for which all guards can hold.

    A remainder of the period is impossible if the sides of a guard differ by the same number at all such extents.
    """
    period = math.lcm(*(period for _, period in guards))
    if period > _LARGEST_PERIOD:
        return 1
    divisor, possible = period, False
    for remainder in range(period):
        first, second = (
            [_difference(guard, period * s + remainder) for guard, _ in guards] for s in _SAMPLES
        )
        if all(a == 0 or a != b for a, b in zip(first, second)):
            divisor, possible = math.gcd(divisor, remainder), True
    return divisor if possible else 1


def _difference(compared: ast.Compare, extent: int) -> int:
    """Return the difference of the sides of an equation, whose only symbol has the value ``extent``."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        return extent

    return value(compared.left) - value(compared.comparators[0])
