# SPDX-License-Identifier: Apache-2.0
"""Lower a Relax module for CUDA as TVM does, into the emulator's input: host code, CUDA C, bytecode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.vm_build import VMExecutable, _ffi_api, _filter_tir, _vmcodegen
from tvm.tirx.build import codegen_build, split_host_device_mods
from tvm_ffi import structural_map

from .calls import ALLOC_WORKSPACE, PREFIX

WORKSPACE = "tvm_stitch.workspace"
"""Attribute of tvm_stitch's PrimFuncs with the number of their last parameters that are scratch."""
CALL = "cuda_emulator.call"
ALLOC_STORAGE = "cuda_emulator.alloc_storage"
ALLOC_TENSOR = "cuda_emulator.alloc_tensor"


@dataclass
class Lowered:
    """A lowered module.

    Attributes:
        executable: the Relax functions.
        host: the PrimFuncs' host code, if any.
        source: the CUDA C.
        kernels: for each kernel (with PREFIX) the meaning of its launch arguments, which follow its own arguments.
        host_functions: names of PrimFuncs that run on the host only.
        workspace: number of a PrimFunc's last parameters that are scratch, if there are any.
        extra_blocks: for a kernel (with PREFIX), clusters to launch beyond those of the host code (to test
            detectors).
    """

    executable: VMExecutable
    host: tvm.runtime.Module | None
    source: str
    kernels: dict[str, tuple[str, ...]]
    host_functions: frozenset[str]
    workspace: dict[str, int] = field(default_factory=dict)
    extra_blocks: Mapping[str, int] = field(default_factory=dict)


def default_target() -> tvm.target.Target:
    """Return an sm_90 target with an llvm host."""
    return tvm.target.Target("nvidia/nvidia-h100").with_host(tvm.target.Target("llvm"))


