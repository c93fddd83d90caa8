# SPDX-License-Identifier: Apache-2.0
"""Vectorized loops around an expression, compiled for an x86 CPU, for the tests of vector math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from tvm_stitch import compat
from tvm_stitch.codegen.vector_math import lower_math
from tvm_stitch.compat import Buffer, Expr, tir

LANES = 32
Function = Callable[..., Expr]

# LLVM knows the levels of x86-64 from version 12 on. A TVM with Relay may have an older LLVM.
_MODELS = {"x86-64-v2": "nehalem", "x86-64-v3": "haswell", "x86-64-v4": "skylake-avx512"}


class LaneBuffers:
    """Keeps shared values of a vectorized loop in local buffers of one element a lane."""

    def __init__(self, lane: Expr):
        self.lane = lane
        self.buffers: list[Buffer] = []
        self.stores: list[Any] = []

    def __call__(self, value: Expr) -> Expr:
        """Return the replacement of the value, which is its lane's element."""
        name = f"lane{len(self.buffers)}"
        buffer = tir.decl_buffer((LANES,), compat.dtype_of(value), name, scope="local")
        self.buffers.append(buffer)
        self.stores.append(tir.BufferStore(buffer, value, [self.lane]))
        return tir.BufferLoad(buffer, [self.lane])


def kernel(
    function: Function,
    args: int,
    size: int,
    dtype: str = "float32",
    out: str | None = None,
    lets: bool = False,
    lower: Callable[..., Expr] = lower_math,
) -> tvm.IRModule:
    """Build ``out[i] = function(in0[i], ...)`` in vectorized pieces of LANES, through ``lower``.

    ``size`` is a multiple of LANES. With ``lets``, nested ``Let`` expressions hold shared values.
    """
    inputs = [tir.decl_buffer((size,), dtype, f"in{k}") for k in range(args)]
    output = tir.decl_buffer((size,), out or dtype, "out")
    piece, lane = tir.Var("piece", "int32"), tir.Var("lane", "int32")
    at = piece * LANES + lane
    shared = LaneBuffers(lane)
    value = function(*[tir.BufferLoad(buffer, [at]) for buffer in inputs])
    value = lower(value) if lets else lower(value, bind=shared)
    inside = tir.stmt_seq(*shared.stores, tir.BufferStore(output, value, [at]))
    body = tir.For(lane, 0, LANES, tir.ForKind.VECTORIZED, inside)
    body = tir.For(piece, 0, size // LANES, tir.ForKind.SERIAL, _allocate(shared.buffers, body))
    attrs = {"global_symbol": "main", compat.attribute("noalias"): True}
    return tvm.IRModule({"main": _function([*inputs, output], body).with_attr(attrs)})


def _allocate(buffers: list[Buffer], body: Any) -> Any:
    if not compat.HAS_RELAY:
        return tir.stmt_seq(*[tir.AllocBuffer(buffer) for buffer in buffers], body) if buffers else body
    for buffer in buffers:
        always = tir.const(1, "bool")
        body = tir.Allocate(buffer.data, buffer.dtype, buffer.shape, always, tir.DeclBuffer(buffer, body))
    return body


def _function(buffers: list[Buffer], body: Any) -> Any:
    if not compat.HAS_RELAY:
        return tir.PrimFunc(buffers, body)
    handles = [tir.Var(buffer.name, "handle") for buffer in buffers]
    return tir.PrimFunc(handles, body, buffer_map=dict(zip(handles, buffers)))


class Library:
    """A module compiled for the named x86 CPU or level. A call takes arrays, and writes the last one."""

    def __init__(self, module: tvm.IRModule, cpu: str, opt_level: int | None = None):
        target: dict[str, Any] = {
            "kind": "llvm",
            "mcpu": cpu if (not compat.HAS_RELAY) else _MODELS.get(cpu, cpu),
        }
        if opt_level is not None:
            target["opt-level"] = opt_level
        target = tvm.target.Target(target)
        self._built = (
            tvm.compile(module, target) if (not compat.HAS_RELAY) else tvm.build(module, target=target)
        )

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """Run ``main``, and return a copy of the last array after it."""
        make = tvm.runtime.tensor if (not compat.HAS_RELAY) else tvm.nd.array
        tensors = [make(array) for array in arrays]
        self._built["main"](*tensors)
        return tensors[-1].numpy()

    def source(self, form: str) -> str:
        """Return the compiled code: ``"ll"`` (LLVM IR) or ``"s"`` (assembly)."""
        if not compat.HAS_RELAY:
            return str(self._built.mod.inspect_source(form))
        return str(self._built.get_source("asm" if form == "s" else form))


def compute(
    function: Function,
    *xs: np.ndarray,
    cpu: str = "x86-64-v3",
    dtype: str = "float32",
    out: str | None = None,
    lets: bool = False,
) -> np.ndarray:
    """Apply the lowered function to every element, compiled for ``cpu``. Outputs start as NaN."""
    padding = -len(xs[0]) % LANES
    padded = [np.concatenate([x, x[:1].repeat(padding)]) for x in xs]
    size = len(padded[0])
    library = Library(kernel(function, len(xs), size, dtype, out, lets), cpu)
    return library(*padded, np.full(size, np.nan, out or dtype))[: len(xs[0])]
