# SPDX-License-Identifier: Apache-2.0
"""PyTorch's reads and writes at computed indices for TVM's importer: advanced indexing, scatters, sampling of
grids.

TVM's importer reads ``x[:, i, j]`` at all pairs of both indices. It has no scatter that adds up (graph networks),
and supports ``x[i] = v`` only with an index for every axis. It passes the coordinates of a grid in an order that
TVM's operator does not accept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...graph.extent import same
from .importing.unsupported import Unsupported
from .operators.gathers import nonzero
from .operators.values import (
    cast,
    constant,
    full,
    has_no_elements,
    known_shape,
    naturals,
    result_type,
    type_name,
    widened,
)

REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
"""PyTorch's names of a scatter's reductions, with TVM's."""
OF_BOOLEANS = {"add": "max", "mul": "min"}
"""Reductions of 0 and 1 that give PyTorch's sums and products of booleans. A sum of many ones would wrap around."""
INTERPOLATIONS = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
"""Names by PyTorch's numbers."""


def indexing_converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converters of indexing, for ``from_exported_program(program, custom_convert_map=...)``."""
    return {
        "grid_sampler_2d.default": _grid_sampler,
        "index.Tensor": _index,
        "index_put.default": _index_put,
        "scatter.src": _scatter,
        "scatter.value": _scatter_value,
        "scatter_add.default": _scatter_add,
        "scatter_reduce.two": _scatter_reduce,
        "unfold.default": _unfold,
    }


def _grid_sampler(node: Any, importer: Any) -> Any:
    """(input <N, C, H, W>, grid <N, H, W, 2>, interpolation, padding, align corners).

    TVM's operator takes the coordinates as the first axis of the grid. Its kernel makes float32 of half types, whatever
    its type says.
    """
    dtype = result_type(node)
    x, grid = (widened(importer.env[arg], importer) for arg in node.args[:2])
    emit = importer.block_builder.emit
    sampled = emit(
        R.image.grid_sample(
            x,
            emit(R.permute_dims(grid, [0, 3, 1, 2])),
            method=INTERPOLATIONS[node.args[2]],
            layout="NCHW",
            padding_mode=PADDINGS[node.args[3]],
            align_corners=bool(node.args[4]),
        )
    )
    return cast(sampled, dtype, importer)


class _Indexed:
    """``x[i, :, j]``: the indexed axes, moved to the front, and their position in PyTorch's result."""

    def __init__(self, node: Any, importer: Any):
        self.emit = importer.block_builder.emit
        self.data = importer.env[node.args[0]]
        self.rank = len(self.data.ty.shape)
        given = _given_indices(node, importer)
        self.axes = [axis for axis, index in enumerate(given) if index is not None]
        self.rest = [axis for axis in range(self.rank) if axis not in self.axes]
        self.indices = [
            naturals(index, self.data.ty.shape[axis], importer)
            for axis, index in enumerate(given)
            if index is not None
        ]
        self.width = max(len(index.ty.shape) for index in self.indices)
        """Number of axes of the broadcast indices."""
        self.first = self.axes[0] if self.axes[-1] - self.axes[0] < len(self.axes) else 0
        """Position of these axes in the result: that of the indexed axes, or the front if those are not adjacent."""

    def fronted(self) -> Any:
        """Return the data with the indexed axes first."""
        return self._permuted(self.data, [*self.axes, *self.rest])

    def as_data(self, moved: Any) -> Any:
        """Return data from :meth:`fronted` in the original order of axes."""
        order = [*self.axes, *self.rest]
        return self._permuted(moved, [order.index(axis) for axis in range(self.rank)])

    def as_result(self, values: Any) -> Any:
        """Return a result with the indices' axes first in PyTorch's order."""
        return self._permuted(values, self.order())

    def from_result(self, values: Any) -> Any:
        """Return a result in PyTorch's order with the indices' axes first."""
        order = self.order()
        return self._permuted(values, [order.index(axis) for axis in range(len(order))])

    def order(self) -> list[int]:
        """Return for each axis of PyTorch's result its position if the indices' axes come first."""
        lead, rest = list(range(self.width)), list(range(self.width, self.width + len(self.rest)))
        return [*rest[: self.first], *lead, *rest[self.first :]]

    def _permuted(self, x: Any, order: Sequence[int]) -> Any:
        return x if list(order) == sorted(order) else self.emit(R.permute_dims(x, list(order)))


