# SPDX-License-Identifier: Apache-2.0
"""The compilation pipeline with stitching: TVM's own for the target, its fusion replaced by ours.

In order: functions that importers made of operators turned back; calls that TVM does not compile, or compiles to
something else, mended, and running sums of short rows spelled out; library dispatch; copies dropped and equal
expressions joined (three linear layers of one operand each reshape it); what TVM does not lower in bfloat16 widened;
weights of one value made constants; quantized products made products of integers, or their weights floats; weights
computed from constants made constants; the passes for compute-intensive operators that need Relax operators;
legalization, with products with zeros kept, group norms centred and argmax as two plain reductions; empty calls
dropped; each reader of a half value widens it for itself, and results that are reshapes of what a kernel makes are
views of it; stitching; ``FuseOps`` and ``FuseTIR`` for what no scope took; dlight's schedules on a GPU; TVM's
lowering of dataflow.

A scope that ``StitchOps`` outlines may still turn out not to be schedulable after merging. Then the stitching passes
run again without that scope, so that its operators return to TVM's fusion one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tvm
from tvm import relax

from ..compute.cuda import library
from ..compute.cuda.shared_library import SharedLibrary
from ..compute.templates import has_templates
from ..config import StitchConfig, checked_config
from ..driver import Attempt, Scopes, attempt_with, culprits, stitch_module
from ..records.recorder import Recorder
from ..rules.declining import ApplyDecliningRules
from ..rules.empty_grids import EmptyGrids
from ..rules.empty_reductions import EmptyReductions
from ..rules.half_sums import HalfSums
from ..rules.scalar_booleans import ScalarBooleans
from ..rules.sound_arithmetic import SoundArithmetic
from ..rules.unit_reductions import UnitReductions
from ..support.failures import raise_where_strict, reason_of, reraise_fatal
from ..support.interrupts import carrying, watched
from ..support.one_at_a_time import exclusively
from ..support.pass_context import CUDA_GRAPH, changed
from ..target import resolve_target
from .attention.decompose import DecomposeAttention
from .attention.fused import FusedAttention
from .constants.batch_norm import ConstantBatchNorm
from .constants.computed_weights import ComputedWeights
from .constants.fold import FoldConstants
from .constants.views import ConstantViews
from .constants.weights import ConstantWeights
from .imports.declared_bounds import DeclaredBounds
from .imports.mend import MendImports
from .imports.raised_calls import RaisedCalls
from .layout.convolutions import ConvolutionLayouts, suits_library, suits_templates
from .layout.copies import DropCopies
from .layout.pads import SinkPads
from .layout.permutations import CarriedPermutations
from .layout.reshapes import SinkReshapes
from .layout.unequal_splits import UnequalSplits
from .layout.viewed_results import ViewedResults
from .legalize.arg_reductions import ARG_REDUCTIONS
from .legalize.centred_norms import CENTRED_NORMS
from .legalize.empty import SkipEmpty
from .legalize.input_dilation import TRANSPOSED_CONVOLUTIONS
from .legalize.keep_zeros import KeepZeros
from .legalize.short_scans import ShortScans
from .legalize.slice_scatters import SLICE_SCATTERS
from .legalize.take import TAKES, stock_pipeline
from .legalize.transposed_convolutions import TransposedConvolutions
from .legalize.wide_operators import WideOperators
from .legalize.widening_casts import WideningCasts
from .library.convolution_epilogues import ConvolutionEpilogues
from .library.convolutions import LibraryConvolutions
from .library.joined_matmuls import JoinedProducts
from .library.matmuls import LibraryMatmuls
from .library.own_convolutions import OwnConvolutions
from .library.patch_convolutions import PatchConvolutions
from .library.phased_convolutions import PhasedConvolutions
from .library.reduction_innermost import DepthInnermost
from .lowering.embed_libraries import EmbedLibraries
from .lowering.serial_tasks import SerialTasks
from .quantize.dequantized_constants import DequantizedConstants
from .quantize.elementwise import ELEMENTWISE_QUANTIZATION
from .quantize.products import QuantizedProducts
from .quantize.views import QuantizedViews
from .stitch.compute_templates import ComputeTemplates
from .stitch.dataflow import flow_of
from .stitch.fuse_rest import FuseRest
from .stitch.lift_workspace import LiftWorkspace
from .stitch.mark import MergeStitchOps, UnmarkEpilogues
from .stitch.schedule_stitch_ops import ScheduleStitchOps
from .stitch.stitch_ops import StitchOps

LEGALIZED = (
    ARG_REDUCTIONS
    | CENTRED_NORMS
    | ELEMENTWISE_QUANTIZATION
    | SLICE_SCATTERS
    | TAKES
    | TRANSPOSED_CONVOLUTIONS
)
"""Operators legalized otherwise than TVM does."""
STEP = "what is left does not compile beside it"
"""What is told of a scope that TVM compiles only with its neighbours."""


def stitch_passes(
    target: Any,
    config: StitchConfig,
    recorder: Recorder | None = None,
    scopes: Scopes | None = None,
    check: bool = True,
) -> list[Any]:
    """The passes from operators to scheduled stitch ops; what is left is fused as TVM fuses it.

    Args:
        target: a TVM target.
        config: stitching options.
        recorder: receives plans, refusals and boundaries.
        scopes: those to leave to TVM; receives those that are outlined.
        check: whether each kernel is lowered once, so that one which TVM's lowering fails on is left to TVM.
    """
    recorder = recorder or Recorder()
    return [
        *_legalization(),
        SkipEmpty(),
        relax.transform.AnnotateTIROpPattern(),
        FoldConstants(),
        relax.transform.ConvertToDataflow(min_size=1),
        relax.transform.CanonicalizeBindings(),  # an alias would part what is one scope
        WideningCasts(),
        ViewedResults(),
        _stitch(target, config, recorder, scopes, check),
        # What no scope took: TVM's own fusion and schedules.
        FuseRest(),
        relax.transform.FuseTIR(),
        UnmarkEpilogues(),
        relax.transform.DeadCodeElimination(),
    ]


def _legalization() -> list[Any]:
    """The passes that make calls of PrimFuncs of operators."""
    return [KeepZeros(), exclusively([relax.transform.LegalizeOps(LEGALIZED)])]


def planning_passes(
    target: Any,
    config: StitchConfig,
    recorder: Recorder | None = None,
    scopes: Scopes | None = None,
    check: bool = True,
) -> list[Any]:
    """:func:`stitch_passes` behind TVM's choice of what a library computes: a pipeline up to its schedules."""
    dispatched = backend_of(target).library_dispatch_passes(target)
    recorder = recorder or Recorder()
    return [
        RaisedCalls(),
        DeclaredBounds(),
        MendImports(),
        ShortScans("gpu" in target.keys),
        exclusively(dispatched),
        DropCopies(),
        relax.transform.CanonicalizeBindings(),  # what is dropped leaves aliases, through which no view is seen
        relax.transform.EliminateCommonSubexpr(),  # what PyTorch's linear layers make of one operand, each for itself
        WideOperators(),
        ConstantWeights(),
        ConstantViews(),
        *_quantized(target, config, recorder),
        ComputedWeights([*_legalization(), FoldConstants()]),
        ConstantBatchNorm(),
        *([JoinedProducts()] if target.kind.name == "cuda" and "matmul" not in config.of_tvm else []),
        FusedAttention(target, config, recorder.computed),
        *([DecomposeAttention()] if "matmul" not in config.of_tvm else []),
        TransposedConvolutions("convolution" not in config.of_tvm),
        *_layouts(target, config, recorder),
        SinkPads(),
        CarriedPermutations(),
        SinkReshapes(),
        *([] if "gpu" in target.keys else [UnequalSplits()]),
        *_libraries(target, config, recorder),
        ConstantViews(),
        *stitch_passes(target, config, recorder, scopes, check),
        *([ComputeTemplates(target, config, recorder.computed, check)] if target.kind.name == "llvm" else []),
    ]


