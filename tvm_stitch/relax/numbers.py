# SPDX-License-Identifier: Apache-2.0
"""Constants of one element as numbers in the functions that read them, in the place of arguments.

TVM's legalization writes scalars into arithmetic, and leaves them tensors where an operator such as ``where`` reads
them. A kernel would read such a one from memory, beside what it stands between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .. import compat
from ..compat import Buffer, Expr
from ..graph.dtype import FLOATS
from ..graph.ir import Tensor

_INTEGERS = frozenset({"bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))})
_PRODUCTS = frozenset("Mul Div FloorDiv Mod FloorMod".split())
_LARGEST = 2**63
"""TVM has no literal of a uint64 from here on."""


def number_in(value: Any, tensor: Tensor) -> Expr | None:
    """The number that stands for a value of the program in what reads ``tensor`` for it; None if none does.

    Constants of one element have one. Zeros have none where something is multiplied or divided: TVM's simplifier takes
    a product with 0 for 0, which infinities and NaN make wrong, and refuses to divide by it.
    """
    number = _number(value)
    if number is None or number.value != 0:
        return number
    return None if any(_multiplies(op.value) for op in tensor.consumers) else number


def _number(value: Any) -> Expr | None:
    if not isinstance(value, tvm.ir.GenericConst):
        return None
    array = value.value
    dtype = str(array.dtype)
    if math.prod(array.shape) != 1 or (dtype not in FLOATS and dtype not in _INTEGERS):
        return None
    held = array.numpy().reshape(()).item()
    if dtype in FLOATS:
        return compat.const(float(held), dtype)
    return compat.const(held, dtype) if held < _LARGEST else None


def _multiplies(e: Expr) -> bool:
    """Whether an expression has a product, a quotient or a remainder; its indices do not count."""
    if compat.kind(e) in _PRODUCTS:
        return True
    return not compat.is_load(e) and any(map(_multiplies, compat.operands(e)))


def with_numbers(func: Any, numbers: Mapping[Buffer, Expr]) -> Any:
    """An unscheduled PrimFunc with numbers in the place of parameters of one element, which its blocks only read."""

    def loaded(load: Any) -> Any:
        return numbers.get(compat.load_buffer(load), load)

    def read(block: Any) -> Any:
        reads = [region for region in block.reads if region.source not in numbers]
        return block if len(reads) == len(block.reads) else compat.changed_block(block, reads=reads)

    changes = [(tvm.ir.TensorLoad, loaded), (s_tir.SBlock, read)]
    body = tvm_ffi.structural_map(func.body, changes, order="post")
    params = [param for param in func.params if param not in numbers]
    return s_tir.renew_defs(tirx.PrimFunc(params, body, func.ret_type, func.attrs))
