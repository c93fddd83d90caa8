# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer on a CUDA device in one kernel: the loop over time runs in clusters of thread blocks.

Each block of a cluster has some hidden units, and keeps the weights of their gates in registers and shared memory for
all steps. Groups of lanes divide the products of the state and a unit's weights. Then each lane has the cell of one
unit in one row of the batch. Every warp sends its part of the next state to the shared memory of all blocks, where a
barrier counts the bytes. So no step needs a launch, or memory that other clusters see.

Clusters have rows of the batch of their own, and never meet. Sums, states and cells are float32. The product of the
inputs by their weights is computed before, for all steps at once. Inputs of a step are loaded in the step before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

from ... import compat
from ...codegen import builder as B
from ...codegen.emit import sound_for_gpu
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...graph.extent import Extent, as_expr
from ...repairs.tir.opaque import as_c_type
from ..cpu.emit import compute_func
from ..cuda.splits import Cluster
from .cell import Layer
from .cuda_calls import FLOAT, DeviceFunctions, Memory
from .cuda_plan import Division
from .cuda_steps import Place, Steps


def cuda_recurrent(
    layers: Sequence[Layer],
    division: Division,
    steps: Extent,
    batch: Extent,
    dtype: str,
    zeros: Sequence[Collection[str]] = ((), ()),
) -> PrimFunc:
    """Return the scheduled PrimFunc of a layer, or of both directions of one, which have clusters of their own.

    The first parameter is the projected inputs ``<T,B,L*G*H>`` of all L layers in float32 (``<T,B,L*N*H>``
    for programs of N inputs). Those of a layer are the
    weights ``<G*H,H>``, then ``h`` and the further operands of ``layer.operands``. Its results are ``y`` <T,B,H>, the
    last state <B,H>, and an LSTM's last cell state. The operands of all layers come before all results.

    Args:
        layers: one or two layers of one kind and size.
        division: their division.
        steps, batch: extents T and B, which may be symbolic.
        dtype: type of weights, states and results.
        zeros: for each layer, those of the first states ``h`` and ``c`` that are 0. They are no parameters.
    """
    extents = as_expr(steps), as_expr(batch)
    x = tir.decl_buffer([*extents, len(layers) * layers[0].cell.inputs * layers[0].cell.hidden], FLOAT, "x")
    inputs, results = [x], list[Buffer]()
    buffers = []
    for number, layer in enumerate(layers):
        given, made = _buffers(layer, extents, dtype, zeros[number], f"{number}" if number else "")
        inputs += given.values()
        results += made.values()
        buffers.append({"x": x} | given | made)
    with B.kernel() as body, ExitStack() as stack:
        _emit(stack, layers, division, buffers, extents)
    return sound_for_gpu(compute_func([*inputs, *results], body[0]))


def _buffers(
    layer: Layer, extents: tuple[Expr, Expr], dtype: str, zeros: Collection[str], suffix: str
) -> tuple[dict[str, Buffer], dict[str, Buffer]]:
    """Return a layer's operands but for the inputs, and its results, by name."""
    (steps, batch), cell, hidden = extents, layer.cell, layer.cell.hidden
    states = [batch, hidden]
    shapes: dict[str, Any] = {
        "r": [cell.gates * hidden, hidden],
        "h": states,
        "c": states,
        "peepholes": [3 * hidden],
        "vectors": [cell.vectors * hidden],
        "product_bias": [hidden],
        "lengths": [batch],
    }
    results = {"y": [steps, batch, hidden], "last": states}
    if cell.has_cell_state:
        results["last_cell"] = states

    def declared(name: str, shape: Sequence[Extent]) -> Buffer:
        kind = "int32" if name == "lengths" else dtype
        return tir.decl_buffer([as_expr(e) for e in shape], kind, name + suffix)

    given = [name for name in layer.operands if name in shapes and name not in zeros]
    return (
        {name: declared(name, shapes[name]) for name in given},
        {name: declared(name, shape) for name, shape in results.items()},
    )


def _emit(
    stack: ExitStack,
    layers: Sequence[Layer],
    division: Division,
    buffers: Sequence[dict[str, Buffer]],
    extents: tuple[Expr, Expr],
) -> None:
    """Emit the kernel: the first clusters have the first layer, and as many clusters the second one."""
    d, batch, cell = division, extents[1], layers[0].cell
    of_cluster, clusters = _rows(d, batch)
    blocks = clusters * B.i64(d.blocks)
    block = stack.enter_context(T.launch_thread("blockIdx.x", blocks * B.i64(len(layers))))
    if d.blocks > 1:
        stack.enter_context(T.launch_thread("clusterCtaIdx.x", B.i64(d.blocks)))
    thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(d.threads)))
    cluster = Cluster(d.blocks, tir.floormod(block, B.i64(d.blocks)))
    memory = Memory.of(cell, d, compat.buffer_dtype(buffers[0]["y"]))
    number = B.cell(tir.floordiv(block, B.i64(d.blocks)), "number")
    of_first = number < clusters
    own = tir.Select(of_first, number, number - clusters) if len(layers) > 1 else number
    first_row = B.cell(own * of_cluster, "first_row")
    rows = B.cell(tir.min(of_cluster, batch - first_row), "rows")

    def emit(number: int) -> None:
        device = DeviceFunctions(cell, d, memory, buffers[number]["r"])
        place = Place(cluster, thread, first_row, rows, number * cell.inputs * cell.hidden)
        Steps(layers[number], d, buffers[number], device, place, extents).emit()

    # A grid of no rows has one cluster of each layer, which leaves. The simplifier takes an extent for positive.
    with B.when(None if compat.int_value(batch) else as_c_type(rows, "int64") > 0):
        if len(layers) > 1:
            B.either(of_first, lambda: emit(0), lambda: emit(1))
        else:
            emit(0)


def _rows(division: Division, batch: Expr) -> tuple[Expr, Expr]:
    """Return the rows of a cluster, and the number of clusters of a layer.

    Clusters that do not run at once take turns. All get as many rows, or one less, and as few as possible.
    """
    d, count = division, compat.int_value(batch)

    def quotient(a: Expr, b: Expr) -> Expr:
        return tir.floordiv(a + b - B.i64(1), b)

    at_once, most = B.i64(d.clusters), B.i64(d.rows)
    if count is not None:
        return most, B.i64(max(1, -(-count // d.rows)))
    some = tir.max(batch, B.i64(1))
    turns = quotient(some, at_once * most)
    rows = quotient(some, at_once * turns)
    return rows, quotient(some, rows)
