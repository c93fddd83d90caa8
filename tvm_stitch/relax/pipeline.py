# SPDX-License-Identifier: Apache-2.0
"""The compilation pipeline with stitching: TVM's own for the target, its fusion replaced by ours."""

from __future__ import annotations

import logging
from typing import Any

import tvm
from tvm import relax

from ..attempts import Attempt, stitch_module
from ..config import StitchConfig, checked_config
from ..device import resolve_target
from ..recorder import Recorder
from .keep_zeros import KeepZeros
from .lift_workspace import LiftWorkspace
from .mark import MergeStitchOps, UnmarkEpilogues
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch_ops import StitchOps

logger = logging.getLogger(__name__)


def stitch_passes(target: Any, config: StitchConfig, recorder: Recorder | None = None) -> list[Any]:
    """The passes from legalized operators to scheduled stitch ops; what is left is fused as TVM fuses it."""
    recorder = recorder or Recorder()
    return [
        KeepZeros(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.ConvertToDataflow(min_size=1),
        relax.transform.CanonicalizeBindings(),  # an alias would part what is one scope
        _stitch(target, config, recorder),
        # What no scope took: TVM's own fusion and schedules.
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        UnmarkEpilogues(),
        relax.transform.DeadCodeElimination(),
    ]


def _stitch(target: Any, config: StitchConfig, recorder: Recorder) -> Any:
    """Outline, merge and schedule the stitch ops; scopes that cannot be scheduled are given back whole to TVM."""

    def passes(attempt: Attempt) -> list[Any]:
        return [
            StitchOps(config, attempt.boundaries, attempt.excluded, attempt.scopes, attempt.left),
            MergeStitchOps(),
            ScheduleStitchOps(target, config, attempt.plans, attempt.declined),
            LiftWorkspace(),
        ]

    @tvm.transform.module_pass(opt_level=0, name="Stitch")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return stitch_module(mod, target, config, recorder, passes)

    return run


def pipeline(target: Any, config: StitchConfig | None = None, recorder: Recorder | None = None) -> Any:
    """A pass for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Args:
        target: a Target, or a string that ``tvm.target.Target`` takes.
        config: options; the defaults suit most models.
        recorder: receives plans, refusals and boundaries.
    """
    target = resolve_target(target)
    config = checked_config(config)
    backend = _backend(target)

    @tvm.transform.module_pass(opt_level=0, name="StitchPipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        records = recorder or Recorder()
        before = records.copy()
        passes = [
            *backend.library_dispatch_passes(target),
            *stitch_passes(target, config, records),
            *_default_schedules(target),
            *backend.dataflow_lower_passes(target),
            *backend.finalize_passes(target),
        ]
        with target:
            try:
                return tvm.transform.Sequential(passes)(mod)
            except Exception as err:
                result = _without_stitching(mod, target, config, err)
                records.return_to(before)
                records.declined["all"] = f"what is left does not compile alone: {type(err).__name__}: {err}"
                logger.warning("compiling without stitching: %s", records.declined["all"])
                return result

    return run


def _without_stitching(mod: tvm.IRModule, target: Any, config: StitchConfig, err: Exception) -> tvm.IRModule:
    """What TVM's own pipeline makes of a module; the error itself where that fails as well, or in strict mode.

    TVM may be able to schedule an operator that no scope took only together with neighbours that one did.
    """
    if config.strict:
        raise err
    try:
        return relax.get_default_pipeline(target)(mod)
    except Exception:
        raise err from None


def _backend(target: Any) -> Any:
    kind = target.kind.name
    if kind == "cuda":
        from tvm.relax.backend import cuda

        return cuda.pipeline
    if kind in ("llvm", "c"):
        from tvm.relax.backend import cpu_generic

        return cpu_generic.pipeline
    from tvm.relax.backend import gpu_generic

    return gpu_generic.pipeline


def _default_schedules(target: Any) -> list[Any]:
    """TVM's schedules for what is not stitched (none on CPU, as in TVM's own pipeline)."""
    if "gpu" not in target.keys:
        return []
    from tvm.s_tir import dlight as dl

    gpu = dl.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    return [dl.ApplyDefaultSchedule(*rules)]
