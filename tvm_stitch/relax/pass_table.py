# SPDX-License-Identifier: Apache-2.0
"""The passes of the compilation pipeline with stitching, as a table of phases.

Each phase is a list of rows. A row has a pass, what it does, when it runs, and the rows that must have run before, with
the reason. The module :mod:`.pipeline` runs this table. ``tvm-stitch explain --passes`` prints it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relax

from ..compute.templates import has_templates
from ..repairs.imports.derived_inputs import DerivedInputs
from ..repairs.imports.kept_bounds import KeptBounds
from ..repairs.legalize.declared_bounds import DeclaredBounds
from ..repairs.legalize.empty import SkipEmpty
from ..repairs.legalize.fuse_rest import FuseRest
from ..repairs.legalize.keep_zeros import KeepZeros
from ..repairs.legalize.mend import MendImports
from ..repairs.legalize.plain_extents import PlainExtents
from ..repairs.legalize.raised_calls import RaisedCalls
from ..repairs.legalize.wide_operators import RoundedOnce, WideOperators
from ..repairs.schedule.declining import ApplyDecliningRules
from ..repairs.schedule.empty_grids import EmptyGrids
from ..repairs.schedule.empty_reductions import EmptyReductions
from ..repairs.schedule.half_sums import HalfSums
from ..repairs.schedule.scalar_booleans import ScalarBooleans
from ..repairs.schedule.sound_arithmetic import SoundArithmetic
from ..repairs.schedule.unit_reductions import UnitReductions
from ..support.one_at_a_time import exclusively
from .attention.decompose import DecomposeAttention
from .attention.fused import FusedAttention
from .backend import backend_of, with_graphs
from .constants.batch_norm import ScaledBatchNorm
from .constants.computed_weights import ComputedWeights
from .constants.divided_products import DividedProducts
from .constants.fold import FoldConstants
from .constants.pointwise_convolutions import PointwiseConvolutions
from .constants.views import ConstantViews
from .constants.weights import ConstantWeights
from .few_rows.chosen_products import ChosenProducts
from .few_rows.product_columns import ProductColumns
from .few_rows.product_sums import ProductSums
from .few_rows.short_products import ShortProducts
from .few_rows.weights import dense_rows
from .few_rows.whole_products import WholeProducts
from .fourier.kernels import FourierTransforms
from .in_place.stores import StoredRows
from .layout.convolutions import ConvolutionLayouts
from .layout.copies import DropCopies
from .layout.narrow_moves import NarrowMoves
from .layout.padded_taps import PaddedTaps
from .layout.pads import SinkPads
from .layout.permutations import PropagatePermutations
from .layout.permuted_reshapes import PermutedReshapes
from .layout.phased_convolutions import PhasedConvolutions
from .layout.reshapes import SinkReshapes
from .layout.sunk_permutations import SinkPermutations
from .layout.unequal_splits import UnequalSplits
from .layout.unit_axes import UnitAxes
from .layout.viewed_results import ViewedResults
from .legalize.empty_calls import EmptyCalls
from .legalize.few_largest import FewLargest
from .legalize.operators import legalize, legalize_weights
from .legalize.selections import Selections
from .legalize.short_reductions import ShortReductions
from .legalize.short_scans import ShortScans
from .legalize.transposed_convolutions import TransposedConvolutions
from .legalize.widening_casts import WideningCasts
from .library.calls import has_cublaslt, has_cudnn, suits_cudnn
from .library.convolution_epilogues import ConvolutionEpilogues
from .library.convolutions import LibraryConvolutions, is_computed
from .library.depthwise_convolutions import DepthwiseConvolutions
from .library.joined_matmuls import JoinedProducts
from .library.matmuls import LibraryMatmuls
from .library.own_convolutions import OwnConvolutions
from .library.patch_convolutions import PatchConvolutions
from .library.reduction_innermost import ReductionInnermost
from .loops.recurrent_layers import RecurrentLayers
from .loops.written_out_layers import WrittenOutLayers
from .lowering.embed_libraries import EmbedLibraries
from .lowering.identifiers import FunctionNames, VariableNames
from .lowering.inlined_chains import InlinedChains
from .lowering.launch_regions import LaunchRegions
from .lowering.serial_tasks import SerialTasks
from .phases import Condition, Phase, Row
from .precision.rounded_convolutions import RoundedConvolutions
from .quantize.dequantized_constants import DequantizedConstants
from .quantize.products import QuantizedProducts
from .quantize.views import QuantizedViews
from .retry import stitched_without_failing_scopes
from .rewriting.templates import suits_templates
from .stitch.compute_templates import ComputeTemplates
from .stitch.lift_workspace import LiftWorkspace
from .stitch.mark import MergeStitchOps, UnmarkEpilogues
from .stitch.schedule_stitch_ops import ScheduleStitchOps
from .stitch.stitch_ops import StitchOps

GPUS = Condition("GPUs", lambda c: c.is_gpu)
CPUS = Condition("CPUs", lambda c: not c.is_gpu)
CUDA = Condition("CUDA", lambda c: c.kind == "cuda")
LLVM = Condition("LLVM", lambda c: c.kind == "llvm")
TEXT = Condition("C or CUDA C", lambda c: c.kind != "llvm")
TEMPLATES = Condition("templates", lambda c: has_templates(c.target, c.config))
MATMULS = Condition("matmuls are not TVM's", lambda c: not c.leaves("matmul"))
CONVOLUTIONS = Condition("convolutions are not TVM's", lambda c: not c.leaves("convolution"))
NO_CUDNN_ASKED = Condition("compute=auto", lambda c: c.config.compute_of("convolution") == "auto")


# fmt: off
IMPORT_REPAIR = Phase("import-repair", "what importers emit becomes what TVM and the later passes expect", (
    Row("FunctionNames", lambda c: FunctionNames(), "Give functions names that are identifiers.", TEXT),
    Row("RaisedCalls", lambda c: RaisedCalls(), "Turn functions that an importer made of operators into operators."),
    Row("PlainExtents", lambda c: PlainExtents(), "Write extents with operators that TVM's passes know."),
    Row("DerivedInputs", lambda c: DerivedInputs(), "Compute symbols that parameters have in expressions only."),
    Row("DeclaredBounds", lambda c: DeclaredBounds(),
        "Simplify shapes with the bounds that a function declares of its symbols."),
    Row("MendImports", lambda c: MendImports(), "Rewrite imported calls that TVM miscompiles or does not compile."),
    Row("EmptyCalls", lambda c: EmptyCalls(), "Give operators over tensors without elements their constant results.",
        after={"MendImports": "it recognises slices that have no elements"}),
    Row("WrittenOutLayers", lambda c: WrittenOutLayers(c.target, c.config),
        "Find the recurrent layers whose steps a model writes one after the other.", LLVM | CUDA),
    Row("RecurrentLayers", lambda c: RecurrentLayers(c.target, c.config),
        "Compute recurrent layers by one kernel on CPUs and GPUs with clusters, and by loops elsewhere.",
        after={"WrittenOutLayers": "it makes layers of steps"}),
    Row("FourierTransforms", lambda c: FourierTransforms(c.target, c.config),
        "Compute Fourier transforms by one kernel on CPUs, and by matmuls elsewhere."),
    Row("ShortScans", lambda c: ShortScans(c.device), "Write running sums and products of short rows as reductions."),
    Row("FewLargest", lambda c: FewLargest(c.device, c.kind == "cuda"),
        "Take a few of the largest elements of rows by reductions.",
        after={"MendImports": "it writes one element of a row as a maximum"}),
    Row("Selections", lambda c: Selections(c.target, c.config), "Take up to 64 of the largest elements by one kernel.",
        after={"FewLargest": "a reduction can be stitched"}),
    Row("DispatchScans", lambda c: exclusively(backend_of(c.target).library_dispatch_passes(c.target), "DispatchScans"),
        "Let TVM choose kernels for scans, sorting and sampling.",
        after={"ShortScans": "a scan that is dispatched can no longer be stitched",
               "Selections": "a sort that is dispatched is TVM's"}),
    Row("UnitAxes", lambda c: UnitAxes(), "Write transpositions of axes of extent 1 as reshapes."),
    Row("DropCopies", lambda c: DropCopies(), "Drop operators that return their operand unchanged.",
        after={"UnitAxes": "a reshape may return its operand where a transposition did not"}),
    Row("CanonicalizeBindings.copies", lambda c: relax.transform.CanonicalizeBindings(),
        "Drop the aliases that stand for dropped copies.",
        after={"DropCopies": "a dropped operator leaves an alias, through which no later pass sees a view"}),
    Row("EliminateCommonSubexpr", lambda c: relax.transform.EliminateCommonSubexpr(),
        "Compute equal expressions once, such as the reshapes of one operand of several linear layers.",
        after={"CanonicalizeBindings.copies": "operands that are equal but for an alias count as different"}),
    Row("WideOperators", lambda c: WideOperators(),
        "Compute operators in float32 that TVM does not lower for bfloat16."),
))

CONSTANTS = Phase("constants", "weights become constants, because templates and libraries pack only those", (
    Row("ConstantWeights", lambda c: ConstantWeights(c.device.choices),
        "Make constants of weights that a model fills with one value.",
        after={"DropCopies": "a weight that is copied for each batch is not seen as a weight"}),
    Row("ConstantViews.weights", lambda c: ConstantViews(), "Fold views and casts of constants with NumPy.",
        after={"ConstantWeights": "views of the new constants are folded too"}),
))

QUANTIZATION = Phase("quantization", "quantized operands stay integers where a kernel multiplies integers", (
    Row("QuantizedViews", lambda c: QuantizedViews(), "Move quantized elements instead of dequantized ones."),
    Row("QuantizedProducts", lambda c: QuantizedProducts(c.target, c.config),
        "Compute matmuls and convolutions of dequantized integers by their integers.", TEMPLATES,
        after={"ConstantViews.weights": "a quantized weight that is transposed must be a constant",
               "QuantizedViews": "a view between an operand and its dequantization hides the integers"}),
    Row("DequantizedConstants", lambda c: DequantizedConstants(), "Dequantize the other constants with NumPy.",
        after={"QuantizedProducts": "a weight that is dequantized has no integers to multiply"}),
    Row("ConstantViews.dequantized", lambda c: ConstantViews(), "Fold views and casts of dequantized constants.",
        after={"DequantizedConstants": "it makes the constants"}),
))

COMPUTED_CONSTANTS = Phase("computed-constants", "what a model computes from constants alone becomes constants", (
    Row("ComputedWeights", lambda c: ComputedWeights([*legalize_weights(), FoldConstants()], c.device.choices),
        "Compute weights, masks and tables that depend on constants alone.",
        after={"quantization": "a quantized weight that is computed to floats has no integers to multiply"}),
    Row("ScaledBatchNorm", lambda c: ScaledBatchNorm(), "Write a batch norm at inference as a scale and a shift.",
        after={"ComputedWeights": "parameters that the model computes must be constants"}),
))

ATTENTION = Phase("attention", "attention becomes one kernel, or matmuls and a softmax", (
    Row("JoinedProducts", lambda c: JoinedProducts(), "Join matmuls of one operand with several constant weights.",
        CUDA & MATMULS,
        after={"EliminateCommonSubexpr": "matmuls are joined whose operands are the same variable",
               "computed-constants": "only constant weights are joined"}),
    Row("FusedAttention", lambda c: FusedAttention(c.target, c.config), "Compute attention in one kernel.",
        after={"JoinedProducts": "the kernel reads queries, keys and values where the joined matmul puts them"}),
    Row("DecomposeAttention", lambda c: DecomposeAttention(), "Write other attention out as matmuls and a softmax.",
        MATMULS, after={"FusedAttention": "only attention that has no kernel is written out"}),
))

LAYOUTS = Phase("layouts", "convolutions get the fastest layout, and few elements are moved", (
    Row("PaddedTaps", lambda c: PaddedTaps(), "Drop the taps of convolutions that read padding only.",
        after={"computed-constants": "a weight whose taps are dropped must be a constant"}),
    Row("TransposedConvolutions", lambda c: TransposedConvolutions(not c.leaves("convolution")),
        "Write transposed convolutions as convolutions or matmuls where they are such.",
        after={"computed-constants": "a weight is reversed when the model is compiled, so it must be a constant"}),
    Row("PatchConvolutions", lambda c: PatchConvolutions(has_cublaslt(c.config), c.device.choices, c.config.tf32),
        "Write convolutions whose windows do not overlap as matmuls.", CUDA & MATMULS & CONVOLUTIONS & NO_CUDNN_ASKED),
    Row("RoundedConvolutions", lambda c: RoundedConvolutions(has_cudnn(c.config), partial(is_computed, c.target)),
        "Let convolutions of half types store half results that are rounded anyway.", CUDA & CONVOLUTIONS,
        after={"computed-constants": "the bias in between must be a constant"}),
    Row("PhasedConvolutions", lambda c: PhasedConvolutions(has_cudnn(c.config), c.device.choices),
        "Write strided transposed convolutions as convolutions with more channels.", CUDA & CONVOLUTIONS,
        after={"TransposedConvolutions": "those of stride 1 are convolutions already"}),
    Row("ConvolutionLayouts.templates",
        lambda c: ConvolutionLayouts(suits_templates, constant=not c.config.packed_arguments),
        "Put channels innermost for convolutions that a template computes.", TEMPLATES & CONVOLUTIONS,
        after={"TransposedConvolutions": "the convolutions that it makes have layouts too",
               "computed-constants": "weights that depend on constants alone are packed when the model is compiled"}),
    Row("ConvolutionLayouts.library", lambda c: ConvolutionLayouts(suits_cudnn(c.config)),
        "Put channels innermost for convolutions that cuDNN computes faster so.", CUDA & CONVOLUTIONS,
        after={"TransposedConvolutions": "the convolutions that it makes have layouts too",
               "RoundedConvolutions": "cuDNN computes no convolution of half types with float32 results",
               "PatchConvolutions": "what is a matmul needs no layout of channels",
               "PhasedConvolutions": "the convolutions that it makes have layouts too",
               "computed-constants": "only convolutions of constant weights are converted"}),
    Row("SinkPads", lambda c: SinkPads(), "Transpose a tensor before its border is added.",
        after={"ConvolutionLayouts.templates": "the conversion stops at pads and leaves transpositions there",
               "ConvolutionLayouts.library": "the conversion stops at pads and leaves transpositions there"}),
    Row("SinkPermutations", lambda c: SinkPermutations(c.device.choices),
        "Transpose what is reduced of a tensor, not the tensor.", GPUS,
        after={"ConvolutionLayouts.library": "the conversion stops at reshapes and leaves transpositions there"}),
    Row("NarrowMoves", lambda c: NarrowMoves(), "Round elements before they are moved."),
    Row("PermutedReshapes", lambda c: PermutedReshapes(c.device.choices),
        "Let transpositions meet that a reshape separates.",
        after={"ConvolutionLayouts.templates": "the conversion stops at reshapes and leaves transpositions there",
               "ConvolutionLayouts.library": "the conversion stops at reshapes and leaves transpositions there",
               "SinkPermutations": "it sinks transpositions that lie in front of reshapes",
               "NarrowMoves": "a cast in front of a matmul hides what moves its operand"}),
    Row("PropagatePermutations", lambda c: PropagatePermutations(c.device.choices),
        "Choose the order of axes of connected element-wise operators that moves the fewest bytes.",
        after={"ConvolutionLayouts.templates": "the conversion carries layouts forwards only",
               "ConvolutionLayouts.library": "the conversion carries layouts forwards only",
               "SinkPads": "a transposition in front of a pad can join the operators that make the tensor",
               "SinkPermutations": "a transposition that is sunk meets the one of the next convolution",
               "PermutedReshapes": "transpositions on both sides of a reshape are dropped, or join one group"}),
    Row("DividedProducts", lambda c: DividedProducts(c.device.choices),
        "Write products whose channels are divided for convolutions as products of some channels.",
        CUDA & MATMULS & CONVOLUTIONS & NO_CUDNN_ASKED,
        after={"PropagatePermutations": "it looks for convolutions with channels last"}),
    Row("PointwiseConvolutions",
        lambda c: PointwiseConvolutions(has_cublaslt(c.config), c.device.choices, c.config.scaled_weights),
        "Write convolutions of one position as matmuls that compute the bias, residual and ReLU behind them.",
        CUDA & MATMULS & CONVOLUTIONS & NO_CUDNN_ASKED,
        after={"ConvolutionLayouts.library": "with channels last, positions are rows of a matrix",
               "PropagatePermutations": "a residual is read that has channels last",
               "DividedProducts": "a product of some channels may be a matmul",
               "ScaledBatchNorm": "a batch norm is a scale and a shift"}),
    Row("SinkReshapes", lambda c: SinkReshapes(), "Compute element-wise operators before a matmul is reshaped."),
    Row("UnequalSplits", lambda c: UnequalSplits(), "Write the parts of unequal splits as slices.", CPUS),
))

LIBRARIES = Phase("libraries", "compute-intensive operators become calls of libraries and of hand-written kernels", (
    Row("ReductionInnermost",
        lambda c: ReductionInnermost(has_cublaslt(c.config), partial(dense_rows, c.device, c.config)),
        "Store constant weights of half types with the reduction dimension innermost.", CUDA),
    Row("ChosenProducts", lambda c: ChosenProducts(),
        "Write products of one row by chosen matrices, such as those of experts, as sums.", GPUS & MATMULS),
    Row("ShortProducts", lambda c: ShortProducts(c.device.choices, c.device.is_gpu),
        "Write products of many vectors by a small matrix as element-wise operators.", (GPUS | LLVM) & MATMULS,
        after={"attention": "attention is recognised by its matmuls"}),
    Row("LibraryMatmuls", lambda c: LibraryMatmuls(c.target, c.config), "Let cuBLASLt compute matmuls.",
        CUDA,
        after={"attention": "attention is recognised by its matmuls",
               "ShortProducts": "an element-wise operator is stitched",
               "ChosenProducts": "a library reads a copy of the chosen matrices",
               "ReductionInnermost": "the library reads a weight through the transposition that is put there",
               "SinkReshapes": "a bias, a residual or ReLU is computed with the matmul that it follows directly",
               "PatchConvolutions": "it makes matmuls"}),
    Row("DepthwiseConvolutions", lambda c: DepthwiseConvolutions(c.target, c.config),
        "Compute depthwise convolutions by a kernel of this package.", CUDA,
        after={"layouts": "the kernel depends on it"}),
    Row("OwnConvolutions", lambda c: OwnConvolutions(c.target, c.config),
        "Compute exact float32 convolutions by a kernel of this package.", CUDA),
    Row("LibraryConvolutions", lambda c: LibraryConvolutions(c.target, c.config),
        "Let cuDNN compute the other convolutions.", CUDA,
        after={"OwnConvolutions": "cuDNN gets the convolutions that the kernel of this package does not take",
               "DepthwiseConvolutions": "the same",
               "ConvolutionLayouts.library": "the call fixes the layout"}),
    Row("ConstantViews.layouts", lambda c: ConstantViews(), "Fold the transpositions of constants that are left.",
        after={"layouts": "they transpose weights",
               "ReductionInnermost": "cuBLASLt does not take every matmul whose weight is transposed"}),
))

LEGALIZATION = Phase("legalization", "operators become calls of functions, in dataflow blocks", (
    Row("KeepZeros", lambda c: KeepZeros(), "Keep products with a constant zero, which are NaN for infinite operands."),
    Row("ShortReductions", lambda c: ShortReductions(c.device.choices),
        "Add up a few elements far apart in memory as an element-wise operator does.", GPUS,
        after={"layouts": "the layout says which elements are neighbours"}),
    Row("RoundedOnce", lambda c: RoundedOnce(),
        "Compute operators of half types in float32 if TVM rounds values within them."),
    Row("Legalize", lambda c: legalize("Legalize"), "Make a function of every operator that is left.",
        after={"KeepZeros": "TVM's legalization folds x * 0 to 0",
               "import-repair": "TVM's legalization fails on calls that are not mended",
               "attention": "the passes recognise operators, not functions",
               "layouts": "the passes recognise operators, not functions",
               "libraries": "the passes recognise operators, not functions"}),
    Row("SkipEmpty", lambda c: SkipEmpty(), "Drop calls that compute no elements.",
        after={"Legalize": "it looks at the functions that calls name"}),
    Row("AnnotateTIROpPattern", lambda c: relax.transform.AnnotateTIROpPattern(),
        "Mark each function with its kind, such as element-wise.", after={"Legalize": "it looks at functions"}),
    Row("FoldConstants", lambda c: FoldConstants(), "Compute calls of constants.",
        after={"AnnotateTIROpPattern": "a marked function is computed once for a constant of one value"}),
    Row("ConvertToDataflow", lambda c: relax.transform.ConvertToDataflow(min_size=1),
        "Put calls without side effects into dataflow blocks."),
    Row("CanonicalizeBindings.legalized", lambda c: relax.transform.CanonicalizeBindings(), "Drop aliases.",
        after={"ConvertToDataflow": "aliases are dropped in the new blocks as well"}),
    Row("WideningCasts", lambda c: WideningCasts(), "Give each reader of a widened value a cast of its own.",
        after={"AnnotateTIROpPattern": "casts are copied for readers that are marked as element-wise"}),
    Row("ProductColumns", lambda c: ProductColumns(c.device, c.config),
        "Compute the slices of products of few rows as products of some of their columns.", MATMULS,
        after={"Legalize": "it looks at the functions of products and of slices"}),
    Row("ProductSums", lambda c: ProductSums(c.device, c.config),
        "Write products of few rows as sums, which stitch ops may take.", MATMULS,
        after={"Legalize": "it looks at the functions of products and of what makes their weights",
               "ProductColumns": "slices of sums are no products",
               "FoldConstants": "a weight that is a constant is not dequantized"}),
    Row("InlinedChains", lambda c: InlinedChains(c.device.choices),
        "Bound what TVM's schedules inline into one kernel.", GPUS,
        after={"WideningCasts": "it looks for functions that are marked as element-wise"}),
    Row("ViewedResults", lambda c: ViewedResults(), "Make views of results that are reshapes of what a kernel makes.",
        after={"ConvertToDataflow": "TVM makes views inside dataflow blocks only",
               "CanonicalizeBindings.legalized": "it would undo this pass"}),
))

STITCHING = Phase("stitching", "memory-intensive operators become stitch ops; again without the scopes that fail", (
    Row("StitchOps", lambda c: StitchOps(c.config), "Make a function of each stitch scope, and of each epilogue.",
        after={"ConvertToDataflow": "scopes are parts of dataflow blocks",
               "CanonicalizeBindings.legalized": "an alias would divide a scope",
               "WideningCasts": "scopes exchange narrow values"}),
    Row("MergeStitchOps", lambda c: MergeStitchOps(), "Merge the functions of each scope into one function of TIR.",
        after={"StitchOps": "it makes the functions"}),
    Row("ConvolutionEpilogues", lambda c: ConvolutionEpilogues(c.target, c.config),
        "Compute element-wise stitch ops in the kernels of convolutions of this package.",
        after={"MergeStitchOps": "it reads the merged functions",
               "OwnConvolutions": "it makes the calls of these kernels",
               "DepthwiseConvolutions": "the same"}),
    Row("ScheduleStitchOps", lambda c: ScheduleStitchOps(c.target, c.config, c.check),
        "Plan each stitch op, and emit its kernel.",
        after={"MergeStitchOps": "a plan is made for the merged function",
               "ConvolutionEpilogues": "a stitch op in a convolution's kernel needs no kernel"}),
    Row("LiftWorkspace", lambda c: LiftWorkspace(), "Let TVM's memory planner place the scratch memory of kernels.",
        after={"ScheduleStitchOps": "plans say how much scratch memory a kernel needs"}),
), together=stitched_without_failing_scopes)

REMAINDER = Phase("remainder", "TVM fuses the operators that no scope takes", (
    Row("StoredRows", lambda c: StoredRows(), "Store rows of an argument in place by the kernels that compute them.",
        after={"stitching": "stitched kernels store the rows"}),
    Row("WholeProducts", lambda c: WholeProducts(), "Compute products as they were whose sums no scope took.",
        after={"stitching": "scopes take the sums"}),
    Row("FuseRest", lambda c: FuseRest(), "Group the other calls as TVM's FuseOps does.",
        after={"AnnotateTIROpPattern": "TVM fuses by these marks",
               "stitching": "TVM gets what no scope takes"}),
    Row("FuseTIR", lambda c: relax.transform.FuseTIR(), "Merge each group into one function of TIR.",
        after={"FuseRest": "it makes the groups"}),
    Row("UnmarkEpilogues", lambda c: UnmarkEpilogues(), "Drop the marks of functions with epilogues.",
        after={"FuseRest": "the marks keep TVM from fusing more into these functions"}),
    Row("DeadCodeElimination", lambda c: relax.transform.DeadCodeElimination(), "Drop functions that nothing calls.",
        after={"FuseTIR": "it leaves the functions that it merged"}),
))

TEMPLATE_KERNELS = Phase("templates", "matmuls and convolutions of a CPU become template kernels", (
    Row("ComputeTemplates", lambda c: ComputeTemplates(c.target, c.config, c.check),
        "Emit template kernels for matmuls and convolutions with their epilogues, and pack weights.", LLVM,
        after={"FuseTIR": "the epilogue must be part of the function",
               "DeadCodeElimination": "no kernel is made for a function that nothing calls"}),
))

SCHEDULES = Phase("schedules", "the functions that are neither stitched nor templates are made right, and scheduled", (
    Row("SoundArithmetic", lambda c: SoundArithmetic(on_device=c.is_gpu),
        "Write comparisons and maxima so that TVM's simplifier keeps NaN.", CPUS | CUDA),
    Row("UnitReductions", lambda c: UnitReductions(), "Write reductions of one element as assignments.", GPUS),
    Row("HalfSums", lambda c: HalfSums(), "Add 16-bit floats up in float32."),
    Row("ApplyDecliningRules", lambda c: ApplyDecliningRules(*_dlight_rules()),
        "Schedule by dlight's rules; the next rule is asked where one fails.", GPUS,
        after={"SoundArithmetic": "it rewrites functions without a schedule",
               "UnitReductions": "it rewrites functions without a schedule",
               "HalfSums": "it rewrites functions without a schedule",
               "remainder": "TVM's fusion works on functions without a schedule"}),
    Row("ScalarBooleans", lambda c: ScalarBooleans(), "Read and write booleans one by one.", GPUS,
        after={"ApplyDecliningRules": "dlight's kernels load pairs of booleans"}),
    Row("EmptyReductions", lambda c: EmptyReductions(), "Begin reductions before their loops, which may be empty.",
        CPUS),
    Row("EmptyGrids", lambda c: EmptyGrids(), "Let threads leave kernels that have nothing to compute.", CUDA,
        after={"ApplyDecliningRules": "it looks at the grids of scheduled kernels"}),
))

LOWERING = Phase("lowering", "TVM's own lowering of Relax", (
    Row("KeptBounds", lambda c: KeptBounds(), "Check that sizes are not above those that a function declares."),
    Row("LowerDataflow",
        lambda c: tvm.transform.Sequential(backend_of(c.target).dataflow_lower_passes(c.target), name="LowerDataflow"),
        "Make views of reshapes, and calls with outputs as arguments.",
        after={"stitching": "scopes are parts of dataflow blocks",
               "templates": "template kernels take the place of functions in dataflow blocks"}),
    Row("Finalize",
        lambda c: tvm.transform.Sequential(
            with_graphs(backend_of(c.target).finalize_passes(c.target), c.config), name="Finalize"),
        "Plan memory, capture CUDA graphs, and lower shapes and built-in functions.",
        after={"LowerDataflow": "memory is planned for calls with outputs as arguments",
               "LiftWorkspace": "scratch memory is planned too"}),
))

LINKING = Phase("linking", "the module gets what its executable needs", (
    Row("EmbedLibraries", lambda c: EmbedLibraries(c.target), "Attach the compiled code that calls libraries.",
        after={"libraries": "it looks for their calls"}),
    Row("SerialTasks", lambda c: SerialTasks(), "Let loops over tasks run serially where a call has little work.",
        after={"schedules": "it adds functions that no other pass may see",
               "lowering": "it adds functions that no other pass may see"}),
    Row("LaunchRegions", lambda c: LaunchRegions(c.target, c.config),
        "Let this package's launcher run parallel regions.", LLVM,
        after={"SerialTasks": "it copies parallel loops"}),
    Row("VariableNames", lambda c: VariableNames(), "Give variables and buffers names that are identifiers.", TEXT,
        after={"schedules": "schedules make variables", "lowering": "a model's names reach functions as late as here"}),
))
# fmt: on

STITCH = (LEGALIZATION, STITCHING, REMAINDER)
PLANNING = (
    IMPORT_REPAIR, CONSTANTS, QUANTIZATION, COMPUTED_CONSTANTS, ATTENTION, LAYOUTS, LIBRARIES, *STITCH, TEMPLATE_KERNELS
)  # fmt: skip
STITCHED = PLANNING[: PLANNING.index(STITCHING) + 1]
LOWERED = (*PLANNING, SCHEDULES, LOWERING)
PHASES = (*LOWERED, LINKING)
"""The whole pipeline."""


def _dlight_rules() -> list[Any]:
    from tvm.s_tir.dlight import gpu

    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]