def _quantized(target: Any, config: StitchConfig, recorder: Recorder) -> list[Any]:
    """Quantized operands of compute-intensive operators, multiplied as integers where a template does."""
    templates = (
        [QuantizedProducts(target, config, recorder.computed)] if has_templates(target, config) else []
    )
    return [QuantizedViews(), *templates, DequantizedConstants(), ConstantViews()]


def _libraries(target: Any, config: StitchConfig, recorder: Recorder) -> list[Any]:
    """What computes compute-intensive operators on CUDA devices: libraries, and our own kernel of convolutions."""
    if target.kind.name != "cuda":
        return []
    passes = (LibraryMatmuls, OwnConvolutions, LibraryConvolutions)
    return [
        DepthInnermost(_is_called(library.CUBLASLT, config)),
        *(each(target, config, recorder.computed) for each in passes),
    ]


def _is_called(asked: SharedLibrary, config: StitchConfig) -> Callable[[], bool]:
    """Tells whether a library is there; the answer opens it, so only operators that it computes ask."""
    return cache(lambda: library.why_not(asked, config) is None)


def _layouts(target: Any, config: StitchConfig, recorder: Recorder) -> list[Any]:
    """The layouts that templates take, and those in which a library is fastest."""
    if has_templates(target, config) and "convolution" not in config.of_tvm:
        return [ConvolutionLayouts(suits_templates, recorder.computed)]
    if target.kind.name != "cuda" or "convolution" in config.of_tvm:
        return []

    is_called = _is_called(library.CUDNN, config)

    def converts(call: Any, read_last: bool) -> bool:
        return suits_library(config.tf32, call, read_last) and is_called()

    return [
        *_patches(config),
        PhasedConvolutions(is_called, recorder.computed),
        ConvolutionLayouts(converts, recorder.computed),
    ]


