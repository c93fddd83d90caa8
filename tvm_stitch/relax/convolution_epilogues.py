# SPDX-License-Identifier: Apache-2.0
"""ConvolutionEpilogues: a stitch op that is element-wise on a convolution of ours is computed in its kernel.

Runs where stitch ops are merged, and not scheduled yet. A convolution whose sums are divided has none: the stitched
kernel behind it adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from ..compute.cuda_convolution import KernelOf, cuda_convolution
from ..compute.cuda_epilogue import Epilogue, epilogue_of
from ..failures import Refusal
from ..graph.extent import product
from ..graph.ir import StitchGraph
from ..graph.reader import Unreadable, read
from ..module_pass import module_pass
from ..plan import heuristics
from .dataflow import call_args, is_call_tir, result_types
from .functions import own_functions
from .own_convolutions import CONVOLUTION_ATTR
from .planned_rewriter import PlannedRewriter
from .readers import only_reader_inside, readers_of
from .stitch_ops import STITCH_ATTR


@dataclass(frozen=True)
class Fused:
    """A call of a stitch op that becomes the epilogue of a call of a convolution.

    Attributes:
        convolution: that call.
        of: what its kernel is compiled for.
        epilogue: what the stitch op computes.
        positions: of the epilogue's operands among the stitch op's arguments.
    """

    convolution: Any
    of: KernelOf
    epilogue: Epilogue
    positions: tuple[int, ...]


@module_pass
class ConvolutionEpilogues:
    """Let a convolution's kernel compute the stitch op that alone reads its result, where that is element-wise."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Fuse them, and drop the functions that nothing calls any more."""
        kernels = {
            gvar: KernelOf.from_numbers([int(n) for n in func.attrs[CONVOLUTION_ATTR]])
            for gvar, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and func.attrs and CONVOLUTION_ATTR in func.attrs
        }
        kernels = {gvar: of for gvar, of in kernels.items() if not of.has_splits}
        if not kernels:
            return mod
        finder = _Finder(mod, kernels)
        plans = {gvar: finder.plans(func) for gvar, func in own_functions(mod)}
        return _Rewriter(mod).rewritten(plans) if any(plans.values()) else mod


class _Finder:
    def __init__(self, mod: tvm.IRModule, kernels: dict[Any, KernelOf]):
        self.mod, self.kernels = mod, kernels
        self.graphs: dict[Any, StitchGraph | None] = {}

    def plans(self, func: Any) -> dict[Any, Fused]:
        """By variable of a stitch op's result, what computes it. Of several convolutions the last one does."""
        readers = readers_of(func)
        found: dict[Any, Fused] = {}
        for block in func.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                continue
            for binding in block.bindings:
                if not is_call_tir(binding.value) or binding.value.args[0] not in self.kernels:
                    continue
                reader = only_reader_inside(readers, binding.var)
                if reader is None or not is_call_tir(reader.value):
                    continue
                fused = self._fused(binding, reader.value)
                if fused is not None:
                    found[reader.var] = fused
        return found

    def _fused(self, binding: Any, call: Any) -> Fused | None:
        graph = self._graph(call.args[0])
        args, scalars = call_args(call)
        if graph is None or scalars or len(call.args) > 2 or len(graph.inputs) != len(args):
            return None
        at = [position for position, arg in enumerate(args) if arg.same_as(binding.var)]
        try:
            epilogue = epilogue_of(graph, graph.inputs[at[0]])
        except Refusal:
            return None
        positions = tuple(graph.inputs.index(tensor) for tensor, _ in epilogue.operands)
        return Fused(binding.value, self.kernels[binding.value.args[0]], epilogue, positions)

    def _graph(self, gvar: Any) -> StitchGraph | None:
        """What a stitch op computes; None for other functions."""
        if gvar not in self.graphs:
            func = self.mod[gvar]
            is_stitched = func.attrs and STITCH_ATTR in func.attrs
            try:
                self.graphs[gvar] = read(func, gvar.name_hint) if is_stitched else None
            except Unreadable:
                self.graphs[gvar] = None  # its own kernel is refused with the reason
        return self.graphs[gvar]


@mutator
class _Rewriter(PlannedRewriter):
    def replaced(self, plan: Fused, call: Any) -> Any:
        args, _ = call_args(call)
        images = product(plan.epilogue.product.shape[2:])
        lanes = (
            heuristics.EPILOGUE_LANES
            if isinstance(images, int) and images % heuristics.EPILOGUE_LANES == 0
            else 1
        )
        name = f"convolution_{call.args[0].name_hint.removeprefix('stitch_')}"
        kernel = self.builder_.add_func(cuda_convolution(plan.of, plan.epilogue, lanes), name)
        given = [*call_args(plan.convolution)[0], *(args[position] for position in plan.positions)]
        types = result_types(call)
        return relax.call_tir(
            kernel,
            relax.Tuple([self.visit_expr(arg) for arg in given]),
            types if isinstance(call.ty_args[0], relax.TupleType) else types[0],
        )