@mutator
class _Redirect(PyExprMutator):
    """Sends calls of PrimFuncs and allocations of tensors to the emulator."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:  # pylint: disable=arguments-renamed
        """Return the redirected call."""
        op = call.op
        if isinstance(op, tvm.ir.GlobalVar) and isinstance(self.mod[op], tirx.PrimFunc):
            return self._packed(CALL, [tvm.ir.StringImm(op.name_hint), *call.args], call)
        if isinstance(op, tvm.ir.Op):
            if op.name == "relax.vm.alloc_storage":
                return self._packed(ALLOC_STORAGE, [call.args[0]], call)
            if op.name == "relax.vm.alloc_tensor":
                return self._packed(ALLOC_TENSOR, list(call.args)[:4], call)
            if op.name == "relax.vm.call_tir_dyn":
                function, operands = call.args
                return self._packed(CALL, [tvm.ir.StringImm(function.name_hint), *operands.fields], call)
        return self.visit_expr_post_order(call)

    def _packed(self, name: str, args: list[relax.Expr], call: relax.Call) -> relax.Call:
        """Return a call of a global function that keeps the type of the call it replaces."""
        new_args = [arg if isinstance(arg, tvm.ir.StringImm) else self.visit_expr(arg) for arg in args]
        return relax.Call(relax.ExternFunc(name), new_args, ty_args=[call.ty])


def lower(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    relax_pipeline: tvm.transform.Pass | None = None,
    tir_pipeline: str | None = None,
    workspace: str = WORKSPACE,
) -> Lowered:
    """Run the Relax pipeline, TVM's TIR pipeline for CUDA, and both code generators. No GPU is needed.

    Args:
        mod: the module.
        target: a CUDA target with a host.
        relax_pipeline, tir_pipeline: those of tvm.compile. None selects TVM's pipelines for the target.
        workspace: an attribute of PrimFuncs with the number of their last parameters that are scratch.

    Raises:
        ValueError: if the module needs external libraries.
    """
    with _without_graphs(), target:
        mod = (relax_pipeline or relax.get_default_pipeline(target))(mod)
    attrs = dict(mod.attrs) if mod.attrs else {}
    if attrs.get("external_mods"):
        raise ValueError("the emulator runs no external libraries (the module has external_mods)")
    prim_funcs = _filter_tir(mod)
    redirect = _Redirect(mod)
    relax_mod = tvm.IRModule(attrs=mod.attrs)
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax_mod[gvar] = redirect.visit_expr(func)
    builder = relax.ExecBuilder()
    _vmcodegen(builder, relax_mod)
    constants = dict(attrs.get("const_name_to_constant", {}))

    def linked(host: tvm.runtime.Module) -> VMExecutable:
        # Without a module of the host, TVM adds one of C, which a C compiler would have to compile for each run.
        return VMExecutable(_ffi_api.VMLink(builder, target.host, host, [], constants))

    if prim_funcs is None:
        return Lowered(linked(codegen_build(tvm.IRModule(), target.host)), None, "", {}, frozenset())
    host_functions = frozenset(
        gvar.name_hint for gvar, func in prim_funcs.functions_items() if func.attrs.get("tirx.is_host_func")
    )
    scratch = {
        gvar.name_hint: int(func.attrs[workspace])
        for gvar, func in prim_funcs.functions_items()
        if workspace in func.attrs
    }
    host_mod, device_mods = _split(_prefixed(prim_funcs), target, tir_pipeline)
    kernels, sources = {}, []
    for device_target, device_mod in device_mods.items():
        sources.append(codegen_build(device_mod, device_target).inspect_source().replace(PREFIX, ""))
        for gvar, func in device_mod.functions_items():
            if "tirx.kernel_launch_params" in func.attrs:
                kernels[gvar.name_hint] = tuple(str(p) for p in func.attrs["tirx.kernel_launch_params"])
    if len(sources) > 1:
        raise ValueError("the emulator runs modules with one device target")
    host = codegen_build(host_mod, target.host)
    return Lowered(linked(host), host, sources[0] if sources else "", kernels, host_functions, scratch)


def _without_graphs() -> tvm.transform.PassContext:
    """Return the current pass context without CUDA graphs, because captured calls would not reach the emulator."""
    now = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=now.opt_level,
        required_pass=list(now.required_pass),
        disabled_pass=list(now.disabled_pass),
        instruments=list(now.instruments or []),
        config={**dict(now.config.items()), "relax.backend.use_cuda_graph": False},
    )


def _prefixed(mod: tvm.IRModule) -> tvm.IRModule:
    renamed = {}
    for gvar, func in mod.functions_items():
        name = PREFIX + gvar.name_hint
        renamed[tvm.ir.GlobalVar(name)] = func.with_attr("global_symbol", name)
    return tvm.IRModule(renamed, attrs=mod.attrs)


def _split(
    mod: tvm.IRModule, target: tvm.target.Target, tir_pipeline: str | None
) -> tuple[tvm.IRModule, dict[tvm.target.Target, tvm.IRModule]]:
    """Return host and device modules, as tirx.build makes them before it generates code."""
    mod = tirx.transform.BindTarget(target)(mod)
    chosen = tirx.get_tir_pipeline(tir_pipeline) if tir_pipeline else tirx.get_default_tir_pipeline(target)
    pipeline, finalize_host, finalize_device = chosen
    host_mod, device_mods = split_host_device_mods(pipeline(mod))
    host_mod = finalize_host()(_with_workspace(host_mod))
    return host_mod, {t: finalize_device()(m) for t, m in device_mods.items()}


def _with_workspace(host_mod: tvm.IRModule) -> tvm.IRModule:
    """Return host code that takes device memory for buffers between its kernels from the emulator.

    Functions that run on the host only keep their buffers.
    """
    changed = tvm.IRModule(attrs=host_mod.attrs)
    for gvar, func in host_mod.functions_items():
        if not func.attrs.get("tirx.is_host_func"):
            func = func.with_body(structural_map(func.body, (tirx.AllocBuffer, _workspace), order="post"))
        changed[gvar] = func
    return changed


def _workspace(alloc: tirx.AllocBuffer) -> tirx.Stmt:
    """Return the declaration of a buffer in the emulator's memory."""
    buffer = alloc.buffer
    if buffer.scope() != "global":
        return alloc
    dtype = tvm.DataType(str(buffer.dtype))
    itemsize = (dtype.bits * dtype.lanes + 7) // 8
    nbytes = tirx.const(itemsize, "int64")
    for extent in buffer.shape:
        nbytes = nbytes * tirx.Cast("int64", extent)
    name = tvm.ir.StringImm(ALLOC_WORKSPACE)
    memory = tirx.call_intrin("handle", "tirx.tvm_call_packed", name, nbytes, itemsize)
    return tirx.DeclBuffer(buffer, data=tirx.reinterpret(buffer.data.ty, memory))
