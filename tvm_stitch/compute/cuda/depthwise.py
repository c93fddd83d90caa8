# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution on a CUDA device: kernels of this package for float32 and half types.

A depthwise convolution multiplies each element by a few weights, so it is bound by memory, or by the loads of its
window. With channels last, a thread computes neighbouring positions of a row for a few channels. With channels first,
it computes neighbouring rows of a column. It loads what their windows share once. On an H200 cuDNN's kernels take 1.1
to 5 times as long. Sums are float32, and are rounded once.

Extents are variables of the PrimFunc, but for the channels. So convolutions that differ only in sizes share a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ...codegen import builder as B
from ...codegen.gpu.launch_bounds import bound_registers
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ceildiv, product
from ..cpu.emit import compute_func
from .positions import two_axes
from .sources import ELEMENT_TYPES, sources


@dataclass(frozen=True)
class Depthwise:
    """``out[n, y..., c]``, the sum over r... of ``data[n, y * stride + r * dilation - padding..., c]`` times
    ``weight[r..., c]``.

    Attributes:
        channels_first: whether channels are in front of the spatial axes, in memory and in shapes.
        axes: number of spatial axes of the operands, 1 or 2. One axis is that of columns.
        channels: channels of data and result.
        window, strides, padding, dilation: along rows and columns. Padding is in front of the first element.
        dtype: of data and weight.
        result: dtype of the result.
    """

    channels_first: bool
    axes: int
    channels: int
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    dtype: str
    result: str


@dataclass(frozen=True)
class DepthwisePlan:
    """The results of a thread with channels last, and the threads of a block.

    Attributes:
        lanes, across: neighbouring channels and positions of a row of a thread.
        wide, places, rows: threads of a block along channels, positions of a row, and rows.
        resident: blocks whose registers a multiprocessor holds at once.
    """

    lanes: int
    across: int
    wide: int
    places: int
    rows: int
    resident: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.wide * self.places * self.rows


@dataclass(frozen=True)
class RowsPlan:
    """The rows of a thread with channels first, and the threads of a block."""

    down: int
    threads: int


