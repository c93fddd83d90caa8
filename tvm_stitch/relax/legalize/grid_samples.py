# SPDX-License-Identifier: Apache-2.0
"""Legalize bicubic sampling at points of a grid, with coordinates and weights as operators of their own.

TVM's legalization writes one expression, in which each of 16 pixels has a copy of the coordinates, and each copy
reflects them again. Its kernels took up to a minute to compile. Here a point has four rows, four columns and their
weights, which are computed once for each point.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from ..rewriting.views import shape_of

ALPHA = -0.75
"""The parameter of the cubic, as in PyTorch and ONNX."""

FAR = float(1 << 30)
"""Coordinates are limited to this before they become int32."""


def _grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, shapes = call.attrs, [shape_of(arg) for arg in call.args]
    served = str(attrs.method) == "bicubic" and str(attrs.layout) == "NCHW"
    if not served or any(shape is None or len(shape) != 4 for shape in shapes):
        return _of_half(builder, call, call.op.get_attr("FLegalize")(builder, call))
    return builder.call_te(
        bicubic_samples,
        *call.args,
        str(attrs.padding_mode),
        bool(attrs.align_corners),
        primfunc_name_hint="grid_sample",
    )


def _of_half(builder: relax.BlockBuilder, call: relax.Call, sampled: relax.Expr) -> relax.Expr:
    """Return samples in the type of the call. TVM computes those of half types in float32, and keeps that type."""
    dtype = str(call.ty.dtype.dtype)
    if dtype not in ("float16", "bfloat16"):
        return sampled
    sampled = builder.emit(sampled)
    return sampled if str(sampled.ty.dtype.dtype) == dtype else builder.call_te(topi.cast, sampled, dtype)


GRID_SAMPLES = {"relax.image.grid_sample": _grid_sample}
"""For ``LegalizeOps``. TVM legalizes the other methods."""


def bicubic_samples(x: te.Tensor, grid: te.Tensor, padding: str, aligned: bool) -> te.Tensor:
    """Return the images at the points of a grid, by cubics through four rows and four columns.

    Args:
        x: images ``[N, C, H, W]`` of floats.
        grid: points ``[N, 2, P, Q]``, column first, between -1 and 1 inside of an image.
        padding: pixels outside of an image: ``zeros``, ``border`` or ``reflection``.
        aligned: -1 and 1 are the centres of the outer pixels, not their outer edges.

    Returns:
        ``[N, C, P, Q]``.
    """
    batch, channels, height, width = x.shape
    shape = (batch, *grid.shape[2:])
    rows = _Axis(grid, 1, height, shape, padding, aligned)
    columns = _Axis(grid, 0, width, shape, padding, aligned)

    def pixel(n: Any, c: Any, p: Any, q: Any, i: int, j: int) -> Any:
        row, column = rows.positions[i](n, p, q), columns.positions[j](n, p, q)
        value = x(n, c, row, column)
        if padding != "zeros":
            return value
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return tirx.if_then_else(inside, value, tirx.const(0.0, x.dtype))

    def sample(n: Any, c: Any, p: Any, q: Any) -> Any:
        total = None
        for i in range(4):
            terms = [pixel(n, c, p, q, i, j) * columns.weights[j](n, p, q) for j in range(4)]
            along = (terms[0] + terms[1] + terms[2] + terms[3]) * rows.weights[i](n, p, q)
            total = along if total is None else total + along
        return total

    return te.compute((batch, channels, *grid.shape[2:]), sample, name="grid_sample")


class _Axis:
    """The four positions along an axis around each point, as int32, and their weights."""

    def __init__(self, grid: te.Tensor, at: int, extent: Any, shape: Any, padding: str, aligned: bool):
        dtype = grid.dtype
        name = "row" if at else "column"
        size = tirx.Cast(dtype, extent)
        one, half = tirx.const(1.0, dtype), tirx.const(0.5, dtype)

        def coordinate(n: Any, p: Any, q: Any) -> Any:
            place = grid(n, at, p, q) + one
            return place * (size - one) * half if aligned else place * size * half - half

        where = te.compute(shape, coordinate, name=f"{name}_coordinate")
        below = te.compute(shape, lambda *k: te.floor(where(*k)), name=f"{name}_below")
        part = te.compute(shape, lambda *k: where(*k) - below(*k), name=f"{name}_part")
        first = te.compute(
            shape, lambda *k: _integer(below(*k)) - tirx.const(1, "int32"), name=f"{name}_first"
        )
        bounds = _Bounds(tirx.Cast("int32", extent), padding, aligned)

        def position(tap: int) -> te.Tensor:
            return te.compute(
                shape, lambda *k: bounds.inside(first(*k) + tirx.const(tap, "int32")), name=f"{name}_{tap}"
            )

        def weight(tap: int, of: Any) -> te.Tensor:
            return te.compute(shape, lambda *k: of(part(*k)), name=f"{name}_weight_{tap}")

        distances = (lambda t: _far(t + one), _near, lambda t: _near(one - t), lambda t: _far(one - t + one))
        self.positions = [position(tap) for tap in range(4)]
        self.weights = [weight(tap, of) for tap, of in enumerate(distances)]


class _Bounds:
    """Moves a position that lies outside of an image to the position whose pixel counts there."""

    def __init__(self, extent: Any, padding: str, aligned: bool):
        self.extent, self.padding, self.aligned = extent, padding, aligned

    def inside(self, at: Any) -> Any:
        one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
        last = self.extent - one
        if self.padding == "zeros":
            return at
        if self.padding == "reflection":
            # Images repeat with every other one reversed. Aligned ones share the pixels at their edges.
            period = (last if self.aligned else self.extent) * tirx.const(2, "int32")
            place = tirx.floormod(at, tirx.max(period, one))
            back = period - place if self.aligned else period - one - place
            at = tirx.Select(place <= last, place, back)
        return tirx.max(tirx.min(at, last), zero)


def _integer(value: Any) -> Any:
    far = tirx.const(FAR, _dtype(value))
    return tirx.Cast("int32", tirx.max(tirx.min(value, far), -far))


def _near(t: Any) -> Any:
    """Return the weight of a pixel at a distance of at most 1."""
    two, three, one = (tirx.const(v, _dtype(t)) for v in (ALPHA + 2.0, ALPHA + 3.0, 1.0))
    return (two * t - three) * t * t + one


def _far(t: Any) -> Any:
    """Return the weight of a pixel at a distance between 1 and 2."""
    a, five, eight, four = (tirx.const(ALPHA * v, _dtype(t)) for v in (1.0, 5.0, 8.0, 4.0))
    return ((a * t - five) * t + eight) * t - four


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)
