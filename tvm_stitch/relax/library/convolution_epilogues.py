# SPDX-License-Identifier: Apache-2.0
"""ConvolutionEpilogues: let our convolution kernels compute stitch ops that are element-wise on their results.

Runs when stitch ops are merged, and not scheduled yet. If a convolution's sums are split, a stitch op adds them up.
If it is otherwise element-wise, the convolution's kernel does both, behind a barrier of a cluster or of the grid.
Kernels of depthwise convolutions split no sums, and round their results behind the epilogue only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ...compute.cuda.convolution import KernelOf, cuda_convolution, tiles_of
from ...compute.cuda.convolution_plan import are_clusters
from ...compute.cuda.depthwise import DepthwiseKernel, cuda_depthwise
from ...compute.cuda.epilogue import Epilogue, components, epilogue_of, without_sum
from ...compute.cuda.splits import ByCluster, ByGrid
from ...config import StitchConfig, checked_config
from ...device import DeviceModel, device_model
from ...graph.ir import StitchGraph
from ...graph.reader import Unreadable, read
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ...target import resolve_target
from ..rewriting.functions import own_functions
from ..rewriting.readers import only_reader_inside, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import call_args, is_call_tir, result_types
from ..stitch.stitch_ops import STITCH_ATTR
from .depthwise_convolutions import DEPTHWISE_ATTR
from .own_convolutions import CONVOLUTION_ATTR, has_barriers, lanes_of


@dataclass(frozen=True)
class Convolved:
    """A convolution whose result only a stitch op reads: its call, and its kernel's parameters."""

    call: Any
    of: KernelOf | DepthwiseKernel

    @property
    def has_splits(self) -> bool:
        """Return whether the kernel splits sums."""
        return isinstance(self.of, KernelOf) and self.of.has_splits


@dataclass(frozen=True)
class Adding:
    """The ways in which convolution kernels add up split sums.

    Attributes:
        device: the device that runs the kernels.
        barriers: whether barriers across a grid are allowed.
    """

    device: DeviceModel
    barriers: bool

    def can(self, convolution: Convolved) -> bool:
        """Return whether the convolution's kernel can process its result further."""
        return not convolution.has_splits or self.by(convolution) is not None

    def by(self, convolution: Convolved) -> ByCluster | ByGrid | None:
        """Return how the convolution's kernel adds up its splits, or None if it has none, or cannot."""
        of = convolution.of
        if not isinstance(of, KernelOf) or not of.has_splits:
            return None
        (result,) = result_types(convolution.call)
        divided = [int(extent) for extent in result.shape]
        splits, tiles = divided[0], tiles_of(of, divided[1:])
        if are_clusters(tiles, splits, self.device):
            return ByCluster(splits)
        blocks = tiles * splits
        if not self.barriers or blocks > of.resident * self.device.sms:
            return None
        return ByGrid.of(
            self.device, divided, lanes_of(divided[3:], self.device.choices), blocks * of.tile.threads
        )


@dataclass(frozen=True)
class Part:
    """Results of a stitch op that a convolution's kernel computes.

    Attributes:
        convolution: the convolution.
        epilogue: computes the results from the convolution's result, or None if they are the same.
        outputs: their numbers among the stitch op's outputs.
        positions: the epilogue's operands, as positions among the stitch op's arguments.
    """

    convolution: Convolved
    epilogue: Epilogue | None
    outputs: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Fused:
    """A call of a stitch op that convolution kernels compute.

    Attributes:
        parts: all results of the call.
        divided: other convolutions whose sums are split, by their position among the stitch op's arguments.
    """

    parts: tuple[Part, ...]
    divided: dict[int, Convolved]


@module_pass
class ConvolutionEpilogues:
    """Let convolution kernels compute a stitch op that is element-wise on results that only it reads.

    Takes the target and the options with which :class:`.own_convolutions.OwnConvolutions` made the kernels.
    """

    def __init__(self, target: Any, config: StitchConfig | None = None):
        config = checked_config(config)
        device = device_model(resolve_target(target), config).configured(config)
        self.adding = Adding(device, has_barriers(config, device))

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Fuse stitch ops into convolution kernels, and drop the functions that are no longer called."""
        kernels = {
            gvar: kernel
            for gvar, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc)
            and func.attrs
            and (kernel := _kernel_of(func.attrs)) is not None
        }
        if not kernels:
            return mod
        finder = _Finder(mod, kernels, self.adding)
        plans: dict[relax.Var, Fused] = {}
        for _, func in own_functions(mod):
            plans |= finder.plans(func)
        if not plans:
            return mod
        rewriter = _Kernels(self.adding)
        why = "a result is not read again"
        rule = Rule(why, lambda match: rewriter.computed(match, plans[match.var]), variables=plans)
        return relax.transform.DeadCodeElimination()(apply_rules(mod, [rule]))


def _kernel_of(attrs: Any) -> KernelOf | DepthwiseKernel | None:
    """Return the parameters of a convolution's kernel from its attributes, or None for another function."""
    if CONVOLUTION_ATTR in attrs:
        return KernelOf.from_numbers([int(n) for n in attrs[CONVOLUTION_ATTR]])
    return DepthwiseKernel.from_text(str(attrs[DEPTHWISE_ATTR])) if DEPTHWISE_ATTR in attrs else None