def _given_indices(node: Any, importer: Any) -> list[Any]:
    """Return the index of each axis, or None. A mask becomes the positions where it is true, one for each axis.

    Raises:
        Unsupported: for two masks, whose numbers of true elements need not be equal.
    """
    masks = [i for i in node.args[1] if i is not None and type_name(importer.env[i]) in ("bool", "uint8")]
    if len(masks) > 1:
        raise Unsupported.at(node, "indices with two masks are not imported")
    given: list[Any] = []
    for each in node.args[1]:
        index = None if each is None else importer.env[each]
        if each not in masks or index is None:
            given.append(index)
            continue
        rows = nonzero(node, index, importer)
        emit, count = importer.block_builder.emit, rows.ty.shape[1]
        for axis in range(len(index.ty.shape)):
            row = emit(R.strided_slice(rows, [0], [axis], [axis + 1]))
            given.append(emit(R.reshape(row, [count])))
    return given


def _index(node: Any, importer: Any) -> Any:
    """(input, [index or None for each axis]) -> the elements at the indices, which are broadcast with each other."""
    shape = known_shape(node)
    if shape is not None and 0 in shape:
        return full(shape, 0, type_name(importer.env[node.args[0]]), importer)
    indexed = _Indexed(node, importer)
    if len(indexed.axes) == 1:
        return indexed.emit(R.take(indexed.data, indexed.indices[0], indexed.axes[0]))
    elements = indexed.emit(R.index_tensor(indexed.fronted(), indexed.indices))
    return indexed.as_result(elements)


def _index_put(node: Any, importer: Any) -> Any:
    """(input, [index or None for each axis], values, accumulate=False) -> the input with values at the indices."""
    if has_no_elements(importer.env[node.args[0]]) or has_no_elements(importer.env[node.args[2]]):
        return importer.env[node.args[0]]
    indexed, emit = _Indexed(node, importer), importer.block_builder.emit
    fronted = indexed.fronted()
    shape = list(emit(R.index_tensor(fronted, indexed.indices)).ty.shape)  # dropped later: nothing reads it
    lead = shape[: indexed.width]
    columns = [emit(R.expand_dims(emit(R.broadcast_to(i, lead)), [-1])) for i in indexed.indices]
    positions = emit(R.concat(columns, axis=-1)) if len(columns) > 1 else columns[0]
    values = cast(importer.env[node.args[2]], type_name(indexed.data), importer)
    values = indexed.from_result(emit(R.broadcast_to(values, [shape[axis] for axis in indexed.order()])))
    accumulates = node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False)

    def written(data: Any, source: Any, how: str) -> Any:
        return emit(R.scatter_nd(data, positions, source, how))

    done = _of_numbers(written, fronted, values, "add" if accumulates else "update", importer)
    return indexed.as_data(done)


def _of_numbers(
    scatter: Callable[[Any, Any, str], Any], data: Any, source: Any, how: str, importer: Any
) -> Any:
    """Return a scatter of data, of whose booleans TVM can make none: they are scattered as bytes."""
    if type_name(data) != "bool":
        return scatter(data, source, how)
    data, source = (cast(each, "int8", importer) for each in (data, source))
    return cast(scatter(data, source, OF_BOOLEANS.get(how, how)), "bool", importer)


def _scattered(importer: Any, x: Any, axis: int, index: Any, source: Any, how: str) -> Any:
    """Return ``x`` with the source's elements at the positions of the index along an axis."""
    emit = importer.block_builder.emit

    def scattered(data: Any, numbers: Any, reduction: str) -> Any:
        return _along(emit, data, axis, index, numbers, reduction)

    return _of_numbers(scattered, x, source, how, importer)


