# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution on a CUDA device, channels last: a kernel of this package for float32 and half types.

A depthwise convolution multiplies each element by a few weights, so it is bound by memory, or by the loads of its
window. A thread computes neighbouring positions of a row for a few channels, and loads what their windows share
once. On an H200 cuDNN's kernels take 1.1 to 5 times as long. Sums are float32, and are rounded once.

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
from .sources import sources

TYPES = {"float32": "float", "float16": "half", "bfloat16": "__nv_bfloat16"}
"""Element types of data, weight and result, in CUDA C."""


@dataclass(frozen=True)
class Depthwise:
    """``out[n, y..., c]``, the sum over r... of ``data[n, y * stride + r * dilation - padding..., c]`` times
    ``weight[r..., c]``.

    Attributes:
        axes: number of spatial axes of the operands, 1 or 2. One axis is that of columns.
        channels: channels of data and result.
        window, strides, padding, dilation: along rows and columns. Padding is in front of the first element.
        dtype: of data and weight.
        result: dtype of the result.
    """

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
    """The results of a thread, and the threads of a block.

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


def depthwise_plan(
    convolution: Depthwise, positions: Sequence[int | None], images: int | None, device: DeviceModel
) -> DepthwisePlan:
    """Return the plan of a convolution.

    Args:
        convolution: the convolution.
        positions: rows and columns of the result, or None where a run shows them.
        images: the images of a batch, or None.
        device: the device that runs the kernel.
    """
    choices, (rows, columns) = device.choices, positions
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


def cuda_depthwise(convolution: Depthwise, plan: DepthwisePlan) -> PrimFunc:
    """Return the scheduled PrimFunc of data ``<images, extents..., channels>``, weight ``<taps, channels>`` and result
    ``<images, positions..., channels>``.

    The weight's taps are the positions of the window, row by row.
    """
    c, axes = convolution, "hw"[-convolution.axes :]
    images, channels = tir.Var("n", "int64"), B.i64(c.channels)
    extents = [tir.Var(name, "int64") for name in axes]
    positions = [tir.Var(f"out_{name}", "int64") for name in axes]
    data = tir.decl_buffer([images, *extents, channels], c.dtype, "data")
    weight = tir.decl_buffer([B.i64(c.window[0] * c.window[1]), channels], c.dtype, "weight")
    out = tir.decl_buffer([images, *positions, channels], c.result, "out")
    down, along = _two(positions)
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
        bound_registers(stack, plan.resident)
        B.evaluate(_call(c, plan, [data, weight, out], [images, *_two(extents), down, along], block, thread))
    return compute_func([data, weight, out], body[0])


def _two(extents: list[Expr]) -> list[Expr]:
    return [B.i64(1), *extents][-2:]


def _call(
    of: Depthwise, plan: DepthwisePlan, buffers: list[Buffer], sizes: list[Expr], block: Expr, thread: Expr
) -> Expr:
    images, *extents = sizes
    numbers = [plan.lanes, plan.across, plan.wide, plan.places, plan.rows]
    numbers += [*of.window, *of.strides, *of.padding, *of.dilation]
    element, result = TYPES[of.dtype], TYPES[of.result]
    name = "_".join(["tvm_stitch_depthwise", *map(str, numbers), of.dtype, of.result])
    pointers = [tir.address_of(B.fetch(B.flat_view(buffer), 0)) for buffer in buffers]
    given = [images, B.i64(of.channels), *extents, block, thread]
    return T.cuda.func_call(
        name,
        *pointers,
        *(tir.Cast("int32", number) for number in given),
        source_code=sources("convolutions/depthwise")
        + _WRAPPER.format(name=name, traits=", ".join(map(str, numbers)), element=element, result=result),
    )


_WRAPPER = """
__device__ __forceinline__ void {name}(
    const void* data, const void* weight, void* out, int images, int channels, int height, int width, int out_height,
    int out_width, int block, int thread) {{
  using namespace tvm_stitch;
  depthwise<DepthwiseTraits<{traits}>>(
      (const {element}*)data, (const {element}*)weight, ({result}*)out,
      DepthwiseSizes{{images, channels, height, width, out_height, out_width}}, block, thread);
}}
"""