def _patches(config: StitchConfig) -> list[Any]:
    """Convolutions whose windows do not overlap as matrix products, unless a library's convolution is asked for."""
    if "matmul" in config.of_tvm or config.compute_of("convolution") != "auto":
        return []
    return [PatchConvolutions(_is_called(library.CUBLASLT, config), config.tf32)]


def _stitch(target: Any, config: StitchConfig, recorder: Recorder, scopes: Scopes | None, check: bool) -> Any:
    """Outline, merge and schedule the stitch ops; scopes that cannot be scheduled are given back whole to TVM."""

    known: dict[Any, Any] = {}

    def passes(attempt: Attempt) -> list[Any]:
        return [
            StitchOps(config, attempt.boundaries, attempt.excluded, attempt.scopes, attempt.left, known),
            MergeStitchOps(),
            ConvolutionEpilogues(target, config),
            ScheduleStitchOps(target, config, attempt.plans, attempt.declined, check),
            LiftWorkspace(),
        ]

    @tvm.transform.module_pass(opt_level=0, name="Stitch")
    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        known.clear()
        result = stitch_module(mod, target, config, recorder, passes, scopes)
        last = {block: found for (block, _excluded), found in known.items()}
        recorder.flows += [flow_of(view, found) for view, found in last.values()]
        return result

    return run


def pipeline(
    target: Any,
    config: StitchConfig | None = None,
    recorder: Recorder | None = None,
    scopes: Scopes | None = None,
    check: bool = True,
) -> Any:
    """A pass for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Where TVM compiles a module only without some of the scopes, these are left to it as well.

    Args:
        target: a Target, or a string that ``tvm.target.Target`` takes.
        config: options; the defaults suit most models.
        recorder: receives plans, refusals and boundaries.
        scopes: those to leave to TVM; receives those that are outlined.
        check: whether each kernel is lowered once, so that one which TVM's lowering fails on is left to TVM.
            ``tvm_stitch.compile`` does that only for a module that fails, and takes less time.

    Raises (the pass):
        StitchError: under ``StitchConfig(strict=True)``, for the first operator or scope that is left to TVM.
        ValueError: when the module is compiled for another kind of target.
    """
    target = resolve_target(target)
    config = checked_config(config)

    @tvm.transform.module_pass(opt_level=0, name="StitchPipeline")
    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        chosen = scopes if scopes is not None else Scopes()
        _check_build(target)
        with target, watched():
            lowered = _compiled(mod, target, config, recorder or Recorder(), chosen, check)
            return tvm.transform.Sequential([EmbedLibraries(target), SerialTasks()])(lowered)

    return run