def depthwise_plan(
    convolution: Depthwise, positions: Sequence[int | None], images: int | None, device: DeviceModel
) -> DepthwisePlan | RowsPlan:
    """Return the plan of a convolution.

    Args:
        convolution: the convolution.
        positions: rows and columns of the result, or None where a run shows them.
        images: the images of a batch, or None.
        device: the device that runs the kernel.
    """
    choices, (rows, columns) = device.choices, positions
    if convolution.channels_first:
        return _rows_plan(convolution, rows, columns, images, device)
    lanes = next(n for n in (choices.depthwise_lanes, 2, 1) if convolution.channels % n == 0)
    vectors = convolution.channels // lanes
    across = choices.depthwise_across
    if columns is not None and columns <= choices.depthwise_narrow:
        across = columns
    if rows is not None and columns is not None and images is not None:
        fewest = choices.depthwise_threads_each * device.sms
        while across > 1 and images * rows * -(-columns // across) * vectors < fewest:
            across = -(-across // 2)
    wide, most = 1, choices.depthwise_line_bytes // (lanes * item_bytes(convolution.dtype))
    while 2 * wide <= min(vectors, most):
        wide *= 2
    left = choices.depthwise_threads // wide
    places = left if columns is None else min(left, -(-columns // across))
    down = max(1, left // places)
    resident = 2 if lanes * across <= choices.depthwise_few_sums else 1
    return DepthwisePlan(lanes, across, wide, places, down if rows is None else min(down, rows), resident)


def _rows_plan(
    convolution: Depthwise, rows: int | None, columns: int | None, images: int | None, device: DeviceModel
) -> RowsPlan:
    choices = device.choices
    down = choices.depthwise_rows[0]
    if rows is not None:
        down = min(choices.depthwise_rows, key=lambda n: -(-rows // n) * n)
        if columns is not None and images is not None:
            fewest = choices.depthwise_rows_threads_each * device.sms
            while down > 1 and images * convolution.channels * columns * -(-rows // down) < fewest:
                down = -(-down // 2)
        down = min(down, rows)
    return RowsPlan(down, choices.depthwise_threads)


def cuda_depthwise(convolution: Depthwise, plan: DepthwisePlan | RowsPlan) -> PrimFunc:
    """Return the scheduled PrimFunc of data ``<images, extents..., channels>``, weight ``<taps, channels>`` and result
    ``<images, positions..., channels>``.

    The weight's taps are the positions of the window, row by row. With channels first, the shapes are ``<images,
    channels, extents...>``, ``<channels, taps>`` and ``<images, channels, positions...>``.
    """
    c, axes = convolution, "hw"[-convolution.axes :]
    images, channels = tir.Var("n", "int64"), B.i64(c.channels)
    extents = [tir.Var(name, "int64") for name in axes]
    positions = [tir.Var(f"out_{name}", "int64") for name in axes]
    down, along = two_axes(positions)
    taps = B.i64(c.window[0] * c.window[1])
    shapes = [[images, *extents, channels], [taps, channels], [images, *positions, channels]]
    if c.channels_first:
        shapes = [[images, channels, *extents], [channels, taps], [images, channels, *positions]]
    kinds = zip(shapes, (c.dtype, c.dtype, c.result), ("data", "weight", "out"), strict=True)
    buffers = [tir.decl_buffer(*kind) for kind in kinds]
    if isinstance(plan, RowsPlan):
        tiles = [ceildiv(product([images, channels, ceildiv(down, plan.down), along]), plan.threads)]
    else:
        tiles = [
            ceildiv(B.i64(c.channels // plan.lanes), plan.wide),
            ceildiv(along, plan.across * plan.places),
            ceildiv(down, plan.rows),
            images,
        ]
    with B.kernel() as body, ExitStack() as stack:
        # A grid has a block even if there is nothing to compute.
        blocks = tir.max(product(tiles), B.i64(1))
        block = stack.enter_context(T.launch_thread("blockIdx.x", blocks))
        thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(plan.threads)))
        if isinstance(plan, DepthwisePlan):
            bound_registers(stack, plan.resident)
        B.evaluate(_call(c, plan, buffers, [images, *two_axes(extents), down, along], block, thread))
    return compute_func(buffers, body[0])


def _call(
    of: Depthwise,
    plan: DepthwisePlan | RowsPlan,
    buffers: list[Buffer],
    sizes: list[Expr],
    block: Expr,
    thread: Expr,
) -> Expr:
    images, *extents = sizes
    if isinstance(plan, RowsPlan):
        function, traits, more = "depthwise_rows", "DepthwiseRows", f", {plan.threads}"
        numbers = [plan.down]
    else:
        function, traits, more = "depthwise", "DepthwiseTraits", ""
        numbers = [plan.lanes, plan.across, plan.wide, plan.places, plan.rows]
    numbers += [*of.window, *of.strides, *of.padding, *of.dilation]
    name = "_".join([f"tvm_stitch_{function}", *map(str, numbers), of.dtype, of.result])
    pointers = [tir.address_of(B.fetch(B.flat_view(buffer), 0)) for buffer in buffers]
    given = [images, B.i64(of.channels), *extents, block, thread]
    return T.cuda.func_call(
        name,
        *pointers,
        *(tir.Cast("int32", number) for number in given),
        source_code=sources("convolutions/depthwise")
        + _WRAPPER.format(
            name=name,
            function=function,
            traits=f"{traits}<{', '.join(map(str, numbers))}>",
            element=ELEMENT_TYPES[of.dtype],
            result=ELEMENT_TYPES[of.result],
            more=more,
        ),
    )


_WRAPPER = """
__device__ __forceinline__ void {name}(
    const void* data, const void* weight, void* out, int images, int channels, int height, int width, int out_height,
    int out_width, int block, int thread) {{
  using namespace tvm_stitch;
  {function}<{traits}>(
      (const {element}*)data, (const {element}*)weight, ({result}*)out,
      DepthwiseSizes{{images, channels, height, width, out_height, out_width}}, block, thread{more});
}}
"""
