# SPDX-License-Identifier: Apache-2.0
"""Products of complex matrices by real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.relax import op as R

from ..core import Converter, argument
from ..operators.values import HALVES, cast, type_name
from .arithmetic import Pair, product
from .parts import Parts, operand, part_type


def product_converters() -> dict[str, Converter]:
    """Return the converters of products with complex operands, by the names of PyTorch's operators."""
    return {
        **dict.fromkeys(("bmm.default", "matmul.default", "mm.default", "mv.default"), _product),
        **dict.fromkeys(("addmm.default", "addmv.default", "baddbmm.default"), _added_product),
    }


def _matmul(left: Pair, right: Pair, emit: Callable[[Any], Any]) -> Pair:
    """Return the product of matrices. Two complex ones become two products with twice as many terms."""

    def real_product(a: Any, b: Any) -> Any:
        return emit(R.matmul(a, b, out_dtype="float32" if type_name(a) in HALVES else type_name(a)))

    (a, b), (c, d) = left, right
    if b is None or d is None:
        return real_product(a, c), real_product(a, d) if b is None else real_product(b, c)
    axis = max(len(c.ty.shape) - 2, 0)
    both = emit(R.concat([a, b], len(a.ty.shape) - 1))
    first = real_product(both, emit(R.concat([c, emit(R.negative(d))], axis)))
    return first, real_product(both, emit(R.concat([d, c], axis)))


def _product(node: Any, importer: Any) -> Any:
    """(left, right)."""
    dtype, emit = part_type(node), importer.block_builder.emit
    left, right = (operand(arg, dtype, importer) for arg in node.args[:2])
    return Parts(*(cast(x, dtype, importer) for x in _matmul(left, right, emit)))


def _added_product(node: Any, importer: Any) -> Any:
    """(addend, left, right, beta=1, alpha=1): with beta 0 the addend does not count."""
    dtype, emit = part_type(node), importer.block_builder.emit
    addend, left, right = (operand(arg, dtype, importer) for arg in node.args[:3])
    beta, alpha = (argument(node, at, name, 1) for at, name in ((3, "beta"), (4, "alpha")))
    total = _matmul(left, right, emit)
    if alpha != 1:
        total = product(operand(alpha, dtype, importer), total, emit)
    if beta != 0:
        addend = addend if beta == 1 else product(operand(beta, dtype, importer), addend, emit)
        total = (
            emit(R.add(addend[0], total[0])),
            total[1] if addend[1] is None else emit(R.add(addend[1], total[1])),
        )
    return Parts(*(cast(x, dtype, importer) for x in total))
