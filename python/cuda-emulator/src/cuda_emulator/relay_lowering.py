# SPDX-License-Identifier: Apache-2.0
"""Build a Relay module or a PrimFunc for CUDA into the emulator's input: host code, CUDA C, the graph."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tir
from tvm.tir.stmt_functor import ir_transform

from .calls import ALLOC_WORKSPACE
from .global_function import registered

COMPILE = "tvm_callback_cuda_compile"

Build = Callable[[Any, Any, Any], Any]
"""Compiles (module, target, params) and returns the result, like ``relay.build``."""


@dataclass
class RelayLowered:
    """A module built for CUDA whose kernels are not compiled.

    Attributes:
        hosts: the PrimFuncs' host code, which looks kernels up among all global functions.
        sources: the CUDA C of each device module.
        kernels: for each kernel the meaning of its launch arguments, which follow its own arguments.
        graph: the graph executor's JSON, for a Relay module.
        params: its constants.
        inputs: names of the other inputs.
        extra_blocks: for a kernel, blocks to launch beyond those of the host code (to test detectors).
    """

    hosts: tuple[Any, ...]
    sources: tuple[str, ...]
    kernels: dict[str, tuple[str, ...]]
    graph: dict[str, Any] | None = None
    params: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    extra_blocks: Mapping[str, int] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """All CUDA C, to look at."""
        return "\n".join(self.sources)


def default_target() -> Any:
    """Return an sm_90 target with an llvm host."""
    return tvm.target.Target("cuda -arch=sm_90", host="llvm")


def build_stock(mod: Any, target: Any, params: Any = None) -> Any:
    """Return the result of TVM's own compilation."""
    from tvm import relay

    return relay.build(mod, target=target, params=params)


def lower_relay(mod: Any, target: Any = None, params: Any = None, build: Build | None = None) -> RelayLowered:
    """Build a Relay module for the emulator, with ``build`` in place of ``relay.build``. Neither GPU nor nvcc is
    needed.

    The current pass context stays in effect. ``build`` must not enter another.

    Raises:
        ValueError: for a module that calls external libraries, or if ``build`` enters another pass context.
        NotImplementedError: for a graph on several devices.
    """
    with emulated_build() as seen:
        library = (build or build_stock)(mod, target or default_target(), params)
    taken = _taken_apart(library.get_lib())
    if taken[1] and not seen:
        raise ValueError(
            "the build entered a PassContext of its own, which hides the emulator's: enter it around the call instead"
        )
    graph = json.loads(library.get_graph_json())
    if len(set(graph["attrs"].get("device_index", ["", [2]])[1])) > 1:
        raise NotImplementedError("the emulator runs graphs on one CUDA device only")
    constants = {str(name): value.numpy() for name, value in library.get_params().items()}
    nodes = [graph["nodes"][i]["name"] for i in graph["arg_nodes"]]
    given = set(params or ())
    main = mod["main"] if isinstance(mod, tvm.IRModule) else mod
    order = [p.name_hint for p in main.params if p.name_hint not in given]
    strange = [name for name in nodes if name not in constants and name not in order]
    if strange:
        raise ValueError(f"inputs {', '.join(strange)} of the graph are no parameters of the module's main")
    return RelayLowered(*taken, graph, constants, tuple(order))


def lower_prim_func(func: Any, target: Any = None, name: str = "main") -> RelayLowered:
    """Build one scheduled PrimFunc for the emulator, as the function ``name``."""
    target = target or default_target()
    with emulated_build():
        mod = tvm.IRModule({name: func.with_attr("global_symbol", name)})
        return RelayLowered(*_taken_apart(tvm.build(mod, target=target)))


