# SPDX-License-Identifier: Apache-2.0
"""Tensors of a Relax program in a report's terms: names, shapes and sizes without objects of TVM."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import tvm
from tvm import relax

from ...graph.dtype import item_bytes
from ...graph.extent import size_of, text_of
from ...report.data import Value


def tensor_types(ty: relax.Type) -> list[relax.TensorType]:
    """Return the tensor types in a type, through tuples, in order."""
    if isinstance(ty, relax.TupleType):
        return [t for field in ty.fields for t in tensor_types(field)]
    return [ty] if isinstance(ty, relax.TensorType) else []


def value_of(name: str, ty: relax.Type, origin: str = "kernel") -> Value:
    """Return a tensor with its name. Its shape is ``"?"`` and its size None if the program does not say them."""
    shape = getattr(ty, "shape", None)
    extents = list(shape.values) if isinstance(shape, relax.ShapeExpr) else None
    dtype = str(ty.dtype) if ty.dtype else ""
    if extents is None or not dtype:
        return Value(name, "?", dtype, None, origin)
    size = prod(map(size_of, extents)) * item_bytes(dtype)
    return Value(name, ", ".join(map(text_of, extents)), dtype, size, origin)


def bindings_of(body: relax.Expr) -> Iterator[relax.Binding]:
    """Yield the bindings of a function's body in order, with those of both branches of a condition."""
    if not isinstance(body, relax.SeqExpr):
        return
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from bindings_of(binding.value.true_branch)
                yield from bindings_of(binding.value.false_branch)
            yield binding


def operands_of(value: relax.Expr) -> list[relax.Expr]:
    """Return the variables and constants that a bound value reads, through tuples, in order."""
    if isinstance(value, (relax.Var, tvm.ir.GenericConst)):
        return [value]
    if isinstance(value, relax.Tuple):
        return [v for field in value.fields for v in operands_of(field)]
    if isinstance(value, relax.TupleGetItem):
        return operands_of(value.tuple_value)
    if isinstance(value, relax.Call):
        return [v for arg in value.args for v in operands_of(arg)]
    if isinstance(value, relax.If):
        ends = [value.cond, value.true_branch.body, value.false_branch.body]
        return [v for end in ends for v in operands_of(end)]
    return []
