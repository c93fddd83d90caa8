# SPDX-License-Identifier: Apache-2.0
"""Write constants of one element as numbers into the functions that read them, in place of arguments.

TVM's legalization writes scalars into arithmetic, but leaves them tensors if an operator such as ``where`` reads
them. A kernel would read such a tensor from memory, in addition to its other operands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from ... import compat
from ...compat import Buffer, Expr
from ...graph.dtype import FLOATS
from ...graph.ir import Operator, Tensor

_INTEGERS = frozenset({"bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))})
_ARITHMETIC = frozenset("Add Sub Mul Div FloorDiv Mod FloorMod".split())
_COMPARISONS = frozenset("EQ NE LT LE GT GE".split())
_LARGEST = 2**63
"""TVM has no literal of a uint64 that is this large or larger."""
_LEAST = -(2**31)
"""The least int32."""


def number_in(value: relax.Expr, tensor: Tensor) -> Expr | None:
    """Return the number that may replace a value in the readers of ``tensor``, or None if no number may.

    Constants of one element have a number, with two exceptions:

    - A zero has none if a reader computes with it. TVM's simplifier takes a product with 0 for 0, which infinities
      and NaN make wrong. It takes a sum with 0 for the other term, which may be a zero of the other sign, and refuses
      to divide by 0.
    - The least int32 has none if a reader compares it or computes with it. The simplifier compares differences, and
      that number's negative is itself.
    """
    number = _number(value)
    if number is None:
        return None
    if number.value == 0:
        misread = _ARITHMETIC
    elif compat.dtype_of(number) == "int32" and number.value == _LEAST:
        misread = _ARITHMETIC | _COMPARISONS
    else:
        return number
    return None if any(_computes(op, tensor, misread) for op in tensor.consumers) else number


def _number(value: relax.Expr) -> Expr | None:
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


def _computes(op: Operator, tensor: Tensor, kinds: Collection[str]) -> bool:
    """Return True if an operator applies one of ``kinds`` to an element of a tensor. Indices do not count."""
    computes = False

    def reads(e: Expr) -> bool:
        nonlocal computes
        if compat.is_load(e):
            return op.operand[compat.load_buffer(e)] is tensor
        of_operands = [reads(operand) for operand in compat.operands(e)]
        computes |= any(of_operands) and compat.kind(e) in kinds
        return any(of_operands)

    reads(op.value)
    return computes


def with_numbers(func: tirx.PrimFunc, numbers: Mapping[Buffer, Expr]) -> tirx.PrimFunc:
    """Return an unscheduled PrimFunc with numbers in place of parameters of one element that its blocks only read."""

    def loaded(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return numbers.get(compat.load_buffer(load), load)

    def read(block: Any) -> Any:
        reads = [region for region in block.reads if region.source not in numbers]
        return block if len(reads) == len(block.reads) else compat.changed_block(block, reads=reads)

    changes = [(tvm.ir.TensorLoad, loaded), (s_tir.SBlock, read)]
    body = tvm_ffi.structural_map(func.body, changes, order="post")
    params = [param for param in func.params if param not in numbers]
    return s_tir.renew_defs(tirx.PrimFunc(params, body, func.ret_type, func.attrs))
