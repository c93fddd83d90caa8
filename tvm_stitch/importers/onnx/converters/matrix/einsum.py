# SPDX-License-Identifier: Apache-2.0
"""Einsum of any equation, as transposes, sums and one batched matmul for each further operand."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..node import ANY, Conversion, Node, Unsupported, dtype_of, shape_of


@dataclass(frozen=True)
class Operand:
    """A tensor with a letter for each dimension."""

    tensor: relax.Expr
    letters: str

    def sizes(self) -> dict[str, Any]:
        """Return the size of each letter."""
        return dict(zip(self.letters, shape_of(self.tensor)))


def _einsum(node: Node) -> relax.Expr:
    terms, result = _letters(node)
    operands = [_with_diagonals(node, Operand(node.tensor(i), t)) for i, t in enumerate(terms)]
    if dtype_of(operands[0].tensor) not in ("float32", "float64", "float16", "bfloat16", "int32", "int64"):
        raise Unsupported(
            f"it multiplies {dtype_of(operands[0].tensor)}; floats and 32-bit integers are taken"
        )
    left = operands[0]
    for number, right in enumerate(operands[1:], 1):
        later = set(result).union(*[o.letters for o in operands[number + 1 :]])
        left = _product(node, left, right, later)
    left = _summed(node, left, set(result))
    order = [left.letters.index(letter) for letter in result]
    if order == sorted(order):
        return (
            left.tensor
            if len(operands) > 1 or left.tensor is not operands[0].tensor
            else relax.op.reshape(left.tensor, relax.ShapeExpr(shape_of(left.tensor)))
        )
    return relax.op.permute_dims(left.tensor, order)


def _letters(node: Node) -> tuple[list[str], str]:
    """Return a letter for each dimension of each operand and of the result. An ellipsis gets letters of its own."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(node.inputs):
        raise Unsupported(f"the equation {equation!r} has {len(terms)} terms for {len(node.inputs)} inputs")
    used = set(equation) & set(string.ascii_letters)
    free = [letter for letter in string.ascii_letters if letter not in used]
    ranks = [len(node.shape(i)) for i in range(len(terms))]
    dots = [r - len(t.replace("...", "")) if "..." in t else 0 for r, t in zip(ranks, terms)]
    most = max(dots)
    if most > len(free) or any(d < 0 for d in dots):
        raise Unsupported(f"the equation {equation!r} does not fit inputs of {ranks} dimensions")
    rest = "".join(free[:most])
    full = [t.replace("...", rest[most - d :]) for t, d in zip(terms, dots)]
    if any(len(t) != r for t, r in zip(full, ranks)):
        raise Unsupported(f"the equation {equation!r} does not fit inputs of {ranks} dimensions")
    if not arrow:
        joined = "".join(terms).replace("...", "")
        right = "..." + "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    result = right.replace("...", rest)
    if not set(result) <= set("".join(full)) or len(set(result)) < len(result):
        raise Unsupported(
            f"the result of the equation {equation!r} names a dimension twice, or one of no input"
        )
    return full, result


def _with_diagonals(node: Node, operand: Operand) -> Operand:
    """Return an operand without repeated letters: each repeated one is a diagonal."""
    tensor, letters = operand.tensor, operand.letters
    for letter in sorted(set(letters)):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            size = shape_of(tensor)[first]
            if not isinstance(size, int):
                raise Unsupported(f"it takes the diagonal of the symbolic dimension {size}; fix it")
            rank = len(letters)
            eye = np.eye(size, dtype="bool").reshape(
                [size if i in (first, second) else 1 for i in range(rank)]
            )
            zero = relax.const(0, dtype_of(tensor))
            only = node.emit(relax.op.where(relax.const(eye, "bool"), tensor, zero))
            tensor = node.emit(relax.op.sum(only, [second]))
            letters = letters[:second] + letters[second + 1 :]
    return Operand(tensor, letters)


def _summed(node: Node, operand: Operand, kept: set[str]) -> Operand:
    """Return an operand summed over the letters that are not kept."""
    gone = [i for i, letter in enumerate(operand.letters) if letter not in kept]
    if not gone:
        return operand
    letters = "".join(letter for letter in operand.letters if letter in kept)
    return Operand(node.emit(relax.op.sum(operand.tensor, gone)), letters)


def _product(node: Node, left: Operand, right: Operand, later: set[str]) -> Operand:
    """Return the product of two operands, summed over the letters that nothing needs later."""
    left = _summed(node, left, later | set(right.letters))
    right = _summed(node, right, later | set(left.letters))
    sizes = {
        letter: (right.sizes().get(letter) if left.sizes().get(letter) in (1, None) else left.sizes()[letter])
        for letter in dict.fromkeys(left.letters + right.letters)
    }
    common = [letter for letter in left.letters if letter in right.letters]
    # An extent of 1 that meets a greater one is broadcast, which no matmul does.
    stretched = [
        c
        for c in common
        if (left.sizes()[c] == 1 or right.sizes()[c] == 1) and not (left.sizes()[c] == right.sizes()[c] == 1)
    ]
    if stretched:
        left, right = (_broadcast(node, o, {c: sizes[c] for c in stretched}) for o in (left, right))
    batch = [c for c in common if c in later]
    inner = [c for c in common if c not in later]
    rows = [c for c in left.letters if c not in common]
    columns = [c for c in right.letters if c not in common]
    letters = "".join([*batch, *rows, *columns])
    if not inner:  # an outer product needs no sums
        dims_left = [sizes[c] if c in batch or c in rows else 1 for c in letters]
        dims_right = [sizes[c] if c in batch or c in columns else 1 for c in letters]
        a = _arranged(node, left, [*batch, *rows], dims_left)
        b = _arranged(node, right, [*batch, *columns], dims_right)
        return Operand(node.emit(relax.op.multiply(a, b)), letters)

    def extent(part: list[str]) -> Any:
        result: Any = 1
        for c in part:
            result = result * sizes[c]
        return result

    heads = [sizes[c] for c in batch]
    a = _arranged(node, left, [*batch, *rows, *inner], [*heads, extent(rows), extent(inner)])
    b = _arranged(node, right, [*batch, *inner, *columns], [*heads, extent(inner), extent(columns)])
    product = node.emit(relax.op.matmul(a, b))
    dims = [*heads, *(sizes[c] for c in rows), *(sizes[c] for c in columns)]
    return Operand(node.emit(relax.op.reshape(product, relax.ShapeExpr(dims))), letters)


def _broadcast(node: Node, operand: Operand, sizes: dict[str, Any]) -> Operand:
    dims = [sizes.get(c, d) for c, d in zip(operand.letters, shape_of(operand.tensor))]
    return Operand(node.emit(relax.op.broadcast_to(operand.tensor, relax.ShapeExpr(dims))), operand.letters)


def _arranged(node: Node, operand: Operand, order: list[str], dims: list[Any]) -> relax.Expr:
    """Return a tensor with its letters in an order, in a shape."""
    tensor = operand.tensor
    axes = [operand.letters.index(letter) for letter in order]
    if axes != sorted(axes):
        tensor = node.emit(relax.op.permute_dims(tensor, axes))
    if shape_of(tensor) == dims:
        return tensor
    return node.emit(relax.op.reshape(tensor, relax.ShapeExpr(dims)))


CONVERSIONS = {("", "Einsum"): Conversion(_einsum, {"equation": ANY})}