def _along(emit: Callable[[Any], Any], x: Any, axis: int, index: Any, source: Any, how: str) -> Any:
    """Return ``x`` with the source's elements at the positions of the index, which may be smaller than both.

    TVM's operator requires an index as large as the source, and as large as the data in all axes but one.
    """
    if has_no_elements(index):
        return x
    if not x.ty.shape or not index.ty.shape:
        shape = list(x.ty.shape)
        x, index, source = (
            each if each.ty.shape else emit(R.reshape(each, [1])) for each in (x, index, source)
        )
        return emit(R.reshape(_along(emit, x, 0, index, source, how), shape))
    axis %= len(x.ty.shape)
    wanted = list(index.ty.shape)
    for at, extent in enumerate(wanted):
        if not same(source.ty.shape[at], extent):
            source = emit(R.strided_slice(source, [at], [0], [extent]))
    for at, extent in enumerate(wanted):
        if at != axis and not same(x.ty.shape[at], extent):
            inner = emit(R.strided_slice(x, [at], [0], [extent]))
            inner = _along(emit, inner, axis, index, source, how)
            rest = emit(R.strided_slice(x, [at], [extent], [x.ty.shape[at]]))
            return emit(R.concat([inner, rest], axis=at))
    return emit(R.scatter_elements(x, index, source, axis=axis, reduction=how))


def _operands(node: Any, importer: Any) -> tuple[Any, Any, int, Any]:
    x, axis = importer.env[node.args[0]], node.args[1]
    return importer, x, axis, cast(importer.env[node.args[2]], "int64", importer)


def _filled(emit: Callable[[Any], Any], value: float, like: Any, dtype: str) -> Any:
    return emit(R.full(list(like.ty.shape), constant(value, dtype), dtype))


def _scatter(node: Any, importer: Any) -> Any:
    """(input, axis, index, source)."""
    return _scattered(*_operands(node, importer), importer.env[node.args[3]], "update")


def _scatter_value(node: Any, importer: Any) -> Any:
    """(input, axis, index, number)."""
    _, x, axis, index = _operands(node, importer)
    source = _filled(importer.block_builder.emit, node.args[3], index, type_name(x))
    return _scattered(importer, x, axis, index, source, "update")


def _scatter_add(node: Any, importer: Any) -> Any:
    """(input, axis, index, source)."""
    return _scattered(*_operands(node, importer), importer.env[node.args[3]], "add")


def _scatter_reduce(node: Any, importer: Any) -> Any:
    """(input, axis, index, source, reduction, include_self=True).

    Without ``include_self`` an element that receives values does not count itself.
    """
    _, x, axis, index = _operands(node, importer)
    source, reduction, emit = importer.env[node.args[3]], node.args[4], importer.block_builder.emit
    dtype = type_name(x)
    if reduction == "mean" and dtype == "bool":
        raise Unsupported.at(node, "means of booleans are not imported")

    def scattered(data: Any, values: Any, how: str) -> Any:
        return _scattered(importer, data, axis, index, values, how)

    start = x
    if not node.kwargs.get("include_self", True):
        start = scattered(x, _filled(emit, _neutral(reduction, dtype), index, dtype), "update")
    if reduction != "mean":
        return scattered(start, source, REDUCTIONS[reduction])
    one = _filled(emit, 1, x, dtype)
    counted = one
    if start is not x:
        counted = scattered(one, _filled(emit, 0, index, dtype), "update")
    counted = scattered(counted, _filled(emit, 1, index, dtype), "add")
    quotient = R.divide if "float" in dtype else R.floor_divide
    return emit(quotient(scattered(start, source, "add"), counted))


def _neutral(reduction: str, dtype: str) -> float:
    """Return the neutral element of a reduction."""
    if reduction in ("sum", "mean"):
        return 0
    if reduction == "prod":
        return 1
    upwards = reduction == "amax"
    if dtype == "bool":
        return int(not upwards)
    if "float" in dtype:
        return -np.inf if upwards else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if upwards else limits.max)


def _unfold(node: Any, importer: Any) -> Any:
    """(input, axis, size, step) -> windows along an axis, with their elements in a new last axis."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axis, size, step = (int(number) for number in node.args[1:4])
    shape = known_shape(node)
    if not x.ty.shape or (shape is not None and 0 in shape):
        whole = [] if shape is None else shape
        return full(whole, 0, type_name(x), importer) if 0 in whole else emit(R.reshape(x, whole))
    axis %= len(x.ty.shape)
    count = (x.ty.shape[axis] - size) // step + 1
    begins = emit(R.expand_dims(emit(R.arange(0, count * step, step, "int64")), [1]))
    positions = emit(R.add(begins, relax.const(np.arange(size), "int64")))
    windows = emit(R.take(x, positions, axis, mode="fast"))
    rank = len(windows.ty.shape)
    order = [at for at in range(rank) if at != axis + 1] + [axis + 1]
    return windows if axis + 1 == rank - 1 else emit(R.permute_dims(windows, order))
