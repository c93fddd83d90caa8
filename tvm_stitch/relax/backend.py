# SPDX-License-Identifier: Apache-2.0
"""TVM's own pipeline for a target. The pipeline with stitching uses some of its phases unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

from ..config import StitchConfig
from ..repairs.legalize.take import LegalizeTakes
from ..support.pass_context import CUDA_GRAPH, changed


def check_build(target: tvm.target.Target) -> None:
    """Raise ValueError if the enclosing build is for another kind of device than the pass."""
    building = tvm.target.Target.current(allow_none=True)
    if building is not None and building.kind.name != target.kind.name:
        raise ValueError(
            f"this pipeline is for {target.kind.name}, and the module is compiled for {building.kind.name}: give"
            " pipeline() the target that is given to tvm.compile"
        )


def with_graphs(passes: Sequence[tvm.transform.Pass], config: StitchConfig) -> list[tvm.transform.Pass]:
    """Return TVM's passes. The pass that makes CUDA graphs runs under its option if graphs are asked for."""
    return [
        _with_graphs(each) if config.cuda_graph and each.info.name == "RewriteCUDAGraph" else each
        for each in passes
    ]


def _with_graphs(each: tvm.transform.Pass) -> tvm.transform.Pass:
    @tvm.transform.module_pass(opt_level=0, name="WithCUDAGraphs")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with changed([], {CUDA_GRAPH: True}):  # instruments that take part twice would lose their notes
            return each(mod)

    return run


def backend_of(target: tvm.target.Target) -> Any:
    """Return TVM's own pipeline for a target, a module that names the passes of its phases."""
    kind = target.kind.name
    if kind == "cuda":
        from tvm.relax.backend import cuda

        return cuda.pipeline
    if kind in ("llvm", "c"):
        from tvm.relax.backend import cpu_generic

        return cpu_generic.pipeline
    from tvm.relax.backend import gpu_generic

    return gpu_generic.pipeline


def unfused_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """Return TVM's own pipeline for a target without its fusion, which fails for some symbolic extents."""
    backend = backend_of(target)

    @tvm.transform.module_pass(opt_level=0, name="UnfusedPipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            passes = [
                LegalizeTakes(),
                *backend.library_dispatch_passes(target),
                *(p for p in backend.legalize_passes(target) if p.info.name not in ("FuseOps", "FuseTIR")),
                *backend.dataflow_lower_passes(target),
                *backend.finalize_passes(target),
            ]
            return tvm.transform.Sequential(passes)(mod)

    return run
