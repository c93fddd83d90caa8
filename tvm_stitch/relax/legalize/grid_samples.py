# SPDX-License-Identifier: Apache-2.0
"""Legalize sampling at points of a grid, with coordinates and weights as operators of their own.

TVM's legalization writes one expression, in which each pixel has a copy of the coordinates, and each copy reflects
them again. Its kernels took up to a minute to compile. Here a point has the positions of its pixels along each axis and
their weights, which are computed once for each point. All reads are inside of the image. None is conditional, since TVM
branches in each lane apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from ...graph.dtype import compute_dtype
from ..rewriting.views import shape_of

ALPHA = -0.75
"""The parameter of the cubic, as in PyTorch and ONNX."""

FAR = float(1 << 30)
"""Coordinates are limited to this before they become int32."""


def _grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, shapes = call.attrs, [shape_of(arg) for arg in call.args]
    method, rank = str(attrs.method), len(str(attrs.layout))
    served = method in ("bilinear", "nearest") or (method == "bicubic" and rank == 4)
    if not served or any(shape is None or len(shape) != rank for shape in shapes):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(
        samples,
        *call.args,
        method,
        str(attrs.padding_mode),
        bool(attrs.align_corners),
        primfunc_name_hint="grid_sample",
    )


GRID_SAMPLES = {"relax.image.grid_sample": _grid_sample}
"""For ``LegalizeOps``."""


def samples(x: te.Tensor, grid: te.Tensor, method: str, padding: str, aligned: bool) -> te.Tensor:
    """Return the images at the points of a grid.

    Samples and coordinates of half types are computed in float32, and samples are rounded once.

    Args:
        x: images ``[N, C, H, W]`` or ``[N, C, D, H, W]``.
        grid: points ``[N, 2, P, Q]`` or ``[N, 3, O, P, Q]`` of floats, last axis first. Between -1 and 1 they are
            inside of an image.
        method: ``nearest``, ``bilinear`` along all axes, or ``bicubic``: through four pixels along each axis.
        padding: pixels outside of an image: ``zeros``, ``border`` or ``reflection``.
        aligned: -1 and 1 are the centres of the outer pixels, not their outer edges.

    Returns:
        ``[N, C, P, Q]`` or ``[N, C, O, P, Q]``, of the type of ``x``.
    """
    batch, channels, *sizes = x.shape
    points = grid.shape[2:]
    dtype = compute_dtype(x.dtype)
    axes = [
        _Axis(grid, len(sizes) - 1 - i, size, (batch, *points), method, padding, aligned)
        for i, size in enumerate(sizes)
    ]

    def pixel(n: Any, c: Any, point: Any, taps: Sequence[int]) -> Any:
        value = x(n, c, *(axis.positions[tap](n, *point) for axis, tap in zip(axes, taps)))
        if padding != "zeros":
            return tirx.Cast(dtype, value)
        inside = [axis.inside[tap](n, *point) for axis, tap in zip(axes, taps)]
        return _masked(tirx.Cast(dtype, value), functools.reduce(tirx.bitwise_and, inside))

    def along(n: Any, c: Any, point: Any, taps: Sequence[int]) -> Any:
        if len(taps) == len(axes):
            return pixel(n, c, point, taps)
        axis, total = axes[len(taps)], None
        for tap in range(len(axis.positions)):
            value = along(n, c, point, [*taps, tap])
            if axis.weights:
                value = value * tirx.Cast(dtype, axis.weights[tap](n, *point))
            total = value if total is None else total + value
        return total

    return te.compute(
        (batch, channels, *points),
        lambda n, c, *point: tirx.Cast(x.dtype, along(n, c, point, [])),
        name="grid_sample",
    )


class _Axis:
    """The pixels along an axis around each point: positions as int32 in the image, whether they were inside, weights.

    ``inside`` is empty unless pixels outside of an image are zeros, and ``weights`` for the nearest pixel.
    """

    def __init__(
        self,
        grid: te.Tensor,
        at: int,
        extent: Any,
        shape: Any,
        method: str,
        padding: str,
        aligned: bool,
    ):
        self._shape, self._name = shape, f"axis_{at}"
        dtype = compute_dtype(grid.dtype)
        size = tirx.Cast(dtype, extent)
        one, half, zero = (tirx.const(v, dtype) for v in (1.0, 0.5, 0.0))
        bounds = _Bounds(tirx.Cast("int32", extent), padding, aligned)

        def coordinate(*k: Any) -> Any:
            place = tirx.Cast(dtype, grid(k[0], at, *k[1:])) + one
            where = place * (size - one) * half if aligned else place * size * half - half
            if method == "bicubic" or padding == "zeros":
                return where
            if padding == "reflection":
                where = _reflected(where, size, aligned)
            return tirx.max(tirx.min(where, size - one), zero)

        where = self._compute("coordinate", coordinate)
        self.weights: list[te.Tensor] = []
        self.positions: list[te.Tensor] = []
        self.inside: list[te.Tensor] = []
        if method == "nearest":
            first, count = self._of("first", where, lambda t: _integer(te.nearbyint(t))), 1
        else:
            below = self._of("below", where, te.floor)
            part = self._compute("part", lambda *k: where(*k) - below(*k))
            start = -1 if method == "bicubic" else 0
            first = self._of("first", below, lambda t: _integer(t) + tirx.const(start, "int32"))
            weights = _CUBIC if method == "bicubic" else _LINEAR
            count = len(weights)
            self.weights = [self._of(f"weight_{tap}", part, of) for tap, of in enumerate(weights)]
        for tap in range(count):
            self.positions.append(self._of(f"position_{tap}", first, _after(tap, bounds.nearest)))
            if padding == "zeros":
                self.inside.append(self._of(f"inside_{tap}", first, _after(tap, bounds.contain)))

    def _of(self, name: str, of: te.Tensor, value: Callable[[Any], Any]) -> te.Tensor:
        return self._compute(name, lambda *k: value(of(*k)))

    def _compute(self, name: str, value: Callable[..., Any]) -> te.Tensor:
        return te.compute(self._shape, value, name=f"{self._name}_{name}")


class _Bounds:
    """Moves a position that lies outside of an image to the position whose pixel counts there."""

    def __init__(self, extent: Any, padding: str, aligned: bool):
        self.extent, self.padding, self.aligned = extent, padding, aligned

    def contain(self, at: Any) -> Any:
        """Return a mask: all bits if a position is inside of an image, else none."""
        zero = tirx.const(0, "int32")
        return tirx.Select(tirx.all(at >= zero, at < self.extent), tirx.const(-1, "int32"), zero)

    def nearest(self, at: Any) -> Any:
        one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
        last = self.extent - one
        if self.padding == "reflection":
            # Images repeat with every other one reversed. Aligned ones share the pixels at their edges.
            period = (last if self.aligned else self.extent) * tirx.const(2, "int32")
            place = tirx.floormod(at, tirx.max(period, one))
            back = period - place if self.aligned else period - one - place
            at = tirx.Select(place <= last, place, back)
        return tirx.max(tirx.min(at, last), zero)


def _reflected(where: Any, size: Any, aligned: bool) -> Any:
    """Return a coordinate, reflected at the centres of the outer pixels or at their edges until it is between these."""
    dtype = _dtype(where)
    one = tirx.const(1.0, dtype)
    low = tirx.const(0.0 if aligned else -0.5, dtype)
    span = tirx.max(size - one, tirx.const(0.5, dtype)) if aligned else size
    period = span * tirx.const(2.0, dtype)
    place = tirx.abs(where - low)
    rest = place - te.floor(place / period) * period
    return span - tirx.abs(span - rest) + low


def _integer(value: Any) -> Any:
    far = tirx.const(FAR, _dtype(value))
    return tirx.Cast("int32", tirx.max(tirx.min(value, far), -far))


def _masked(value: Any, mask: Any) -> Any:
    """Return a value, or zero if no bit of a mask of int32 is set.

    The mask is no condition. TVM branches on a condition whose value reads at a computed index, for each lane apart.
    """
    dtype = _dtype(value)
    if not dtype.startswith("float"):
        return value & tirx.Cast(dtype, mask)
    bits = f"int{dtype.removeprefix('float')}"
    return tirx.reinterpret(dtype, tirx.reinterpret(bits, value) & tirx.Cast(bits, mask))


def _after(tap: int, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda first: value(first + tirx.const(tap, "int32"))


def _near(t: Any) -> Any:
    """Return the weight of a pixel at a distance of at most 1."""
    two, three, one = (tirx.const(v, _dtype(t)) for v in (ALPHA + 2.0, ALPHA + 3.0, 1.0))
    return (two * t - three) * t * t + one


def _far(t: Any) -> Any:
    """Return the weight of a pixel at a distance between 1 and 2."""
    a, five, eight, four = (tirx.const(ALPHA * v, _dtype(t)) for v in (1.0, 5.0, 8.0, 4.0))
    return ((a * t - five) * t + eight) * t - four


def _one(t: Any) -> Any:
    return tirx.const(1.0, _dtype(t))


_LINEAR: tuple[Callable[[Any], Any], ...] = (lambda t: _one(t) - t, lambda t: t)
_CUBIC: tuple[Callable[[Any], Any], ...] = (
    lambda t: _far(t + _one(t)),
    _near,
    lambda t: _near(_one(t) - t),
    lambda t: _far(_one(t) - t + _one(t)),
)
"""The weights of the pixels around a point, from its distance to the one below it."""


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)
