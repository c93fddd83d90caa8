# SPDX-License-Identifier: Apache-2.0
"""Count the kernels that one call of a compiled Relax module launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.target import Target

from ..compat import Analyzer
from ..compute.cpu.emit import COMPUTE_ATTR
from ..repairs.lowering import host_and_devices
from ..target import resolve_target
from .kernel_count import CONTRACTION_NAMES, KernelCount, Kind

__all__ = ["KernelCount", "Kind", "count_kernels", "count_lowered", "is_compute_intensive"]


def count_kernels(
    mod: tvm.IRModule,
    target: Target | str,
    relax_pipeline: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
    *,
    entry: str = "main",
) -> KernelCount:
    """Count the launches of one call of ``entry``, with ``mod`` compiled for ``target``.

    On a CPU every call of a compiled PrimFunc is a kernel. On a GPU every ``__global__`` function that such a call
    launches is a kernel. Views, allocations and shape computations do not count. For a conditional, the branch with
    more kernels counts. For a loop, one step counts. For a kernel with variants for rows of several lengths, the
    variant with the most launches counts.

    Args:
        mod: a Relax module, as handed to ``tvm.compile``.
        target: a target, as :func:`tvm_stitch.compile` takes it.
        relax_pipeline: the pass given to ``tvm.compile``. None means the target's default pipeline.
        entry: the Relax function called.

    Raises:
        ValueError: if ``entry`` is no Relax function of the module. Also if the number of launches depends on run-time
            values (a host loop of symbolic extent around a launch).
    """
    target = resolve_target(target)
    if relax_pipeline is None:
        relax_pipeline = relax.get_default_pipeline(target)
    with target:
        lowered = relax_pipeline(mod)
    return count_lowered(lowered, target, entry=entry)


def count_lowered(lowered: tvm.IRModule, target: Target | str, *, entry: str = "main") -> KernelCount:
    """Return the count of :func:`count_kernels` for a module that went through its Relax pipeline already."""
    target = resolve_target(target)
    launches = _launches_of_primfuncs(lowered, target)
    counted: list[tuple[str, Kind]] = []
    for callee in _calls(lowered, entry, ()):
        if isinstance(callee, str):
            counted.append((callee, "external"))
            continue
        name = callee.name_hint
        kind: Kind = "compute" if is_compute_intensive(lowered[callee], name) else "memory"
        counted += [(kernel, kind) for kernel in launches[name]]
    return KernelCount(tuple(counted))


def is_compute_intensive(func: tirx.PrimFunc, name: str = "") -> bool:
    """Return whether a PrimFunc holds a contraction.

    A contraction is a kernel of a template, or a sum of products of two tensors. Each of the two spans output axes
    that the other does not. PrimFuncs may be scheduled as long as their SBlocks are there, or tensorized. ``name``
    decides if only one factor has such an axis (a matrix-vector product, or a weighted row sum).
    """
    is_contraction = bool(func.attrs and func.attrs.get(COMPUTE_ATTR))
    named = any(word in name.lower() for word in CONTRACTION_NAMES)

    def visit_block(block: Any) -> None:
        nonlocal is_contraction
        spatial = {iv.var for iv in block.iter_vars if iv.iter_type == tirx.IterVar.DataPar}
        reduced = {iv.var for iv in block.iter_vars if iv.iter_type == tirx.IterVar.CommReduce}
        if not reduced:
            return

        def visit_product(product: tirx.Mul) -> None:
            nonlocal is_contraction
            left, right = _index_vars(product.a), _index_vars(product.b)
            if not left or not right or not (left & right & reduced):
                return
            own = (bool((left - right) & spatial), bool((right - left) & spatial))
            is_contraction |= all(own) or (any(own) and named)

        tvm_ffi.structural_walk(block.body, (tirx.Mul, visit_product), order="post")

    def visit_call(call: tvm.ir.Call) -> None:
        nonlocal is_contraction
        op = getattr(call.op, "name", "")
        is_contraction |= "mma" in op.replace("_", ".").split(".")

    tvm_ffi.structural_walk(
        func.body, [(tvm.s_tir.SBlock, visit_block), (tvm.ir.Call, visit_call)], order="post"
    )
    return is_contraction


def _index_vars(expr: tvm.ir.Expr) -> set[tirx.Var]:
    """Return the variables in the indices of all loads under a scalar expression."""
    variables: set[tirx.Var] = set()

    def visit_load(load: tvm.ir.TensorLoad) -> None:
        for index in load.indices:
            tvm_ffi.structural_walk(index, (tirx.Var, variables.add), order="post")

    tvm_ffi.structural_walk(expr, (tvm.ir.TensorLoad, visit_load), order="post")
    return variables


def _calls(mod: tvm.IRModule, entry: str, stack: tuple[str, ...]) -> list[tvm.ir.GlobalVar | str]:
    """Return the PrimFuncs (by GlobalVar) and external functions (by name) that a Relax function calls, in order.

    A function that calls itself is a loop. Its inner calls do not count, so that one step counts.
    """
    if entry in stack:
        return []
    known = {gvar.name_hint for gvar in mod.get_global_vars()}
    if entry not in known or not isinstance(mod[entry], relax.Function):
        names = sorted(g.name_hint for g in mod.get_global_vars() if isinstance(mod[g], relax.Function))
        raise ValueError(f"no Relax function '{entry}' in the module; it has {', '.join(names)}")

    def block_calls(body: relax.Expr) -> list[tvm.ir.GlobalVar | str]:
        if not isinstance(body, relax.SeqExpr):
            return value_calls(body)
        return [c for block in body.blocks for binding in block.bindings for c in value_calls(binding.value)]

    def value_calls(value: relax.Expr) -> list[tvm.ir.GlobalVar | str]:
        if isinstance(value, relax.If):
            return max(block_calls(value.true_branch), block_calls(value.false_branch), key=len)
        if isinstance(value, relax.SeqExpr):
            return block_calls(value)
        if not isinstance(value, relax.Call):
            return []
        if isinstance(value.op, relax.ExternFunc):
            symbol = str(value.op.global_symbol)
            own = [] if symbol.startswith(("vm.builtin.", "runtime.")) else [symbol]
        elif isinstance(value.op, tvm.ir.GlobalVar):
            return callee_calls(value.op)
        else:
            own = []
        # Builtins such as call_tir_dyn or a CUDA graph's run_or_capture take their callee as an argument.
        return own + [c for gvar in _global_vars(value.args) for c in callee_calls(gvar)]

    def callee_calls(gvar: tvm.ir.GlobalVar) -> list[tvm.ir.GlobalVar | str]:
        callee = mod[gvar]
        if isinstance(callee, tirx.PrimFunc):
            return [] if callee.attrs.get("tirx.is_host_func") else [gvar]
        return list(_calls(mod, gvar.name_hint, (*stack, entry)))

    return block_calls(mod[entry].body)


def _global_vars(args: Iterable[relax.Expr]) -> Iterator[tvm.ir.GlobalVar]:
    for arg in args:
        if isinstance(arg, tvm.ir.GlobalVar):
            yield arg
        elif isinstance(arg, relax.Tuple):
            yield from _global_vars(arg.fields)


def _launches_of_primfuncs(mod: tvm.IRModule, target: Target) -> dict[str, list[str]]:
    """Return the kernels that a call of each PrimFunc launches, by the PrimFunc's name."""
    primfuncs = {g: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    own = {g.name_hint: [g.name_hint] for g in primfuncs}
    if "gpu" not in target.keys or not primfuncs:
        return own
    host, devices = host_and_devices(tvm.IRModule(primfuncs, attrs=mod.attrs), target)
    kernels = {g.name_hint for device in devices.values() for g in device.functions}
    return own | {g.name_hint: _launches(f.body, kernels) for g, f in host.functions.items()}


def _launches(stmt: tirx.Stmt, kernels: set[str]) -> list[str]:
    """Return the kernels that a host statement launches, in order. The kernels of a loop are repeated.

    Loops that run at most once are alternatives, because only one of a stitched kernel's variants is launched.
    """
    launched: list[str] = []
    alternatives: list[list[str]] = []

    def visit_call(call: tvm.ir.Call) -> None:
        first = call.args[0] if len(call.args) else None
        if isinstance(first, tvm.ir.StringImm) and str(first.value) in kernels:
            launched.append(str(first.value))

    def visit_loop(loop: tirx.For) -> tvm_ffi.WalkResult:
        inner = _launches(loop.body, kernels)
        if inner and _at_most_once(loop):
            alternatives.append(inner)
            return tvm_ffi.WalkResult.SKIP
        if inner and not isinstance(loop.extent, tirx.IntImm):
            raise ValueError(
                f"a host loop of extent {loop.extent} launches {inner[0]}: its kernels cannot be counted"
            )
        if inner:
            launched.extend(inner * int(loop.extent))
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(stmt, [(tvm.ir.Call, visit_call), (tirx.For, visit_loop)], order="pre")
    return launched + max(alternatives, key=len, default=[])


def _at_most_once(loop: tirx.For) -> bool:
    """Return whether a loop runs at most once, whatever the sizes are."""
    if isinstance(loop.extent, tirx.IntImm):
        return False
    return int(Analyzer().const_int_bound(loop.extent).max_value) <= 1