def _check_build(target: Any) -> None:
    """Refuse to make kernels for another kind of device than the build around the pass is for."""
    building = tvm.target.Target.current(allow_none=True)
    if building is not None and building.kind.name != target.kind.name:
        raise ValueError(
            f"this pipeline is for {target.kind.name}, and the module is compiled for {building.kind.name}: give"
            " pipeline() the target that is given to tvm.compile"
        )


def _compiled(
    mod: tvm.IRModule, target: Any, config: StitchConfig, recorder: Recorder, scopes: Scopes, check: bool
) -> tvm.IRModule:
    before = recorder.copy()

    def lowered(records: Recorder, chosen: Scopes) -> tvm.IRModule:
        backend = backend_of(target)
        passes = [
            *planning_passes(target, config, records, chosen, check),
            *default_schedules(target),
            *backend.dataflow_lower_passes(target),
            *(_with_graphs(each, config) for each in backend.finalize_passes(target)),
        ]
        return tvm.transform.Sequential(passes)(mod)

    try:
        return lowered(recorder, scopes)
    except Exception as err:
        units = list(dict.fromkeys(scopes.outlined.values()))
        found = culprits(units, err, partial(attempt_with, lowered, scopes, units), config)
        recorder.return_to(before)
        if found is None:
            return _without_stitching(mod, target, config, recorder, err)
        fewer = scopes.without(found, STEP)
        scopes.excluded, scopes.outlined = fewer.excluded, {}
        return lowered(recorder, scopes)


def _with_graphs(each: Any, config: StitchConfig) -> Any:
    """A pass of TVM's; the one that makes CUDA graphs under the option that it looks for, where they are asked for."""
    if not config.cuda_graph or each.info.name != "RewriteCUDAGraph":
        return each

    @tvm.transform.module_pass(opt_level=0, name="WithCUDAGraphs")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with changed([], {CUDA_GRAPH: True}):  # instruments that take part twice would lose what they noted
            return each(mod)

    return run


def _without_stitching(
    mod: tvm.IRModule, target: Any, config: StitchConfig, recorder: Recorder, err: Exception
) -> tvm.IRModule:
    """What TVM's own pipeline makes of a module that ours fails on with no stitch op in it; else the error itself."""
    try:
        result = exclusively([stock_pipeline(target)])(mod)
    except Exception as again:
        reraise_fatal(again)
        raise err from None
    raise_where_strict(err, "the model", config.strict)
    recorder.note_target(target)
    recorder.declined["all"] = f"what is left does not compile alone: {reason_of(err, 'the whole model')}"
    return result


def backend_of(target: Any) -> Any:
    """TVM's own pipeline for a target, which names its phases."""
    kind = target.kind.name
    if kind == "cuda":
        from tvm.relax.backend import cuda

        return cuda.pipeline
    if kind in ("llvm", "c"):
        from tvm.relax.backend import cpu_generic

        return cpu_generic.pipeline
    from tvm.relax.backend import gpu_generic

    return gpu_generic.pipeline


def default_schedules(target: Any) -> list[Any]:
    """TVM's schedules for what is not stitched; on CPUs, as in TVM's own pipeline, only what makes it right."""
    if "gpu" not in target.keys:
        return [SoundArithmetic(on_device=False), HalfSums(), EmptyReductions()]
    from tvm.s_tir import dlight as dl

    gpu = dl.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    scheduled = [UnitReductions(), HalfSums(), ApplyDecliningRules(*rules), ScalarBooleans()]
    if target.kind.name != "cuda":  # what the other two write is CUDA C
        return scheduled
    return [SoundArithmetic(on_device=True), *scheduled, EmptyGrids()]
