# SPDX-License-Identifier: Apache-2.0
"""Count the kernels that one run of ``relay.build``'s library launches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relay, tir

from tvm_stitch.execution.kernel_count import CONTRACTION_NAMES, KernelCount, Kind

_HOST_CALLS = ("tir.tvm_call_packed", "tir.tvm_call_cpacked", "tir.tvm_call_packed_lowered")
#: Kinds of runtime modules that hold generated code, not a library's.
_GENERATED = ("llvm", "c")


def count_kernels(lib: Any) -> KernelCount:
    """Count the kernels that one run of a graph-executor module launches.

    A ``tvm_op`` node of the graph is one kernel on a CPU. On a GPU it is as many as its PrimFunc launches. A
    ``__nop`` node (a reshape that moves nothing) does not count. A node is ``compute`` if its Relay function holds a
    contraction, ``external`` if it calls a library function (a sort, a BLAS).

    Args:
        lib: the library of ``relay.build`` for the graph executor, built in this process. A library that was exported
            and loaded has no PrimFuncs.

    Raises:
        ValueError: for another kind of library, or a launch inside a host loop whose extent is not constant.
    """
    if not hasattr(lib, "get_graph_json") or not hasattr(lib, "function_metadata"):
        raise ValueError(f"{type(lib).__name__} is not what relay.build gives for the graph executor")
    launches: list[tuple[str, Kind]] = []
    for node in json.loads(lib.get_graph_json())["nodes"]:
        name = node.get("attrs", {}).get("func_name")
        if node["op"] == "tvm_op" and name != "__nop":
            launches += _launched(lib, name)
    return KernelCount(tuple(launches))


def _launched(lib: Any, name: str) -> list[tuple[str, Kind]]:
    """Return the kernels of one node, in order."""
    metadata = lib.function_metadata
    launched = list(metadata[name].tir_primfuncs.items()) if name in metadata else []
    if not launched:
        return _launched_outside(lib.get_lib(), name)
    ((target, primfunc),) = launched
    on_gpu = "gpu" in target.keys
    if on_gpu:
        count = _launches(primfunc.body)
        kernels = [f"{name}_kernel" + (f"_{place}" if place else "") for place in range(count)]
    else:
        count, kernels = 1, [name]
    if _calls_library(primfunc.body) and (not on_gpu or not count):
        return [(name, "external")]
    functions = [function for _, function in metadata[name].relay_primfuncs.items()]
    contraction = any(holds_contraction(function) for function in functions)
    return [(kernel, "compute" if contraction else "memory") for kernel in kernels]


def _launched_outside(lib: Any, name: str) -> list[tuple[str, Kind]]:
    """Return the kernels of a function of an external compiler of Relay, found in its module."""
    # The module of the model's constants claims every function: only modules with code are asked.
    generated = (module for module in _modules(lib) if module.type_key in _GENERATED)
    owner = next((module for module in generated if module.implements_function(name)), None)
    if owner is None:
        return [(name, "external")]
    kind: Kind = "compute" if any(word in name for word in CONTRACTION_NAMES) else "memory"
    on_device = [module for module in owner.imported_modules if module.type_key == "cuda"]
    if not on_device:
        return [(name, kind)]
    source = "".join(module.get_source() for module in on_device)
    wanted = re.compile(rf"{re.escape(name)}_kernel(_\d+)?")
    # Functions have declarations as well as definitions, but each name counts once.
    kernels = dict.fromkeys(kernel for kernel in kernels_in(source) if wanted.fullmatch(kernel))
    return [(kernel, kind) for kernel in kernels]


def _modules(lib: Any) -> Iterator[Any]:
    yield lib
    for module in lib.imported_modules:
        yield from _modules(module)


def kernels_in(source: str) -> list[str]:
    """Return the names of the ``__global__`` functions in CUDA source, one for each declaration and definition."""
    return re.findall(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(", source)


def holds_contraction(function: relay.Function) -> bool:
    """Return whether a Relay function calls a contraction (matmul, convolution), nested functions included."""
    holds = False

    def visit(node: Any) -> None:
        nonlocal holds
        if isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op):
            base = node.op.name.rsplit(".", 1)[-1]
            holds |= any(word in base for word in CONTRACTION_NAMES) and "transform" not in base

    relay.analysis.post_order_visit(function, visit)
    return holds


def _calls_library(body: Any) -> bool:
    """Return whether a PrimFunc calls a packed function, other than to allocate."""
    calls = False

    def visit(node: Any) -> None:
        nonlocal calls
        calls |= isinstance(node, tir.Call) and getattr(node.op, "name", "") in _HOST_CALLS

    tir.stmt_functor.post_order_visit(body, visit)
    return calls


def _launches(stmt: Any) -> int:
    """Count the kernels that a host statement launches: each outermost nest of thread extents is one."""
    if isinstance(stmt, tir.AttrStmt) and stmt.attr_key == "thread_extent":
        return 1
    if isinstance(stmt, tir.For):
        inner = _launches(stmt.body)
        if inner and stmt.kind == tir.ForKind.THREAD_BINDING:
            return 1
        if inner and not isinstance(stmt.extent, tir.IntImm):
            raise ValueError(f"a host loop of extent {stmt.extent} launches kernels: they cannot be counted")
        return inner * int(stmt.extent) if inner else 0
    if isinstance(stmt, tir.SeqStmt):
        return sum(_launches(part) for part in stmt.seq)
    if isinstance(stmt, tir.IfThenElse):
        return max(_launches(stmt.then_case), _launches(stmt.else_case) if stmt.else_case else 0)
    if isinstance(stmt, tir.BlockRealize):
        return _launches(stmt.block.body)
    return _launches(stmt.body) if hasattr(stmt, "body") else 0
