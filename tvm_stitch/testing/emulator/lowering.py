# SPDX-License-Identifier: Apache-2.0
"""Lowers a Relax module for CUDA as TVM does, into what the emulator can run: host code, CUDA C, VM bytecode."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.vm_build import _filter_tir, _vmcodegen
from tvm.tirx.build import codegen_build, split_host_device_mods

# Kernels and PrimFuncs are looked up by name among all global functions: a prefix keeps them apart from those.
PREFIX = "tvm_stitch_emulated_"
CALL = "tvm_stitch.emulator.call"
ALLOC_STORAGE = "tvm_stitch.emulator.alloc_storage"
ALLOC_TENSOR = "tvm_stitch.emulator.alloc_tensor"


@dataclass(frozen=True)
class KernelInfo:
    """A device function: the thread axes that its launch arguments give, in order, after its own arguments."""

    launch_params: tuple[str, ...]
    cluster: tuple[int, int, int]


@dataclass
class Lowered:
    """A lowered module: `vm` runs the Relax functions, `host` has the PrimFuncs' host code, `source` the CUDA C."""

    executable: relax.VMExecutable
    host: tvm.runtime.Module | None
    source: str
    kernels: dict[str, KernelInfo]
    host_functions: frozenset[str]


def default_target() -> tvm.target.Target:
    """An sm_90 target with an llvm host."""
    return tvm.target.Target("nvidia/nvidia-h100").with_host(tvm.target.Target("llvm"))


@mutator
class _Redirect(PyExprMutator):
    """Sends calls of PrimFuncs and allocations of tensors to the emulator."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:  # pylint: disable=arguments-renamed
        """Visits a call."""
        call = self.visit_expr_post_order(call)
        op, args = call.op, list(call.args)
        if isinstance(op, tvm.ir.GlobalVar) and isinstance(self.mod[op], tirx.PrimFunc):
            return _packed(CALL, [relax.StringImm(op.name_hint), *args])
        if isinstance(op, tvm.ir.Op):
            if op.name == "relax.vm.alloc_storage":
                return _packed(ALLOC_STORAGE, [args[0]])
            if op.name == "relax.vm.alloc_tensor":
                return _packed(ALLOC_TENSOR, args[:4])
            if op.name == "relax.vm.call_tir_dyn":
                return _packed(CALL, [relax.StringImm(args[0].name_hint), *args[1].fields])
        return call


def _packed(name: str, args: list[relax.Expr]) -> relax.Call:
    return relax.Call(relax.ExternFunc(name), args, ty_args=[relax.AnyType()])


def lower(
    mod: tvm.IRModule, target: tvm.target.Target, relax_pipeline: tvm.transform.Pass | None
) -> Lowered:
    """Runs the Relax pipeline, TVM's own TIR pipeline for CUDA, and both code generators. No GPU, no nvcc is needed."""
    with tvm.transform.PassContext.current() if False else _no_cuda_graph(), target:
        mod = (relax_pipeline or relax.get_default_pipeline(target))(mod)
    constants = dict(mod.attrs["const_name_to_constant"]) if mod.attrs and "const_name_to_constant" in mod.attrs else {}
    if mod.attrs and len(mod.attrs.get("external_mods", [])):
        raise ValueError("the emulator runs no external libraries (the module has external_mods)")
    prim_funcs = _filter_tir(mod)
    redirected = _Redirect(mod)
    relax_mod = tvm.IRModule(attrs=mod.attrs)
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax_mod[gvar] = redirected.visit_expr(func)
    builder = relax.ExecBuilder()
    _vmcodegen(builder, relax_mod)
    executable = relax.VMExecutable(relax.vm_build._ffi_api.VMLink(builder, target.host, None, [], constants))
    if prim_funcs is None:
        return Lowered(executable, None, "", {}, frozenset())
    return _lower_prim_funcs(executable, prim_funcs, target)
