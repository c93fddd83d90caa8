# SPDX-License-Identifier: Apache-2.0
"""Conditions on the shapes of a model's inputs, which each call checks."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

_KNOWN = (
    ast.Expression,
    ast.Compare,
    ast.BinOp,
    ast.UnaryOp,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.expr_context,
)


def check_conditions(conditions: Sequence[str], names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Check the shapes of a call's tensors.

    Args:
        conditions: texts such as ``y.shape[0] <= x.shape[0]``.
        names: the names of the inputs.
        tensors: their tensors.

    Raises:
        ValueError: if a condition does not hold, or is no comparison of extents.
    """
    if not conditions:
        return
    values = dict(zip(names, tensors, strict=True))
    for text in conditions:
        code, used = _code(text)
        try:
            holds = eval(code, {"__builtins__": {}}, values)
        except ZeroDivisionError:  # an extent is a divisor
            holds = False
        except (IndexError, NameError, TypeError) as error:
            raise ValueError(f"{text!r} is no condition on the shapes of these inputs") from error
        if not holds:
            shapes = ", ".join(
                f"{name} has the shape {[int(n) for n in values[name].shape]}" for name in used
            )
            raise ValueError(f"the model needs {text}, but {shapes}")


@lru_cache(maxsize=256)
def _code(text: str) -> tuple[CodeType, tuple[str, ...]]:
    """Return the code of a condition, and the inputs whose shapes it reads.

    Raises:
        ValueError: for any text that is more than a comparison of sums, products, quotients and remainders.
    """
    used: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        match node:
            case ast.Constant(int()):
                return
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int())):
                used[name] = None
                return
            case ast.Pow() | ast.LShift():
                pass
            case _ if isinstance(node, _KNOWN):
                for each in ast.iter_child_nodes(node):
                    visit(each)
                return
        raise ValueError(f"{text!r} is no condition on shapes")

    try:
        tree = ast.parse(text, mode="eval")
        visit(tree)
        return compile(tree, "<condition>", "eval"), tuple(used)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no condition on shapes") from error
