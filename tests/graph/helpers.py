# SPDX-License-Identifier: Apache-2.0
"""Short ways from a few Relax operators to graphs, plans and emulated runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import tvm
from tvm import relax, tirx

import tvm_stitch.relax
from cuda_emulator import EmulatedRun, run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.bounds import evaluate_bounds, violations
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS, DeviceModel
from tvm_stitch.graph.ir import Operator, StitchGraph
from tvm_stitch.graph.reader import read
from tvm_stitch.plan.gpu.grid import grid_partition, map_partition
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.relax.stitch.mark import MergeStitchOps
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR, StitchOps

H200 = GPUS["h200"]
LLVM = tvm.target.Target("llvm")
STRICT = StitchConfig(strict=True)
Spec = tuple[Sequence[Any], str]


def build(body: Callable[..., Any], *specs: Spec) -> tvm.IRModule:
    """Return a module whose ``main`` takes tensors of ``specs`` ((shape, dtype) each) and returns what ``body`` makes.

    ``body`` gets the builder's ``emit`` and the parameters, and returns an expression or a list of them.
    """
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(list(s), d)) for i, (s, d) in enumerate(specs)]
    with builder.function("main", params):
        with builder.dataflow():
            made = body(builder.emit, *params)
            outputs = [builder.emit_output(v) for v in (made if isinstance(made, list) else [made])]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def running_maximum(*steps: int) -> Callable[..., Any]:
    """Return a body: the greatest element up to each of 16, by PyTorch's scan in steps of more and more elements."""

    def body(emit: Any, x: Any) -> Any:
        for step in steps:
            low = emit(relax.op.strided_slice(x, [1], [0], [16 - step]))
            high = emit(relax.op.strided_slice(x, [1], [step], [16]))
            above = emit(relax.op.where(emit(relax.op.less(low, high)), high, low))
            x = emit(relax.op.concat([emit(relax.op.strided_slice(x, [1], [0], [step])), above], 1))
        return x

    return body


def symbol(name: str = "n") -> tirx.Var:
    """Return a symbolic extent."""
    return tirx.Var(name, "int64")


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Operators as calls of PrimFuncs."""
    passes = [relax.transform.LegalizeOps(), relax.transform.FoldConstant()]
    return tvm.transform.Sequential([*passes, relax.transform.ConvertToDataflow(min_size=1)])(mod)


def prim_funcs(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Return the PrimFuncs of a module by name."""
    return {g.name_hint: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}


def stitch_functions(mod: tvm.IRModule, config: StitchConfig | None = None) -> dict[str, tirx.PrimFunc]:
    """Return the merged PrimFunc of every stitch op of a module."""
    merged = MergeStitchOps()(StitchOps(config)(legalize(mod)))
    return {n: f for n, f in prim_funcs(merged).items() if f.attrs and STITCH_ATTR in f.attrs}


def graphs(mod: tvm.IRModule, config: StitchConfig | None = None) -> list[StitchGraph]:
    """Return the graph of every stitch op."""
    return [read(f, n) for n, f in stitch_functions(mod, config).items()]


def graph(mod: tvm.IRModule) -> StitchGraph:
    """Return the graph of a module that becomes one stitch op."""
    (op_graph,) = graphs(mod)
    return op_graph


def single(body: Callable[..., Any], *specs: Spec) -> StitchGraph:
    """Return the graph of one legalized operator."""
    (func,) = prim_funcs(legalize(build(body, *specs))).values()
    return read(func)


def plan(mod: tvm.IRModule, device: DeviceModel = H200) -> KernelPlan:
    """Return the plan of a module that becomes one stitch op."""
    return plan_in_block(graph(mod), device)


def grid_plan(op_graph: StitchGraph, device: DeviceModel = H200, barriers: bool = True) -> KernelPlan:
    """Return the grid-wide plan of a graph, even if it would not be chosen."""
    return map_partition(grid_partition(op_graph, device, barriers), device, barriers)


def operator(op_graph: StitchGraph, name: str) -> Operator:
    """Return the one operator whose name starts so."""
    (op,) = [op for op in op_graph.operators if op.name.startswith(name)]
    return op


def draw(specs: Sequence[Spec], seed: int = 0, low: float = -2.0, high: float = 2.0) -> list[np.ndarray]:
    """Random arrays: floats in [low, high], integers in [-9, 9], booleans."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype in specs:
        if dtype == "bool":
            arrays.append(rng.random(shape) < 0.5)
        elif "int" in dtype:
            arrays.append(rng.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(dtype))
        else:
            arrays.append(rng.uniform(low, high, shape).astype(np.dtype(dtype)))
    return arrays


def on_llvm(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """Run a module stitched on this CPU. A failure of the package's own code raises: nothing is left to TVM."""
    passes = tvm_stitch.relax.pipeline(LLVM, STRICT)
    executable = tvm.compile(mod, LLVM, relax_pipeline=passes)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [each.numpy() for each in result]


def emulated(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """Run a module stitched in the emulator, without findings. A failure of the package's own code raises."""
    target = emulated_target()
    passes = tvm_stitch.relax.pipeline(target, STRICT)
    return list(
        run_cuda(mod, list(inputs), target=target, relax_pipeline=passes, tir_pipeline=LOWERING)
        .check()
        .outputs
    )


def check_emulated(
    mod: tvm.IRModule,
    inputs: Sequence[np.ndarray],
    launches: int | None = 1,
    config: StitchConfig | None = None,
    seed: int = 0,
) -> EmulatedRun:
    """Run a module stitched in the emulator: no findings, so many launches, outputs within float64 bounds."""
    target = emulated_target()
    pipeline = tvm_stitch.relax.pipeline(target, config)
    done = run_cuda(
        mod,
        [x.copy() for x in inputs],
        target=target,
        relax_pipeline=pipeline,
        seed=seed,
        tir_pipeline=LOWERING,
    ).check()
    assert launches is None or len(done.launches) == launches, [launch.name for launch in done.launches]
    assert violations(list(done.outputs), evaluate_bounds(mod, list(inputs), half_arithmetic=True)) == []
    return done


def cuda_source(mod: tvm.IRModule, config: StitchConfig | None = None) -> str:
    """Return the CUDA C of a stitched module's kernels."""
    from cuda_emulator.lowering import lower

    target = emulated_target()
    return lower(mod, target, tvm_stitch.relax.pipeline(target, config), LOWERING).source
