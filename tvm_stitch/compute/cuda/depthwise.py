# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution on a CUDA device: kernels of this package for float32 and half types.

A depthwise convolution multiplies each element by a few weights, so it is bound by memory, or by the loads of its
window. With channels last, a thread computes neighbouring positions of a row for a few channels. With channels first,
it computes neighbouring rows of a column. It loads what their windows share once. On an H200 cuDNN's kernels take 1.1
to 5 times as long. Sums are float32, and are rounded once: behind the element-wise operators of an epilogue, if there
are any.

Extents are variables of the PrimFunc, but for the channels. So convolutions that differ only in sizes share a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from ...codegen import builder as B
from ...codegen.gpu.launch_bounds import bound_registers
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...cost.choices import Choices
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ceildiv, product
from ...repairs.tir.exact_constants import exact_constants
from ..cpu.emit import compute_func
from .epilogue import Epilogue, TileEvaluator
from .positions import LastAxis, two_axes
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

    @property
    def neighbours(self) -> int:
        """Vectors of results of a thread."""
        return self.across


@dataclass(frozen=True)
class RowsPlan:
    """The rows of a thread with channels first, and the threads of a block."""

    down: int
    threads: int

    @property
    def lanes(self) -> int:
        """Neighbouring channels of a thread."""
        return 1

    @property
    def neighbours(self) -> int:
        """Results of a thread."""
        return self.down


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


@dataclass(frozen=True)
class DepthwiseKernel:
    """The compile-time parameters of a kernel: those of the convolution, and the plan."""

    convolution: Depthwise
    plan: DepthwisePlan | RowsPlan

    def text(self) -> str:
        """Return the parameters as text, for an attribute of the kernel."""
        return json.dumps([asdict(self.convolution), asdict(self.plan)])

    @staticmethod
    def from_text(text: str) -> DepthwiseKernel:
        """Return the parameters from the text that :meth:`text` returned."""
        convolution, plan = json.loads(text)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in convolution.items()
        }
        return DepthwiseKernel(Depthwise(**fields), (RowsPlan if "down" in plan else DepthwisePlan)(**plan))


def cuda_depthwise(of: DepthwiseKernel, choices: Choices, epilogue: Epilogue | None = None) -> PrimFunc:
    """Return the scheduled PrimFunc of data ``<images, extents..., channels>``, weight ``<taps, channels>`` and result
    ``<images, positions..., channels>``.

    The weight's taps are the positions of the window, row by row. With channels first, the shapes are ``<images,
    channels, extents...>``, ``<channels, taps>`` and ``<images, channels, positions...>``.

    Args:
        of: the compile-time parameters.
        choices: the constants of choice of the device.
        epilogue: element-wise operators on the result. Its operands follow the weight, and its results replace the
            result.
    """
    c, plan, axes = of.convolution, of.plan, "hw"[-of.convolution.axes :]
    images, channels = tir.Var("n", "int64"), B.i64(c.channels)
    extents = [tir.Var(name, "int64") for name in axes]
    positions = [tir.Var(f"out_{name}", "int64") for name in axes]
    down, along = two_axes(positions)
    taps = B.i64(c.window[0] * c.window[1])
    shapes = [[images, *extents, channels], [taps, channels], [images, *positions, channels]]
    if c.channels_first:
        shapes = [[images, channels, *extents], [channels, taps], [images, channels, *positions]]
    data, weight = (tir.decl_buffer(shape, c.dtype, name) for shape, name in zip(shapes, ("data", "weight")))
    results = (
        [tir.decl_buffer(shapes[2], c.result, "out")] if epilogue is None else epilogue.buffers(shapes[2])
    )
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
        sizes = [images, channels, *two_axes(extents), down, along, block, thread]
        if epilogue is None:
            B.evaluate(_call(of, [data, weight, *results], sizes))
        else:
            sums = B.local([plan.neighbours * plan.lanes], "float32", "sums")
            at = B.local([5], "int64", "at")
            B.store(at, B.i64(0), [B.i64(4)])  # the results of a thread that the call leaves at once
            B.evaluate(_call(of, [data, weight, sums, at], sizes, is_stored=False))
            flat = [B.flat_view(buffer) for buffer in results]
            _evaluate(of, TileEvaluator(epilogue, flat, plan.lanes, choices), shapes[2], sums, at)
    kernel = compute_func([data, weight, *results], body[0])
    return kernel if epilogue is None else exact_constants(kernel)


def _evaluate(
    of: DepthwiseKernel, evaluator: TileEvaluator, whole: list[Expr], sums: Buffer, at: Buffer
) -> None:
    """Emit an epilogue of the sums of a thread, at the place that ``at`` holds."""
    c, lanes = of.convolution, of.plan.lanes
    image, vector, row, column, count = (B.fetch(at, i) for i in range(5))
    channel = vector * B.i64(lanes)  # TVM sees that it is a multiple of a vector

    def place(neighbour: Expr) -> LastAxis:
        position = [row + neighbour, column] if c.channels_first else [row, column + neighbour]
        position = position[-c.axes :]
        first = [image, channel, *position] if c.channels_first else [image, *position, channel]
        return LastAxis(whole, first)

    with B.when(tir.LT(B.i64(0), count)):
        evaluator.hold(place(B.i64(0)), len(whole) - 2)  # the axis of a thread's results
        with B.loop("unroll", of.plan.neighbours, "neighbour") as neighbour, B.when(tir.LT(neighbour, count)):
            evaluator.emit(sums, neighbour * B.i64(lanes), place(neighbour))


def _call(of: DepthwiseKernel, buffers: list[Buffer], sizes: list[Expr], is_stored: bool = True) -> Expr:
    """Return a call of the kernel's C++, which stores the result, or a thread's sums and their place in registers."""
    c, plan = of.convolution, of.plan
    if isinstance(plan, RowsPlan):
        function, traits = "depthwise_rows", "DepthwiseRows"
        numbers = [plan.down, plan.threads]
    else:
        function, traits = "depthwise", "DepthwiseTraits"
        numbers = [plan.lanes, plan.across, plan.wide, plan.places, plan.rows]
    numbers += [*c.window, *c.strides, *c.padding, *c.dilation]
    types = [c.dtype, c.result if is_stored else "sums"]
    name = "_".join([f"tvm_stitch_{function}", *map(str, numbers), *types])
    end = f"DepthwiseResults<{ELEMENT_TYPES[c.result]}>{{({ELEMENT_TYPES[c.result]}*)out}}"
    text = _WRAPPER.format(
        name=name,
        function=function,
        traits=f"{traits}<{', '.join(map(str, numbers))}>",
        element=ELEMENT_TYPES[c.dtype],
        given="void* out" if is_stored else "void* sums, void* at",
        end=end if is_stored else "DepthwiseKept{(float*)sums, (long long*)at}",
    )
    return T.cuda.func_call(
        name,
        *(tir.address_of(B.fetch(B.flat_view(buffer), 0)) for buffer in buffers),
        *(tir.Cast("int32", size) for size in sizes),
        source_code=sources("convolutions/depthwise") + text,
    )


_WRAPPER = """
__device__ __forceinline__ void {name}(
    const void* data, const void* weight, {given}, int images, int channels, int height, int width, int out_height,
    int out_width, int block, int thread) {{
  using namespace tvm_stitch;
  {function}<{traits}>(
      (const {element}*)data, (const {element}*)weight,
      DepthwiseSizes{{images, channels, height, width, out_height, out_width}}, block, thread,
      {end});
}}
"""