@contextmanager
def emulated_build() -> Iterator[list[str]]:
    """Build CUDA modules without compiling them in this context. Host code takes its workspaces from the emulator.

    Yields:
        The names of the functions that were built so, as they come.
    """
    seen: list[str] = []
    now = tvm.transform.PassContext.current()
    config = dict(now.config.items())
    config["tir.add_lower_pass"] = [*config.get("tir.add_lower_pass", []), (3, _emulated_workspaces(seen))]
    context = tvm.transform.PassContext(
        opt_level=max(now.opt_level, 3) if _is_default(now) else now.opt_level,
        required_pass=list(now.required_pass),
        disabled_pass=list(now.disabled_pass),
        instruments=list(now.instruments or []),
        config=config,
    )
    with registered(COMPILE, lambda code, _: code), context:
        yield seen


def _is_default(context: Any) -> bool:
    """Return whether the context is TVM's default, so that the usual optimisation level applies."""
    return int(context.opt_level) == 2 and not context.config and not context.disabled_pass


def _emulated_workspaces(seen: list[str]) -> Any:
    """Return a pass that takes device memory around kernels from a global function of the emulator."""

    def visit(node: Any) -> Any:
        if isinstance(node, tir.AttrStmt):
            return (
                node if node.attr_key == "thread_extent" else None
            )  # nothing below, which belongs to the kernel
        return None

    def replace(node: Any) -> Any:
        if not isinstance(node, tir.Allocate) or node.buffer_var.type_annotation.storage_scope not in (
            "",
            "global",
        ):
            return None
        size = max(1, (tvm.DataType(node.dtype).bits * tvm.DataType(node.dtype).lanes + 7) // 8)
        count = tir.const(size, "int64")
        for extent in node.extents:
            count = count * tir.Cast("int64", extent)
        call = tir.Call("handle", "tir.tvm_call_packed", [tir.StringImm(ALLOC_WORKSPACE), count, size])
        return tir.LetStmt(node.buffer_var, call, node.body)

    def transform(func: Any, _mod: Any, _context: Any) -> Any:
        seen.append(str((func.attrs or {}).get("global_symbol", "")))
        launches: list[Any] = []

        def note(node: Any) -> None:
            if isinstance(node, tir.AttrStmt) and node.attr_key == "thread_extent":
                launches.append(node)

        tir.stmt_functor.post_order_visit(func.body, note)
        if not launches:
            return func
        return func.with_body(ir_transform(func.body, visit, replace, ["tir.AttrStmt", "tir.Allocate"]))

    return tir.transform.prim_func_pass(transform, opt_level=0, name="cuda_emulator.Workspaces")


def _taken_apart(
    library: Any,
) -> tuple[tuple[Any, ...], tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return host code without its device modules, the CUDA C, and the kernels' launch parameters."""
    hosts: list[Any] = []
    sources: list[str] = []
    kernels: dict[str, tuple[str, ...]] = {}
    for module in _all_modules(library):
        if module.type_key == "cuda":
            source, launch_parameters = _read_device(module)
            if twice := set(launch_parameters) & set(kernels):
                raise ValueError(f"the library has two kernels of the name {', '.join(twice)}")
            sources.append(source)
            kernels.update(launch_parameters)
        elif module.type_key == "llvm":
            hosts.append(module)
        elif module.type_key not in ("const_loader", "metadata", "metadata_module"):
            raise ValueError(
                f"the emulator runs no external libraries (the module has one of {module.type_key})"
            )
    for host in hosts:
        host.clear_imports()
    return tuple(hosts), tuple(sources), kernels


def _all_modules(library: Any) -> Sequence[Any]:
    modules = [library]
    for module in modules:
        modules.extend(module.imported_modules)
    return modules


def _read_device(module: Any) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return the source of a CUDA module, and its kernels' launch parameters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cu"
        module.save(str(path))
        (meta,) = Path(folder).glob("*.tvm_meta.json")
        infos = json.loads(meta.read_text())["func_info"]
        source = path.read_text()
    return source, {name: tuple(info["launch_param_tags"]) for name, info in infos.items()}
