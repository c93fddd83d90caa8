# SPDX-License-Identifier: Apache-2.0
"""Read the conditions on extents under which an exported program is right.

PyTorch notes a guard for each comparison of sizes that an export needs, and merges symbols that are always equal. So
guards that are left, such as ``y.shape[0] <= x.shape[0]``, change no plan. But kernels read foreign memory if a call
breaks one, so calls check them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch

KEPT = "_tvm_stitch_guards"
"""Attribute of programs that have the texts of their guards, but not the code that PyTorch makes of them."""

Extents = Mapping[tuple[str, int], sympy.Expr]

_LONGEST = 2000
_COMPARED = (ast.Eq, ast.LtE, ast.Lt, ast.GtE, ast.Gt)
_STEPS = (ast.FloorDiv, ast.Mod)


class UnknownGuard(Exception):
    """A guard is no comparison of sums and products of extents."""


def guards_of(program: Any) -> tuple[str, ...]:
    """Return the texts of a program's guards, which nothing may run."""
    texts = getattr(program, KEPT, None) or getattr(program, "_guards_code", None) or ()
    return tuple(text for text in texts if isinstance(text, str) and len(text) <= _LONGEST)


def comparisons(text: str) -> Iterator[ast.Compare]:
    """Yield the comparisons of two values that a guard is, or that it joins by ``and``."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return
    for each in body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]:
        if isinstance(each, ast.Compare) and len(each.ops) == 1:
            yield each


def conditions_of(program: Any) -> tuple[str, ...]:
    """Return conditions on the shapes of inputs, such as ``y.shape[0] <= x.shape[0]``.

    Equations that follow from the extents themselves are left out, and equations of one extent, such as those of its
    divisors.

    Args:
        program: a ``torch.export.ExportedProgram``.
    """
    extents = extents_of(program)
    found: dict[str, None] = {}
    for text in guards_of(program):
        for compared in comparisons(text):
            try:
                if condition := _condition(compared, extents):
                    found[condition] = None
            except UnknownGuard:
                continue
    return tuple(found)


def size_of(node: ast.expr) -> tuple[str, int]:
    """Return the input and the axis of ``L['x'].size()[2]``. An input in a list or mapping has all keys in its name.

    Raises:
        UnknownGuard: for any other expression.
    """
    match node:
        case ast.Subscript(ast.Call(ast.Attribute(value, "size"), [], []), ast.Constant(int() as axis)):
            keys: list[str] = []
            while isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
                keys.append(str(value.slice.value))
                value = value.value
            if isinstance(value, ast.Name):
                return "_".join(reversed(keys)), axis
    raise UnknownGuard


def extents_of(program: Any) -> dict[tuple[str, int], sympy.Expr]:
    """Return the symbolic extents of inputs, by the input's name and the axis."""
    found = {}
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt):
                found[str(node.name), axis] = extent.node.expr
    return found


def _condition(compared: ast.Compare, extents: Extents) -> str:
    """Return a comparison as a condition on shapes, or nothing if calls need not check it.

    Raises:
        UnknownGuard: if it has other values than extents and numbers, or compares them otherwise.
    """
    if not isinstance(compared.ops[0], _COMPARED):
        raise UnknownGuard
    used: set[tuple[str, int]] = set()
    steps: list[ast.operator] = []

    def shaped(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return ast.UnaryOp(node.op, shaped(node.operand))
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, *_STEPS)):
            steps.extend([node.op] if isinstance(node.op, _STEPS) else [])
            return ast.BinOp(shaped(node.left), node.op, shaped(node.right))
        name, axis = size_of(node)
        if (name, axis) not in extents or not name.isidentifier():
            raise UnknownGuard
        used.add((name, axis))
        return ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(axis))

    left, right = shaped(compared.left), shaped(compared.comparators[0])
    symbols = {symbol for each in used for symbol in extents[each].free_symbols}
    if not used or len(symbols) == 1 and (steps or isinstance(compared.ops[0], ast.Eq)):
        return ""
    return ast.unparse(ast.Compare(left, compared.ops, [right]))
