# SPDX-License-Identifier: Apache-2.0
"""Names of dimensions that are arithmetic of other ones, and dimensions that TVM cannot compare."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from .converters.node import Unsupported

_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_BROADCAST = frozenset(
    "Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or"
    " Pow PRelu Sub Sum Where Xor".split()
)
"""Operators whose inputs are extended to one shape."""


def arithmetic(name: str, symbols: Mapping[str, Any]) -> Any:
    """Return the extent of a name such as ``past_len + 1``, or None if it is no arithmetic of known dimensions.

    Args:
        name: the name of a dimension.
        symbols: the dimensions with plain names.
    """
    try:
        return _value(ast.parse(name.strip(), mode="eval").body, symbols)
    except (SyntaxError, ValueError, KeyError):
        return None


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, symbols), _value(node.right, symbols)
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(f"{ast.dump(node)} is no arithmetic")


def check_broadcast(op: str, inputs: Sequence[Any], result: Any) -> None:
    """Raise an error if TVM cannot tell the shape of a result because symbolic dimensions of its inputs may differ.

    Args:
        op: the operator.
        inputs: the values of its inputs.
        result: the value of its output.

    Raises:
        Unsupported: naming the shapes.
    """
    kind = getattr(result, "ty", None)
    if op not in _BROADCAST or not isinstance(kind, relax.TensorType) or kind.shape is not None:
        return
    types = [getattr(each, "ty", None) for each in inputs]
    shapes = [
        list(each.shape) for each in types if isinstance(each, relax.TensorType) and each.shape is not None
    ]
    if len(shapes) == len(inputs):
        texts = [f"[{', '.join(map(str, shape))}]" for shape in shapes]
        raise Unsupported(
            f"its inputs have the shapes {' and '.join(texts)}, and symbolic dimensions of different names may differ;"
            " give equal dimensions one name, or fix them (shape_dict, or --shape)"
        )
