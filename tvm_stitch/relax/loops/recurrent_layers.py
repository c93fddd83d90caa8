# SPDX-License-Identifier: Apache-2.0
"""RecurrentLayers: compute a recurrent layer by one kernel on CPUs and on GPUs with clusters, else by a loop.

The pass runs before weights are folded: it packs them by operators of Relax, which are computed at compile time if the
weights are constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ... import compat
from ...compute.cpu.tiles import lanes_of
from ...compute.recurrent.cell import Cell, Layer
from ...compute.recurrent.cpu_kernel import Tiling, recurrent_kernel, scratch_rows
from ...compute.recurrent.cuda_kernel import cuda_recurrent
from ...compute.recurrent.cuda_plan import division_of
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from ..rewriting.operators import operator_name
from ..rewriting.rules import CALL, Match, Rule, apply_rules
from .arrays import Arrays, Lookup, array_of
from .recurrent import ATTRIBUTE, looped


@module_pass
class RecurrentLayers(ComputePass):
    """Replace calls of functions of recurrent layers.

    A CPU gets one kernel for a layer in float32, and a GPU with clusters one for a layer whose weights they hold. Other
    layers become loops that read constant weights as constants.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        layers = {
            gvar: Layer.from_text(str(func.attrs[ATTRIBUTE]))
            for gvar, func in mod.functions_items()
            if isinstance(func, relax.Function) and func.attrs and ATTRIBUTE in func.attrs
        }
        if not layers:
            return mod
        layers_made = _Layers(layers, self)
        why = "states stay in the cache, steps need no calls"
        made = apply_rules(mod, [Rule(why, layers_made.call, (CALL,))])
        return relax.transform.DeadCodeElimination()(
            made
        )  # else later passes would optimize functions that are gone


class _Layers:
    def __init__(self, layers: dict[tvm.ir.GlobalVar, Layer], owner: RecurrentLayers):
        self.layers, self.owner = layers, owner
        self.llvm = owner.target.kind.name == "llvm"

    def call(self, match: Match) -> relax.Expr | None:
        """Return the replacement of a call of a layer's function."""
        call = match.value
        layer = self.layers.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        if layer is None:
            return None
        operands = dict(zip(layer.operands, call.args, strict=True))
        x = operands["x"].ty
        if self.llvm and str(x.dtype.dtype) == "float32" and layer.cell.projection is None:
            tiling = tiling_of(layer.cell, self.owner.target, self.owner.device.choices)
            self.owner.computed["recurrent layer", match.var] = _note(layer, tiling)
            return relax.Tuple(_kernel_call(match, layer, tiling, operands))
        refused = ""
        if self.owner.target.kind.name == "cuda":
            if match.var in match.notes:  # computed with the other direction
                return relax.Tuple(match.notes[match.var])
            try:
                return relax.Tuple(self._on_gpu(match, layer, operands))
            except Refusal as err:
                refused = f", since {err}"
        self.owner.computed["recurrent layer", match.var] = (
            f"a loop: a step is a function of its own{refused}"
        )
        return relax.Tuple(looped(match.builder, layer, operands))

    def _on_gpu(self, match: Match, layer: Layer, operands: dict[str, Any]) -> list[relax.Expr]:
        """Emit the call of a kernel for a GPU, and return the layer's results.

        If the other direction can be computed too, the kernel does so. Its results then are notes of its variable.

        Raises:
            Refusal: if there is no such kernel for the layer.
        """
        cell, emit, x = layer.cell, match.emit, operands["x"]
        steps, batch, _ = x.ty.shape.values
        dtype = str(x.ty.dtype.dtype)
        pairs = [(match.var, layer, operands), *self._other(match, layer)]
        division = division_of(cell, dtype, compat.int_value(batch), self.owner.device, len(pairs))
        if cell.program is None:
            w, bias = (_joined(match, [own[name] for _, _, own in pairs]) for name in ("w", "bias"))
            projected = emit(R.matmul(x, emit(R.permute_dims(w)), out_dtype="float32"))
            args = [emit(R.add(projected, emit(R.astype(bias, "float32"))))]
        else:
            args = [emit(R.astype(x, "float32")) if dtype != "float32" else x]
        zeros: list[list[str]] = []
        for var, each, own in pairs:
            self.owner.computed["recurrent layer", var] = (
                f"our kernel: {cell.kind} of {cell.hidden} units, {division.blocks} blocks of a cluster divide the "
                f"units{', both directions together' if len(pairs) > 1 else ''}"
            )
            zeros.append(
                [
                    name
                    for name in ("h", "c")
                    if name in own and _is_zero(own[name], match.builder.lookup_binding)
                ]
            )
            others = [name for name in each.operands if name not in ("x", "w", "r", "bias", *zeros[-1])]
            args += [own[name] for name in ("r", *others)]
        layers = [each for _, each, _ in pairs]
        kernel = cuda_recurrent(layers, division, *_own_extents(steps, batch), dtype, zeros)
        results = _called(match, cell, kernel, args, [steps, batch], dtype, count=len(pairs))
        own_results = len(results) // len(pairs)
        for number, (var, _, _) in enumerate(pairs[1:], 1):
            match.notes[var] = results[number * own_results :]
        return results[:own_results]

    def _other(self, match: Match, layer: Layer) -> list[tuple[relax.Var, Layer, dict[str, Any]]]:
        """Return the other direction of a layer with its operands, if it can be computed at the layer's position."""
        later: dict[relax.Var, relax.Expr] = {}
        for binding in reversed(match.block.bindings):
            if binding.var.same_as(match.var):
                break
            later[binding.var] = binding.value
        for var, call in reversed(later.items()):
            other = self.layers.get(call.op) if isinstance(call, relax.Call) else None
            if other is None or other.backwards == layer.backwards or not _alike(layer, other):
                continue
            operands = dict(zip(other.operands, call.args, strict=True))
            if not operands["x"].same_as(match.before.args[0]):
                continue
            for name, value in operands.items():
                if value in later:
                    zero = name in ("h", "c") and _is_zero(value, later.get)
                    operands[name] = relax.op.zeros(value.ty.shape, value.ty.dtype.dtype) if zero else None
            if None not in operands.values():
                return [(var, other, {name: match.now(value) for name, value in operands.items()})]
        return []