class _Finder:
    def __init__(self, mod: tvm.IRModule, kernels: dict[Any, KernelOf | DepthwiseKernel], adding: Adding):
        self.mod, self.kernels, self.adding = mod, kernels, adding
        self.graphs: dict[Any, StitchGraph | None] = {}

    def plans(self, func: relax.Function) -> dict[relax.Var, Fused]:
        """Return the plan of each stitch op that convolution kernels compute, by the variable of its result."""
        readers = readers_of(func)
        planned: dict[relax.Var, Fused] = {}
        for block in func.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                continue
            convolved: dict[Any, Convolved] = {}
            for binding in block.bindings:
                if not is_call_tir(binding.value):
                    continue
                if binding.value.args[0] in self.kernels:
                    convolution = Convolved(binding.value, self.kernels[binding.value.args[0]])
                    if only_reader_inside(readers, binding.var) is not None and self.adding.can(convolution):
                        convolved[binding.var] = convolution
                    continue
                fused = self._fused(binding.value, convolved)
                if fused is not None:
                    planned[binding.var] = fused
        return planned

    def _fused(self, call: relax.Call, convolved: dict[Any, Convolved]) -> Fused | None:
        """Return how convolution kernels compute all results of a stitch op, or None if they cannot."""
        args, _ = call_args(call)
        order = {var: number for number, var in enumerate(convolved)}
        positions = sorted(
            (i for i, arg in enumerate(args) if arg in order), key=lambda i: order[args[i]], reverse=True
        )
        graph = self._graph(call.args[0]) if positions else None
        if graph is None or len(graph.inputs) != len(args):
            return None  # an epilogue depends on no size, whatever sizes the call passes
        read_by = {i: convolved[args[i]] for i in positions}
        try:
            for i in positions:
                if read_by[i].has_splits:
                    graph = without_sum(graph, graph.inputs[i])
            parts = [self._part(*each, read_by) for each in components(graph, positions)]
        except Refusal:
            return None
        hosts = [part.convolution for part in parts]
        divided = {i: c for i, c in read_by.items() if c.has_splits and c not in hosts}
        return Fused(tuple(parts), divided)

    @staticmethod
    def _part(graph: StitchGraph, outputs: tuple[int, ...], read_by: dict[int, Convolved]) -> Part:
        """Return a part of a stitch op, computed by the last of its convolutions that can do so.

        Raises:
            Refusal: if none can.
        """
        refused = Refusal("no convolution is read")
        for i, convolution in read_by.items():
            product = graph.inputs[i]
            if graph.outputs == [product]:
                return Part(convolution, None, outputs, ())
            if not product.consumers:
                continue
            try:
                epilogue = epilogue_of(graph, product)
            except Refusal as err:
                refused = err
                continue
            positions = tuple(graph.inputs.index(tensor) for tensor, _ in epilogue.operands)
            return Part(convolution, epilogue, outputs, positions)
        raise refused

    def _graph(self, gvar: tvm.ir.GlobalVar) -> StitchGraph | None:
        """Return the graph of a stitch op, or None for other functions."""
        if gvar not in self.graphs:
            func = self.mod[gvar]
            is_stitched = func.attrs and STITCH_ATTR in func.attrs
            try:
                self.graphs[gvar] = read(func, gvar.name_hint) if is_stitched else None
            except Unreadable:
                self.graphs[gvar] = None  # its own kernel is refused with the reason
        return self.graphs[gvar]


class _Kernels:
    def __init__(self, adding: Adding):
        self.adding = adding

    def computed(self, match: Match, plan: Fused) -> relax.Expr:
        """Emit the convolution kernels that compute a stitch op, and return its results."""
        call = match.before
        operators = call.args[0].name_hint.removeprefix("stitch_")
        given = [match.now(arg) for arg in call_args(call)[0]]
        for i, convolution in plan.divided.items():
            (given[i],) = self._results(match, "", Part(convolution, None, (0,), ()), [])
        results: dict[int, Any] = {}
        for part in plan.parts:
            operands = [given[position] for position in part.positions]
            results |= zip(part.outputs, self._results(match, f"_{operators}", part, operands))
        if not isinstance(call.ty_args[0], relax.TupleType):
            return results[0]
        return relax.Tuple([results[i] for i in range(len(results))])

    def _results(self, match: Match, behind: str, part: Part, operands: list[Any]) -> list[relax.Expr]:
        """Emit the call of a convolution's kernel, and return its results as variables.

        ``behind`` is the end of the kernel's name, which names the operators behind the convolution.
        """
        of, call, choices = part.convolution.of, part.convolution.call, self.adding.device.choices
        (convolved,) = result_types(call)
        shape = list(convolved.shape)[part.convolution.has_splits :]
        types = [relax.TensorType(shape, convolved.dtype)]
        if part.epilogue is not None:
            types = [relax.TensorType(shape, tensor.dtype) for tensor in part.epilogue.graph.outputs]
        added_up = self.adding.by(part.convolution)
        across_grid = isinstance(added_up, ByGrid)
        if isinstance(of, DepthwiseKernel):
            name, func = "depthwise_convolution", cuda_depthwise(of, choices, part.epilogue)
        else:
            lanes = lanes_of([int(extent) for extent in shape[2:]], choices)
            name, func = "convolution", cuda_convolution(of, choices, part.epilogue, lanes, added_up)
        inputs = [match.now(arg) for arg in call_args(call)[0]]
        types = [*types, convolved] if across_grid else types
        kernel = match.builder.add_func(func, f"{name}{behind}")
        results = relax.call_tir(
            kernel, relax.Tuple([*inputs, *operands]), types if len(types) > 1 else types[0]
        )
        bound = match.emit(results)
        if len(types) == 1:
            return [bound]
        return [match.emit(relax.TupleGetItem(bound, i)) for i in range(len(types) - across_grid)]
