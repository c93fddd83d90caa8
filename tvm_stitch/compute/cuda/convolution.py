# SPDX-License-Identifier: Apache-2.0
"""Exact float32 convolution on a CUDA device: a kernel of this package for packed weights, channels first.

It is a matrix product whose right side is gathered from the images with cp.async into shared memory.
``cuda_convolution_plan`` chooses the tile, and the number of splits of the reduction. Otherwise a batch of one has
too few results to fill a device, and cuDNN does not split. On an H100, 512 channels with a 3 x 3 window and 7 x 7
positions take cuDNN 157 us, and 16 us here.

A stitched kernel that reads the splits adds them up. If that kernel would do nothing else, the convolution's kernel
adds them up itself, behind a barrier of a cluster or of the grid. A PrimFunc has the sizes of its operands as
variables, so that convolutions that differ only in sizes share a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from ...codegen import builder as B
from ...codegen.gpu.dependent_launch import COOPERATIVE
from ...codegen.gpu.launch_bounds import bound_registers
from ...codegen.gpu.launch_check import check_multiprocessors
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...cost.choices import Choices
from ...graph.extent import ceildiv, product
from ...repairs.tir.exact_constants import exact_constants
from ..cpu.emit import compute_func
from .convolution_plan import DEPTH, ConvolutionPlan, ImageConvolution, Tile
from .epilogue import Epilogue, TileEvaluator
from .positions import Positions, two_axes
from .sources import sources
from .splits import ByCluster, ByGrid, Cluster, Grid, add_up

FIRST_CAPABILITY = 80
"""Ten times the least compute capability: that of cp.async."""

_FUNCTION = "tvm_stitch_convolution"


@dataclass(frozen=True)
class KernelOf:
    """The compile-time parameters of a kernel. Convolutions that differ only in sizes share them.

    Attributes:
        tile, resident, gathered: as in the plan.
        has_splits: whether sums are split. The number of splits is a size.
        axes: number of spatial axes of the operands, 1 or 2.
        groups, window, strides, padding, dilation, exchanged: of the convolution.
    """

    tile: Tile
    resident: int
    gathered: bool
    has_splits: bool
    axes: int
    groups: int
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    exchanged: bool

    def numbers(self) -> list[int]:
        """Return the parameters as a list of integers, for an attribute of the kernel."""
        fields = (field if isinstance(field, tuple) else (field,) for field in astuple(self))
        return [int(number) for numbers in fields for number in numbers]

    @staticmethod
    def from_numbers(numbers: Sequence[int]) -> KernelOf:
        """Return the parameters from the list that :meth:`numbers` returned."""
        rows, positions, slices, resident, gathered, has_splits, axes, groups, *rest, exchanged = numbers
        window, strides, padding, dilation = ((rest[i], rest[i + 1]) for i in range(0, 8, 2))
        tile = Tile(rows, positions, slices)
        return KernelOf(
            tile,
            resident,
            bool(gathered),
            bool(has_splits),
            axes,
            groups,
            window,
            strides,
            padding,
            dilation,
            bool(exchanged),
        )


def kernel_of(convolution: ImageConvolution, plan: ConvolutionPlan, axes: int) -> KernelOf:
    """Return the compile-time parameters of a convolution's kernel."""
    c = convolution
    return KernelOf(
        plan.tile,
        plan.resident,
        plan.gathered,
        plan.splits > 1,
        axes,
        c.groups,
        c.window,
        c.strides,
        c.padding,
        c.dilation,
        c.exchanged,
    )