def _joined(match: Match, parts: list[relax.Expr]) -> relax.Expr:
    """Return tensors one behind the other, as a constant if they are constants."""
    if len(parts) == 1:
        return parts[0]
    known = [array_of(part, match.builder.lookup_binding) for part in parts]
    arrays = [array for array in known if array is not None]
    if len(arrays) < len(parts):
        return match.emit(R.concat(parts, 0))
    return relax.const(np.concatenate(arrays), str(arrays[0].dtype))


def _alike(layer: Layer, other: Layer) -> bool:
    """Return whether two layers can be directions of one kernel."""
    cells = layer.cell, other.cell
    shapes = [(cell.kind, cell.hidden, cell.two_products, cell.projection) for cell in cells]
    return shapes[0] == shapes[1] and layer.operands == other.operands


def _is_zero(value: relax.Expr, lookup: Lookup) -> bool:
    """Return whether all elements of a tensor are known to be 0."""
    while True:
        if isinstance(value, relax.Var):
            bound = lookup(value)
        else:
            bound = (
                value.args[0]
                if isinstance(value, relax.Call) and operator_name(value) in _OF_ELEMENTS
                else None
            )
        if bound is None:
            break
        value = bound
    if isinstance(value, relax.Call) and operator_name(value) == "relax.zeros":
        return True
    if isinstance(value, relax.Call) and operator_name(value) == "relax.full":
        value = value.args[1]
    array = array_of(value, lookup)
    return array is not None and not array.any()


_OF_ELEMENTS = frozenset(
    f"relax.{name}"
    for name in ("astype", "broadcast_to", "expand_dims", "reshape", "squeeze", "strided_slice")
)
"""Operators whose results have elements of their first operand."""


def _note(layer: Layer, tiling: Tiling) -> str:
    how = "divides the hidden units" if tiling.by_units else "divides the batch"
    return f"our kernel: {layer.cell.kind} of {layer.cell.hidden} units, {how}"


def tiling_of(cell: Cell, target: Any, choices: Any) -> Tiling:
    """Return the tiling of a layer for a CPU."""
    lanes = lanes_of(target)
    vectors = choices.recurrent_vectors if cell.gates == 1 else 1
    weights = 4 * cell.gates * cell.hidden**2
    return Tiling(
        lanes,
        lanes * vectors,
        choices.recurrent_rows,
        weights > choices.recurrent_weight_bytes,
        choices.recurrent_serial_work,
    )


