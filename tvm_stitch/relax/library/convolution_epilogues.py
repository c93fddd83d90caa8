# SPDX-License-Identifier: Apache-2.0
"""ConvolutionEpilogues: a stitch op that is element-wise on convolutions of ours is computed in their kernels.

Runs where stitch ops are merged, and not scheduled yet. Where a convolution's sums are divided, a stitch op adds them
up. If it is element-wise otherwise, the convolution's kernel does both, behind a barrier of a cluster or of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ...compute.cuda.convolution import KernelOf, cuda_convolution, tiles_of
from ...compute.cuda.convolution_plan import are_clusters
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
from .own_convolutions import CONVOLUTION_ATTR, has_barriers, lanes_of


@dataclass(frozen=True)
class Convolved:
    """A convolution whose result a stitch op alone reads: its call, and what its kernel is compiled for."""

    call: Any
    of: KernelOf


@dataclass(frozen=True)
class Adding:
    """How kernels of convolutions add up divided sums.

    Attributes:
        device: on which they run.
        barriers: whether barriers may go across a grid.
    """

    device: DeviceModel
    barriers: bool

    def can(self, convolution: Convolved) -> bool:
        """Whether the convolution's kernel can go on with its result."""
        return not convolution.of.has_splits or self.by(convolution) is not None

    def by(self, convolution: Convolved) -> ByCluster | ByGrid | None:
        """By whom the convolution's kernel adds them up; None where there are none, or it cannot."""
        of = convolution.of
        if not of.has_splits:
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
        convolution: that one.
        epilogue: what computes them of its result; None where they are its result.
        outputs: their numbers among the stitch op's.
        positions: of the epilogue's operands among the stitch op's arguments.
    """

    convolution: Convolved
    epilogue: Epilogue | None
    outputs: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Fused:
    """A call of a stitch op that convolutions' kernels compute.

    Attributes:
        parts: all that it computes.
        divided: by their places among the stitch op's arguments, other convolutions whose sums are divided.
    """

    parts: tuple[Part, ...]
    divided: dict[int, Convolved]


@module_pass
class ConvolutionEpilogues:
    """Let convolutions' kernels compute a stitch op that is element-wise on results which it alone reads.

    For the target and the options with which :class:`.own_convolutions.OwnConvolutions` made the kernels.
    """

    def __init__(self, target: Any, config: StitchConfig | None = None):
        config = checked_config(config)
        device = device_model(resolve_target(target), config).configured(config)
        self.adding = Adding(device, has_barriers(config, device))

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Fuse them, and drop the functions that nothing calls any more."""
        kernels = {
            gvar: KernelOf.from_numbers([int(n) for n in func.attrs[CONVOLUTION_ATTR]])
            for gvar, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and func.attrs and CONVOLUTION_ATTR in func.attrs
        }
        if not kernels:
            return mod
        finder = _Finder(mod, kernels, self.adding)
        plans: dict[relax.Var, Fused] = {}
        for _, func in own_functions(mod):
            plans |= finder.plans(func)
        if not plans:
            return mod
        made = _Kernels(self.adding)
        why = "a result is not read again"
        rule = Rule(why, lambda match: made.computed(match, plans[match.var]), variables=plans)
        return relax.transform.DeadCodeElimination()(apply_rules(mod, [rule]))


class _Finder:
    def __init__(self, mod: tvm.IRModule, kernels: dict[Any, KernelOf], adding: Adding):
        self.mod, self.kernels, self.adding = mod, kernels, adding
        self.graphs: dict[Any, StitchGraph | None] = {}

    def plans(self, func: relax.Function) -> dict[relax.Var, Fused]:
        """By variable of a stitch op's result, what computes it."""
        readers = readers_of(func)
        found: dict[relax.Var, Fused] = {}
        for block in func.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                continue
            convolved: dict[Any, Convolved] = {}
            for binding in block.bindings:
                if not is_call_tir(binding.value):
                    continue
                if binding.value.args[0] in self.kernels:
                    made = Convolved(binding.value, self.kernels[binding.value.args[0]])
                    if only_reader_inside(readers, binding.var) is not None and self.adding.can(made):
                        convolved[binding.var] = made
                    continue
                fused = self._fused(binding.value, convolved)
                if fused is not None:
                    found[binding.var] = fused
        return found

    def _fused(self, call: Any, convolved: dict[Any, Convolved]) -> Fused | None:
        """How kernels of convolutions compute all that a stitch op does; None where they do not."""
        args, scalars = call_args(call)
        order = {var: number for number, var in enumerate(convolved)}
        places = sorted(
            (i for i, arg in enumerate(args) if arg in order), key=lambda i: order[args[i]], reverse=True
        )
        graph = self._graph(call.args[0]) if places else None
        if graph is None or scalars or len(call.args) > 2 or len(graph.inputs) != len(args):
            return None
        read_by = {i: convolved[args[i]] for i in places}
        try:
            for i in places:
                if read_by[i].of.has_splits:
                    graph = without_sum(graph, graph.inputs[i])
            parts = [self._part(*each, read_by) for each in components(graph, places)]
        except Refusal:
            return None
        hosts = [part.convolution for part in parts]
        divided = {i: c for i, c in read_by.items() if c.of.has_splits and c not in hosts}
        return Fused(tuple(parts), divided)

    @staticmethod
    def _part(graph: StitchGraph, outputs: tuple[int, ...], read_by: dict[int, Convolved]) -> Part:
        """The last convolution, of those that a part of a stitch op reads, which can compute it.

        Raises:
            Refusal: where none can.
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


class _Kernels:
    def __init__(self, adding: Adding):
        self.adding = adding

    def computed(self, match: Match, plan: Fused) -> relax.Expr:
        """The results of a stitch op, by convolutions' kernels."""
        call = match.before
        name = f"convolution_{call.args[0].name_hint.removeprefix('stitch_')}"
        given = [match.now(arg) for arg in call_args(call)[0]]
        for i, convolution in plan.divided.items():
            (given[i],) = self._results(match, "convolution", Part(convolution, None, (0,), ()), [])
        results: dict[int, Any] = {}
        for part in plan.parts:
            operands = [given[position] for position in part.positions]
            results |= zip(part.outputs, self._results(match, name, part, operands))
        if not isinstance(call.ty_args[0], relax.TupleType):
            return results[0]
        return relax.Tuple([results[i] for i in range(len(results))])

    def _results(self, match: Match, name: str, part: Part, operands: list[Any]) -> list[relax.Expr]:
        """What the kernel of a convolution gives, bound to variables."""
        of, call = part.convolution.of, part.convolution.call
        (convolved,) = result_types(call)
        shape = list(convolved.shape)[of.has_splits :]
        types = [relax.TensorType(shape, "float32")]
        if part.epilogue is not None:
            types = [relax.TensorType(shape, tensor.dtype) for tensor in part.epilogue.graph.outputs]
        lanes = lanes_of([int(extent) for extent in shape[2:]], self.adding.device.choices)
        added_up = self.adding.by(part.convolution)
        across_grid = isinstance(added_up, ByGrid)
        func = cuda_convolution(of, self.adding.device.choices, part.epilogue, lanes, added_up)
        inputs = [match.now(arg) for arg in call_args(call)[0]]
        types = [*types, convolved] if across_grid else types
        kernel = match.builder.add_func(func, name)
        made = relax.call_tir(
            kernel, relax.Tuple([*inputs, *operands]), types if len(types) > 1 else types[0]
        )
        bound = match.emit(made)
        if len(types) == 1:
            return [bound]
        return [match.emit(relax.TupleGetItem(bound, i)) for i in range(len(types) - across_grid)]
