# SPDX-License-Identifier: Apache-2.0
"""Pass one element to calls, in place of the tensors of one value that constant folding makes from scalars.

TVM's ``FoldConstant`` makes a tensor of a scalar that is broadcast, or of a small mask that is filled. Functions
would read it from memory, element by element. Values computed from a model's own tensors stay tensors. An untrained
norm, for example, may have one value, but that is not a property of the model.
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
from ...graph.reader import read
from ...scope.fusion import Pattern
from ...support.failures import Refusal
from ..rewriting.calls import with_bound_calls
from ..rewriting.functions import own_functions
from ..rewriting.values import bindings_of
from ..stitch.dataflow import call_args, is_call_tir

Positions = Mapping[Any, Collection[int]]
"""Positions among the arguments of calls, by the variable that a call is bound to."""


def computed_of_scalars(mod: tvm.IRModule) -> Positions:
    """Return the positions of arguments that are computed from constants of one element alone, or from nothing."""
    computed: dict[Any, list[int]] = {}
    for _, func in own_functions(mod):
        scalars: set[Any] = set()
        for binding in bindings_of(func.body):
            if not is_call_tir(binding.value):
                continue
            args, numbers = call_args(binding.value)
            positions = [i for i, arg in enumerate(args) if arg in scalars]
            if len(positions) == len([arg for arg in args if not _is_scalar(arg)]) and not numbers:
                scalars.add(binding.var)
            elif positions:
                computed[binding.var] = positions
    return computed


def _is_scalar(arg: relax.Expr) -> bool:
    return isinstance(arg, tvm.ir.GenericConst) and math.prod(arg.value.shape) == 1


def with_single_values(mod: tvm.IRModule, positions: Positions) -> tvm.IRModule:
    """Return the module with one element for each constant of one value at the given positions.

    Only calls of memory-intensive functions change, behind ``AnnotateTIROpPattern``.
    """
    if not positions:
        return mod
    known: dict[Any, Any] = {}

    def narrowed(builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
        gvar, args = call.args[:2]
        fields = list(args.fields) if isinstance(args, relax.Tuple) else [args]
        func, buffers = mod[gvar], dict[Any, Any]()
        for i in positions.get(var, ()):
            if not isinstance(fields[i], tvm.ir.GenericConst):
                continue
            array = fields[i].value
            if array not in known:
                known[array] = _single(array)
            if known[array] is not None:
                fields[i] = known[array]
                buffers[func.params[i]] = tirx.decl_buffer((), str(array.dtype), func.params[i].name)
        if not buffers or not _may_be_given(func):
            return call
        gvar = builder.add_func(_reading(func, buffers), gvar.name_hint)
        return relax.Call(call.op, [gvar, relax.Tuple(fields), *call.args[2:]], call.attrs, call.ty_args)

    return with_bound_calls(
        mod, ("relax.call_tir",), narrowed, why="a kernel would read a tensor of equal elements from memory"
    )


def _single(array: tvm.runtime.Tensor) -> relax.Expr | None:
    """Return the value that all elements equal, bit for bit, as a constant. None if they differ or there is one."""
    if math.prod(array.shape) < 2:
        return None
    held = array.numpy().reshape(-1)
    bits = held.view(f"u{held.dtype.itemsize}")
    return relax.const(held[0].reshape(()), str(array.dtype)) if (bits == bits[0]).all() else None


def _may_be_given(func: tirx.PrimFunc) -> bool:
    """Return whether a function reads tensors only in blocks that a stitch kernel may have."""
    if int((func.attrs or {}).get("op_pattern", Pattern.OPAQUE)) > Pattern.REDUCE:  # contractions are above
        return False
    try:
        read(func)
    except Refusal:
        return False
    return True


def _reading(func: tirx.PrimFunc, buffers: Mapping[tirx.Buffer, tirx.Buffer]) -> tirx.PrimFunc:
    """Return the function with buffers of one element in place of some parameters."""

    def loaded(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        source = compat.load_buffer(load)
        return compat.load(buffers[source], []) if source in buffers else load

    def region(read: tvm.ir.TensorRegion) -> tvm.ir.TensorRegion:
        return tirx.BufferRegion(buffers[read.source], []) if read.source in buffers else read

    changes = [(tvm.ir.TensorLoad, loaded), (tvm.ir.TensorRegion, region)]
    body = tvm_ffi.structural_map(func.body, changes, order="post")
    return s_tir.renew_defs(compat.with_body_and_params(func, body, buffers, ()))
