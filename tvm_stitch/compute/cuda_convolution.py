# SPDX-License-Identifier: Apache-2.0
"""Exact float32 convolution of a CUDA device: a kernel of our own for constant weights, channels first.

A matrix product whose right side is gathered from the images while it is copied to shared memory, in the background.
``cuda_convolution_plan`` chooses the tile, and into how many splits the depth is divided: a batch of one has too few
results to fill a device otherwise, and cuDNN does not divide (512 channels, 3 x 3, 7 x 7 places: 157 us by cuDNN, 16
here, on an H100). Splits are added up by whatever stitched kernel reads them. A PrimFunc has sizes of its operands as
variables, so that convolutions that differ in them alone share a kernel.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codegen import builder as B
from ..codegen.gpu.launch_bounds import bound_registers
from ..compat import Buffer, Expr, T, tir
from ..graph.extent import ceildiv, product
from .cuda.sources import sources
from .cuda_convolution_plan import DEPTH, ConvolutionPlan, ImageConvolution, Tile
from .emit import compute_func

FIRST_CAPABILITY = 80
"""Ten times the least compute capability: that of copies in the background."""

_FUNCTION = "tvm_stitch_convolution"


@dataclass(frozen=True)
class KernelOf:
    """What a kernel is compiled for: the same for convolutions that differ in sizes alone.

    Attributes:
        tile, resident, gathered: of its plan.
        has_splits: whether sums are divided; into how many parts is a size.
        axes: spatial ones of the operands, 1 or 2.
        groups, window, strides, padding, dilation: of the convolution.
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


def kernel_of(convolution: ImageConvolution, plan: ConvolutionPlan, axes: int) -> KernelOf:
    """What the kernel of a convolution is compiled for."""
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
    )


def packed_weight(weight: np.ndarray, convolution: ImageConvolution, plan: ConvolutionPlan) -> np.ndarray:
    """The weight ``<groups * outputs, inputs, window...>`` as the kernel reads it: ``<groups * depth, line>``.

    The depth is filled up to whole steps, a line to whole tiles.
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


def cuda_convolution(of: KernelOf) -> Any:
    """The scheduled PrimFunc: data, packed weight and result, which has the splits as its first axis if it has some."""
    images, channels, lines, line, outputs, splits = (
        tir.Var(name, "int64") for name in ("n", "c", "k", "line", "f", "splits")
    )
    extents = [tir.Var(name, "int64") for name in "hw"[-of.axes :]]
    places = [tir.Var(f"out_{name}", "int64") for name in "hw"[-of.axes :]]
    data = _buffer([images, channels, *extents], "data")
    weight = _buffer([lines, line], "weight")
    out = _buffer([*([splits] if of.has_splits else []), images, outputs, *places], "out")
    count = splits if of.has_splits else B.i64(1)
    own = tir.floordiv(outputs, B.i64(of.groups))
    blocks = ceildiv(own, of.tile.rows), ceildiv(product([images, *places]), of.tile.places), of.groups, count
    with B.kernel() as body, ExitStack() as stack:
        stack.enter_context(T.launch_thread("blockIdx.x", product(blocks)))
        stack.enter_context(T.launch_thread("threadIdx.x", B.i64(of.tile.threads)))
        bound_registers(stack, of.resident)
        shared = B.local([of.tile.shared_bytes // 4], "float32", "shared", "shared.dyn")
        sizes = [
            images,
            tir.floordiv(channels, B.i64(of.groups)),
            *_two(extents),
            own,
            *_two(places),
            line,
            count,
        ]
        B.evaluate(_call(of, shared.data, [data, weight, out], sizes))
    return compute_func([data, weight, out], body[0])


def _two(extents: list[Any]) -> list[Any]:
    return [B.i64(1), *extents][-2:]


def _buffer(shape: list[Any], name: str) -> Buffer:
    return tir.decl_buffer(shape, "float32", name)


def _call(of: KernelOf, shared: Expr, buffers: list[Buffer], sizes: list[Any]) -> Expr:
    tile = of.tile
    numbers = [tile.rows, tile.places, tile.slices, DEPTH, int(of.gathered), of.groups]
    numbers += [*of.window, *of.strides, *of.padding, *of.dilation]
    name = "_".join([_FUNCTION, *map(str, numbers)])
    pointers = [tir.address_of(B.fetch(B.flat_view(buffer), 0)) for buffer in buffers]
    return T.cuda.func_call(
        name,
        shared,
        *pointers,
        *(tir.Cast("int32", size) for size in sizes),
        source_code=sources("copies", "convolution_float")
        + _WRAPPER.format(name=name, traits=", ".join(map(str, numbers))),
    )


_WRAPPER = """
__device__ __forceinline__ void {name}(
    void* shared, const void* data, const void* weight, void* out, int images, int channels, int height, int width,
    int outputs, int out_height, int out_width, int line, int splits) {{
  using namespace tvm_stitch;
  convolution_of_floats<ConvolutionTraits<{traits}>>(
      (float*)shared, (const float*)data, (const float*)weight, (float*)out,
      ConvolutionSizes{{images, channels, height, width, outputs, out_height, out_width, line, splits}});
}}
"""