def _kernel_call(match: Match, layer: Layer, tiling: Tiling, operands: dict[str, Any]) -> list[relax.Expr]:
    """Emit the call of a kernel, and return the layer's results."""
    cell, emit = layer.cell, match.emit
    x = operands["x"]
    steps, batch, features = x.ty.shape.values
    pack = _Packing(match, cell, tiling)
    if cell.program is None:
        projected = emit(R.matmul(x, pack.inputs(operands["w"], features)))
        projected = emit(R.add(projected, pack.bias(operands["bias"])))
    else:
        projected = emit(R.reshape(x, [steps, batch, cell.inputs, cell.hidden]))
        if pack.more:
            projected = emit(R.nn.pad(projected, [0, 0, 0, 0, 0, 0, 0, pack.more]))
    args = [projected, pack.states(operands["r"])]
    for name in layer.operands:
        if name not in ("x", "w", "r", "bias"):
            value = operands[name]
            args.append(value if name in ("h", "c", "lengths") else pack.units(value, name))
    kernel = recurrent_kernel(layer, tiling, *_own_extents(steps, batch))
    scratch = relax.TensorType([scratch_rows(cell), batch, tiling.padded(cell)], "float32")
    return _called(match, cell, kernel, args, [steps, batch], "float32", [scratch])


def _called(
    match: Match,
    cell: Cell,
    kernel: tirx.PrimFunc,
    args: list[relax.Expr],
    extents: list[Any],
    dtype: str,
    scratch: Sequence[relax.TensorType] = (),
    count: int = 1,
) -> list[relax.Expr]:
    """Emit the call of the kernel of some layers, whose last results are scratch memory. Return the layers' results."""
    function = match.builder.add_func(kernel.without_attr("global_symbol"), f"{cell.kind}_kernel")
    states = relax.TensorType([extents[1], cell.hidden], dtype)
    results = [relax.TensorType([*extents, cell.hidden], dtype), states]
    results += [states] if cell.has_cell_state else []
    results *= count
    done = match.emit(relax.call_tir(function, relax.Tuple(args), [*results, *scratch]))
    return [match.emit(relax.TupleGetItem(done, i)) for i in range(len(results))]


def _own_extents(steps: Any, batch: Any) -> tuple[Any, Any]:
    """Return two extents as numbers, or as symbols of a kernel."""
    known, rows = compat.int_value(steps), compat.int_value(batch)
    return (
        tirx.Var("steps", "int64") if known is None else known,
        tirx.Var("batch", "int64") if rows is None else rows,
    )


class _Packing:
    """Weights in the order in which the kernel reads them: blocks of units, with the units' gates side by side.

    Constants are packed here, other weights when the model runs.
    """

    def __init__(self, match: Match, cell: Cell, tiling: Tiling):
        self.match, self.cell, self.tiling = match, cell, tiling
        self.arrays = Arrays(match.emit)
        self.more = tiling.padded(cell) - cell.hidden

    def inputs(self, weights: relax.Expr, features: Any) -> relax.Expr:
        """Return the inputs' weights <gates*hidden, features> as <features, blocks*gates*units>."""
        x = self.arrays.permute(self._blocks(weights, features), [3, 1, 0, 2])
        count = self.tiling.padded(self.cell) * self.cell.gates
        return self.arrays.tensor(self.arrays.reshape(x, [-1, count]))

    def states(self, weights: relax.Expr) -> relax.Expr:
        """Return the state's weights <gates*hidden, hidden> in the order of ``weights_shape``."""
        order = [0, 1, 3, 2] if self.cell.two_products else [1, 3, 0, 2]
        return self.arrays.tensor(self.arrays.permute(self._blocks(weights, self.cell.hidden), order))

    def bias(self, bias: relax.Expr) -> relax.Expr:
        """Return a bias of all gates in the order of columns of the packed weights."""
        x = self.arrays.permute(self._blocks(bias, 1), [1, 0, 2, 3])
        return self.arrays.tensor(self.arrays.reshape(x, [-1]))

    def units(self, value: relax.Expr, name: str) -> relax.Expr:
        """Return values of the units with padding."""
        x: Any = self._known(value)
        if name in ("peepholes", "vectors"):
            rows = self.arrays.reshape(x, [self.cell.vectors, self.cell.hidden])
            return self.arrays.tensor(self.arrays.padded(rows, 1, self.more))
        return self.arrays.tensor(self.arrays.padded(x, 0, self.more))

    def _blocks(self, weights: relax.Expr, depth: Any) -> Any:
        """Return weights <gates*hidden, depth> as <gates, blocks, units, depth>."""
        cell, tiling = self.cell, self.tiling
        known = self._known(weights)
        depth = compat.int_value(depth) or depth
        x = self.arrays.padded(self.arrays.reshape(known, [cell.gates, cell.hidden, depth]), 1, self.more)
        return self.arrays.reshape(x, [cell.gates, tiling.blocks(cell), tiling.units, depth])

    def _known(self, value: relax.Expr) -> Any:
        """Return the array of constant weights, and other weights as they are."""
        array = array_of(value, self.match.builder.lookup_binding)
        return value if array is None else array