def packed_weight(weight: np.ndarray, convolution: ImageConvolution, plan: ConvolutionPlan) -> np.ndarray:
    """Return the weight ``<groups * outputs, inputs, window...>`` in the kernel's layout ``<groups * reduction,
    line>``.

    The reduction dimension is padded to whole steps, and a line to whole tiles.
    """
    c, taps = convolution, int(np.prod(convolution.window))
    line = -(-c.outputs // plan.tile.rows) * plan.tile.rows
    of_run, runs = (c.inputs * taps, 1) if plan.gathered else (c.inputs, taps)
    by_product = weight.reshape(c.groups, c.outputs, c.inputs, taps)
    order = (0, 2, 3, 1) if plan.gathered else (0, 3, 2, 1)
    filled = np.zeros((c.groups, runs, -(-of_run // DEPTH) * DEPTH, line), "float32")
    filled[:, :, :of_run, : c.outputs] = by_product.transpose(order).reshape(
        c.groups, runs, of_run, c.outputs
    )
    return filled.reshape(-1, line)


def cuda_convolution(
    of: KernelOf,
    choices: Choices,
    epilogue: Epilogue | None = None,
    lanes: int = 1,
    added_up: ByCluster | ByGrid | None = None,
) -> PrimFunc:
    """Return the scheduled PrimFunc of data, packed weight and result. Splits are the first axis of the result.

    With an epilogue, the epilogue's operands follow the weight, and its results replace the result. Then, and if
    the kernel adds up splits, it evaluates ``lanes`` neighbouring positions at once. The positions of an image are
    a multiple of them.

    Args:
        of: the compile-time parameters.
        choices: the constants of choice of the device.
        epilogue: element-wise operators on the result.
        lanes: see above.
        added_up: the blocks that add up splits, if the kernel does so itself. With a grid, the splits are a last
            result behind the others. With clusters, no split is written to device memory. Without this, a kernel with
            splits has no epilogue.
    """
    by_grid = added_up if isinstance(added_up, ByGrid) else None
    cluster = added_up.splits if isinstance(added_up, ByCluster) else 1
    images, channels, lines, line, outputs, splits = (
        tir.Var(name, "int64") for name in ("n", "c", "k", "line", "f", "splits")
    )
    extents = [tir.Var(name, "int64") for name in "hw"[-of.axes :]]
    positions = [tir.Var(f"out_{name}", "int64") for name in "hw"[-of.axes :]]
    first = [channels, images] if of.exchanged else [images, channels]
    data = _buffer([*first, *extents], "data")
    weight = _buffer([lines, line], "weight")
    whole = [images, outputs, *positions]
    behind = [] if epilogue is None else epilogue.buffers(whole)
    divided = [_buffer([splits, *whole], "splits")] if of.has_splits and cluster == 1 else []
    out = [_buffer(whole, "out")] if not behind and (by_grid or not divided) else []
    count = splits if divided else B.i64(cluster)
    own = tir.floordiv(outputs, B.i64(of.groups))
    of_split = product(
        [ceildiv(own, of.tile.rows), ceildiv(product([images, *positions]), of.tile.positions), of.groups]
    )
    blocks = of_split * count
    keeps_tile = (epilogue is not None or cluster > 1) and not divided
    floats = of.tile.shared_floats(of.exchanged, keeps_tile)
    with B.kernel() as body, ExitStack() as stack:
        if by_grid is not None:
            check_multiprocessors(by_grid.device, data, ceildiv(blocks, of.resident))
        block = stack.enter_context(T.launch_thread("blockIdx.x", blocks))
        if cluster > 1:
            stack.enter_context(T.launch_thread("clusterCtaIdx.x", B.i64(cluster)))
        thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(of.tile.threads)))
        bound_registers(stack, of.resident)
        shared = B.local([floats], "float32", "shared", "shared.dyn")
        at = B.local([4], "int64", "at") if keeps_tile else None
        sizes = [
            images,
            tir.floordiv(channels, B.i64(of.groups)),
            *two_axes(extents),
            own,
            *two_axes(positions),
            line,
            count,
            B.i64(lanes),
        ]
        group = Cluster(cluster, tir.floormod(block, B.i64(cluster)))
        buffers = [data, weight, *([] if keeps_tile else divided or out)]
        number = block
        if cluster > 1:
            number = group.rank * of_split + tir.floordiv(block, B.i64(cluster))
        B.evaluate(_call(of, shared.data, buffers, at, [*sizes, number]))
        results = [B.flat_view(buffer) for buffer in behind or out]
        evaluator = None if epilogue is None else TileEvaluator(epilogue, results, lanes, choices)
        if by_grid is not None:
            grid = Grid(blocks, of.tile.threads, block, thread)
            add_up(divided[0], whole, evaluator or results[0], lanes, by_grid, grid)
        elif at is not None:
            _write_back(of, evaluator or results[0], shared, at, thread, whole, lanes, group)
    kernel = exact_constants(compute_func([data, weight, *behind, *out, *divided], body[0]))
    return kernel.with_attrs(COOPERATIVE) if by_grid is not None else kernel


def tiles_of(of: KernelOf, whole: Sequence[int]) -> int:
    """Return the number of tiles of one split of a convolution with results of those extents."""
    images, outputs, *positions = whole
    rows = ceildiv(outputs // of.groups, of.tile.rows)
    return of.groups * rows * ceildiv(images * math.prod(positions), of.tile.positions)


def _write_back(
    of: KernelOf, result: TileEvaluator | Buffer, shared: Buffer, at: Buffer, thread: Expr, whole: list[Any],
    lanes: int, cluster: Cluster,
) -> None:  # fmt: skip
    """Store the tile that a block has in shared memory, or the epilogue's results on it.

    A thread keeps its positions, and loops over the tile's channels. In a cluster it loops over some of them, and
    adds up the tiles of all blocks. ``at`` holds the coordinates where it begins, as numbers opaque to TVM's
    simplifier, which would repeat divisions at every use.
    """
    _, _, *positions = whole
    across = of.tile.positions // lanes
    down = of.tile.threads // across
    image, vector, first, left = (B.fetch(at, i) for i in range(4))
    of_image = B.cell(
        tir.floordiv(product(positions), B.i64(lanes)), "of_image"
    )  # hidden: the simplifier would lose sight of lanes
    column = tir.floormod(thread, B.i64(across)) * B.i64(lanes)
    each = of.tile.rows // down
    if cluster.blocks > 1:
        cluster.meet()
    with B.loop("serial", -(-each // cluster.blocks), "i") as i:
        number = i * B.i64(cluster.blocks) + cluster.rank
        line = number * B.i64(down) + tir.floordiv(thread, B.i64(across))
        is_line = tir.LT(line, left)
        if each % cluster.blocks:
            is_line = tir.And(is_line, tir.LT(number, B.i64(each)))
        with B.when(is_line):
            start, sums = line * B.i64(of.tile.positions) + column, shared
            if cluster.blocks > 1:
                sums = cluster.added_up(shared, start, lanes)
                start = B.i64(0)
            at_positions = Positions(whole, image, first + line, vector, of_image, lanes)
            if isinstance(result, TileEvaluator):
                result.emit(sums, start, at_positions)
            else:
                position = at_positions.first(tuple(range(len(whole))))
                with B.loop("vectorized", lanes, "v") as v:
                    B.store(result, B.fetch(sums, start + v), [position + v])
    if cluster.blocks > 1:
        cluster.meet()  # no block ends while others read its tile


def _buffer(shape: list[Any], name: str) -> Buffer:
    return tir.decl_buffer(shape, "float32", name)


def _call(of: KernelOf, shared: Expr, buffers: list[Buffer], at: Buffer | None, sizes: list[Any]) -> Expr:
    """Return a call of the kernel's C++. Given ``at`` and no buffer of the result, the tile stays in shared memory."""
    tile, keeps = of.tile, at is not None
    numbers = [
        tile.rows,
        tile.positions,
        tile.slices,
        DEPTH,
        int(of.gathered),
        int(keeps),
        int(of.exchanged),
        of.groups,
    ]
    numbers += [*of.window, *of.strides, *of.padding, *of.dilation]
    name = "_".join([_FUNCTION, *map(str, numbers)])
    pointers = [tir.address_of(B.fetch(B.flat_view(buffer), 0)) for buffer in buffers]
    pointers += [] if at is None else [tir.address_of(B.fetch(at, 0))]
    given = "nullptr, (long long*)result" if keeps else "(float*)result, nullptr"
    return T.cuda.func_call(
        name,
        shared,
        *pointers,
        *(tir.Cast("int32", size) for size in sizes),
        source_code=sources("copies", "convolutions/convolution_float")
        + _WRAPPER.format(name=name, traits=", ".join(map(str, numbers)), given=given),
    )


_WRAPPER = """
__device__ __forceinline__ void {name}(
    void* shared, const void* data, const void* weight, void* result, int images, int channels, int height, int width,
    int outputs, int out_height, int out_width, int line, int splits, int lanes,
    int block) {{
  using namespace tvm_stitch;
  convolution_of_floats<ConvolutionTraits<{traits}>>(
      (float*)shared, (const float*)data, (const float*)weight, {given},
      ConvolutionSizes{{images, channels, height, width, outputs, out_height, out_width, line, splits, lanes}},
      block);
}}
"""
