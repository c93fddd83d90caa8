# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators that move data without computing: views, slices, repetitions, rolls.

TVM's importer drops axes of any size in ``squeeze``, cannot roll an empty tensor, and reads strided views of
contiguous tensors only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import sympy
import torch
from tvm import relax, te, tirx
from tvm.relax import op as R

from ....compat import int_value
from ...symbolic.computed import computed
from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from .values import array, cast, full, is_integer, known_shape, result_type, type_name, wrapped

_LARGEST = 2**63 - 1
"""The end of a slice that goes to the end of its axis."""


def shape_converters() -> dict[str, Converter]:
    """Return the converters of operators that move data, by the names of PyTorch's operators."""
    return {
        **{f"squeeze.{kind}": _squeeze for kind in ("default", "dim", "dims")},
        **dict.fromkeys(("alias.default", "clone.default", "contiguous.default", "detach.default"), _same),
        **dict.fromkeys(("lift_fresh_copy.default", "lift_fresh.default", "lift.default"), _same),
        "as_strided.default": _as_strided,
        "constant_pad_nd.default": _padded,
        "copy.default": _copy,
        "diagonal.default": _diagonal,
        "expand.default": _expand,
        "flip.default": _flip,
        "permute.default": _permute,
        "repeat.default": _repeat,
        "roll.default": _roll,
        "select.int": _select,
        "slice.Tensor": _slice,
        "slice_scatter.default": _slice_scatter,
        "unsqueeze.default": _unsqueeze,
        "view.default": _view,
        "reshape.default": _view,
        "_unsafe_view.default": _view,
    }


def _same(node: Any, importer: Any) -> Any:
    """(input)."""
    return importer.env[node.args[0]]


def _copy(node: Any, importer: Any) -> Any:
    """(destination, source) -> the source in the destination's shape and type."""
    target, source = (importer.env[arg] for arg in node.args[:2])
    source = cast(source, result_type(node), importer)
    return importer.block_builder.emit(R.broadcast_to(source, list(target.ty.shape)))


def _padded(node: Any, importer: Any) -> Any:
    """(input, widths, number=0): widths of both sides of an axis, the last axis first. Negative ones cut off."""
    x, widths = importer.env[node.args[0]], list(node.args[1])
    number = argument(node, 2, "value", 0)
    dtype = type_name(x)
    if dtype == "bool":
        number = int(bool(number))
    elif is_integer(dtype):
        number = wrapped(number, dtype)
    pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
    pairs += [[0, 0]] * (len(x.ty.shape) - len(pairs))
    border = [importer.env.get(width, width) for pair in reversed(pairs) for width in pair]
    if not all(isinstance(width, int) for width in border):
        return _symbolically_padded(x, border, number, importer)
    return importer.block_builder.emit(R.nn.pad(x, border, "constant", number)) if any(border) else x


def _squeeze(node: Any, importer: Any) -> Any:
    """(input, axes=None): axes of other extents than 1 remain."""
    x, before = importer.env[node.args[0]], node.args[0].meta["val"].shape
    given = argument(node, 1, "dim", None)
    axes = range(len(before)) if given is None else given if isinstance(given, (list, tuple)) else [given]
    gone = sorted({axis % len(before) for axis in axes if before and _is_one(before[axis])})
    return importer.block_builder.emit(R.squeeze(x, gone)) if gone else x


def _is_one(extent: Any) -> bool:
    return type(extent) is int and extent == 1


def _unsqueeze(node: Any, importer: Any) -> Any:
    """(input, axis)."""
    x = importer.env[node.args[0]]
    axis = int(argument(node, 1, "dim", 0)) % (len(x.ty.shape) + 1)
    return importer.block_builder.emit(R.expand_dims(x, axis))


def _expand(node: Any, importer: Any) -> Any:
    """(input, shape): -1 keeps an extent."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    if (shape := known_shape(node)) is not None:
        return emit(R.broadcast_to(x, shape))
    return importer._expand(node)


def _view(node: Any, importer: Any) -> Any:
    """(input, shape): one extent may be -1."""
    x = importer.env[node.args[0]]
    if (shape := known_shape(node)) is None:
        return importer._emit_torch_reshape(*importer.retrieve_args(node)[:2])
    if [int_value(extent) for extent in x.ty.shape] == shape:
        return x
    if 0 in shape:  # TVM's reshape takes 0 for an extent of the input
        return full(shape, 0, result_type(node), importer)
    return importer.block_builder.emit(R.reshape(x, shape))


def _symbolically_padded(x: Any, border: list[Any], number: Any, importer: Any) -> Any:
    """Return a tensor with a border. Negative widths cut off.

    Args:
        x: the tensor.
        border: the widths in front of and behind each axis, numbers or symbolic ones.
        number: the number in the border.
        importer: the importer.
    """

    def padded(x: Any, *border: Any) -> Any:
        front, behind = border[0::2], border[1::2]
        extents = [extent + before + after for extent, before, after in zip(x.shape, front, behind)]

        def value(*places: Any) -> Any:
            inner = [place - before for place, before in zip(places, front)]
            inside = [tirx.all(at >= 0, at < extent) for at, extent in zip(inner, x.shape)]
            return tirx.if_then_else(tirx.all(*inside), x(*inner), tirx.const(number, x.dtype))

        return te.compute(extents, value, name="padded")

    return computed(importer.block_builder, "padded", padded, (x,), border)


def _permute(node: Any, importer: Any) -> Any:
    """(input, axes)."""
    x = importer.env[node.args[0]]
    axes = [int(axis) % len(x.ty.shape) for axis in node.args[1]]
    return x if axes == sorted(axes) else importer.block_builder.emit(R.permute_dims(x, axes))


def _flip(node: Any, importer: Any) -> Any:
    """(input, axes)."""
    x = importer.env[node.args[0]]
    for axis in node.args[1] if x.ty.shape else ():
        x = importer.block_builder.emit(R.flip(x, int(axis) % len(x.ty.shape)))
    return x


def _repeat(node: Any, importer: Any) -> Any:
    """(input, repetitions of each axis, further ones in front)."""
    x = importer.env[node.args[0]]
    shape = known_shape(node)
    if shape is not None and 0 in shape:
        return full(shape, 0, result_type(node), importer)
    times = [importer.env.get(each, each) for each in node.args[1]]
    if any(not isinstance(each, int) for each in times):
        return _repeat_symbolic(x, times, importer)
    if all(each == 1 for each in times) and len(times) == len(x.ty.shape):
        return x
    return importer.block_builder.emit(R.tile(x, times))


def _repeat_symbolic(x: Any, times: list[Any], importer: Any) -> Any:
    """Return a tensor repeated a symbolic number of times: TVM's ``tile`` takes integers only."""
    emit = importer.block_builder.emit
    extents = [1] * (len(times) - len(x.ty.shape)) + list(x.ty.shape)
    pairs = [each for extent in extents for each in (1, extent)]
    x = emit(R.reshape(x, relax.ShapeExpr(pairs)))
    x = emit(R.broadcast_to(x, relax.ShapeExpr([each for pair in zip(times, extents) for each in pair])))
    return emit(R.reshape(x, relax.ShapeExpr([count * extent for count, extent in zip(times, extents)])))


def _roll(node: Any, importer: Any) -> Any:
    """(input, shifts, axes=()): without axes the flattened input is rolled."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    shape = list(x.ty.shape)
    if not shape or any(int_value(extent) == 0 for extent in shape):
        return x
    shifts, axes = node.args[1], argument(node, 2, "dims", [])
    shifts, axes = (list(each) if isinstance(each, (list, tuple)) else [each] for each in (shifts, axes))
    if not axes:
        return emit(R.reshape(_rolled(importer, emit(R.reshape(x, [-1])), shifts[0], 0), shape))
    for shift, axis in zip(shifts, axes, strict=True):
        x = _rolled(importer, x, shift, int(axis) % len(shape))
    return x


def _rolled(importer: Any, x: Any, shift: Any, axis: int) -> Any:
    emit, size = importer.block_builder.emit, x.ty.shape[axis]
    shift, known = importer.env[shift] if isinstance(shift, torch.fx.Node) else shift, int_value(size)
    if known is None or not isinstance(shift, int):  # a shift may be longer than the axis

        def sources(size: Any, shift: Any) -> Any:
            return te.compute((size,), lambda i: tirx.floormod(i - shift, size), name="rolled")

        places = computed(importer.block_builder, "rolled", sources, (), (size, shift))
        return emit(R.take(x, places, axis, mode="fast"))
    if shift % known == 0:
        return x
    middle = known - shift % known
    first = emit(R.strided_slice(x, [axis], [middle], [size]))
    return emit(R.concat([first, emit(R.strided_slice(x, [axis], [0], [middle]))], axis))


def _select(node: Any, importer: Any) -> Any:
    """(input, axis, index): a negative index counts from the end."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis, index = int(node.args[1]) % len(x.ty.shape), importer.env.get(node.args[2], node.args[2])
    size = x.ty.shape[axis]
    if not isinstance(index, int):
        if isinstance(getattr(index, "ty", None), relax.TensorType):
            return emit(R.take(x, cast(index, "int64", importer), axis))
        return emit(R.take(x, importer._prim_value_to_scalar_tensor(index, "int64"), axis))
    known = int_value(size)
    if index < 0 and known is not None:
        index += known
    return emit(R.take(x, relax.const(index, "int64"), axis))


def _bounds(node: Any, importer: Any, at: int, size: int) -> tuple[int, int, int] | None:
    """Return begin, end and step of a slice along an axis of a known size, or None if one is symbolic."""
    given = [argument(node, at + i, name, None) for i, name in enumerate(("start", "end", "step"))]
    if not all(each is None or isinstance(each, int) for each in given):
        return None
    begin, end, step = slice(*given).indices(size)
    return begin, max(begin, end), step


def _inside(node: Any, importer: Any, axis: int) -> tuple[Any, Any] | None:
    """Return begin and end of a slice that PyTorch knows to be inside a symbolic axis, or None.

    Its extent is then their difference. TVM bounds it by the axis, and does not see that two such extents are equal.
    """
    begin, end, step = (argument(node, 2 + i, name, None) for i, name in enumerate(("start", "end", "step")))
    given, result = (each.meta["val"].shape[axis] for each in (node.args[0], node))
    if step not in (None, 1):
        return None
    size = importer.env[node.args[0]].ty.shape[axis]
    bounds, known = [], []
    for bound, otherwise in ((begin, 0), (end, None)):
        bound = otherwise if bound is None else bound
        symbolic = bound.meta["val"] if isinstance(bound, torch.fx.Node) else bound
        if bound is None or isinstance(bound, int) and bound >= _LARGEST:
            bounds.append(size)
            known.append(_symbols(given))
        elif isinstance(bound, int) and bound < 0:
            bounds.append(size + bound)
            known.append(_symbols(given) + bound)
        else:
            bounds.append(bound if isinstance(bound, int) else importer.env[bound])
            known.append(_symbols(symbolic))
    if sympy.expand(known[1] - known[0] - _symbols(result)) != 0:
        return None
    return bounds[0], bounds[1]


def _symbols(extent: Any) -> Any:
    """Return an extent of PyTorch's as an expression."""
    return extent.node.expr if isinstance(extent, torch.SymInt) else sympy.Integer(extent)


def _slice(node: Any, importer: Any) -> Any:
    """(input, axis=0, start=None, end=None, step=1)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis = int(argument(node, 1, "dim", 0)) % len(x.ty.shape)
    size = int_value(x.ty.shape[axis])
    bounds = None if size is None else _bounds(node, importer, 2, size)
    if bounds is None:
        inside = _inside(node, importer, axis)
        if inside is None:
            return importer._slice(node)
        return emit(R.strided_slice(x, [axis], [inside[0]], [inside[1]], assume_inbound=True))
    begin, end, step = bounds
    if (begin, end, step) == (0, size, 1):
        return x
    shape = known_shape(node)
    if begin == end and shape is not None:
        return full(shape, 0, result_type(node), importer)
    return emit(R.strided_slice(x, [axis], [begin], [end], [step]))


def _slice_scatter(node: Any, importer: Any) -> Any:
    """(input, source, axis=0, start=None, end=None, step=1) -> the input with the source in a slice."""
    x, source, emit = importer.env[node.args[0]], importer.env[node.args[1]], importer.block_builder.emit
    axis = int(argument(node, 2, "dim", 0)) % len(x.ty.shape)
    size = int_value(x.ty.shape[axis])
    bounds = None if size is None else _bounds(node, importer, 3, size)
    if bounds is None:
        return importer._slice_scatter(node)
    begin, end, step = bounds
    source = cast(source, result_type(node), importer)
    if (begin, end, step) == (0, size, 1):
        return source
    if begin == end:
        return x
    if step == 1:
        parts = [emit(R.strided_slice(x, [axis], [0], [begin]))] if begin else []
        parts.append(source)
        if end != size:
            parts.append(emit(R.strided_slice(x, [axis], [end], [size])))
        return emit(R.concat(parts, axis))
    return emit(
        R.slice_scatter(
            x, source, relax.prim_value(begin), relax.prim_value(end), relax.prim_value(step), axis=axis
        )
    )


def _strides(shape: list[int]) -> list[int]:
    return [int(np.prod(shape[at + 1 :], dtype="int64")) for at in range(len(shape))]


def _as_strided(node: Any, importer: Any) -> Any:
    """(input, shape, strides, offset=None): the input's elements at these positions of its memory."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    before, shape = known_shape(node.args[0]), known_shape(node)
    strides, offset = list(node.args[2]), argument(node, 3, "storage_offset", None)
    given = node.args[0].meta["val"]
    if before is None or shape is None or not all(isinstance(each, int) for each in [*strides, offset or 0]):
        return _contiguous_view(node, importer)
    if not given.is_contiguous() or (given.storage_offset() != 0 and offset is not None):
        raise Unsupported.at(node, "a strided view of a tensor that is not contiguous is not imported")
    if 0 in shape:
        return full(shape, 0, result_type(node), importer)
    if shape == before and strides == _strides(before) and not offset:
        return x
    if strides == _strides(shape) and not offset and np.prod(shape) == np.prod(before):
        return emit(R.reshape(x, shape))
    positions = np.full(shape, offset or 0, "int64")
    for axis, (size, stride) in enumerate(zip(shape, strides)):
        positions += (np.arange(size) * stride).reshape([-1 if at == axis else 1 for at in range(len(shape))])
    if positions.max() >= np.prod(before):
        raise Unsupported.at(node, "a strided view that reads memory behind its tensor is not imported")
    return emit(R.take(emit(R.reshape(x, [-1])), array(positions), 0, mode="fast"))


def _contiguous_view(node: Any, importer: Any) -> Any:
    """Return a strided view of symbolic sizes, if it has all elements of a contiguous tensor in their order.

    Raises:
        Unsupported: for any other view.
    """

    def sizes(given: Any) -> list[Any]:
        return [each.meta["val"] if hasattr(each, "meta") else each for each in given]

    x, wanted, value = importer.env[node.args[0]], node.meta["val"], node.args[0].meta["val"]
    shape, strides = sizes(node.args[1]), sizes(node.args[2])
    offset = argument(node, 3, "storage_offset", None)
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    known = all(_is_same(a, b) for a, b in zip(strides, expected))
    whole = value.is_contiguous() and _is_same(math.prod(shape), math.prod(value.shape))
    if not (
        known and whole and type(value.storage_offset()) is int and offset in (None, value.storage_offset())
    ):
        raise Unsupported.at(node, "strided views of symbolic sizes are not imported")
    extents = [importer.env.get(each, each) if hasattr(each, "meta") else each for each in node.args[1]]
    assert len(extents) == len(wanted.shape)
    return importer.block_builder.emit(R.reshape(x, extents))


def _is_same(a: Any, b: Any) -> bool:
    """Return whether two extents are the same number for all values of their symbols."""
    first, second = (
        each.node.expr if isinstance(each, torch.SymInt) else sympy.Integer(each) for each in (a, b)
    )
    return bool(sympy.expand(first - second) == 0)


def _diagonal(node: Any, importer: Any) -> Any:
    """(input, offset=0, first axis=0, second axis=1) -> the diagonals as the last axis."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    rank = len(x.ty.shape)
    offset = int(argument(node, 1, "offset", 0))
    one, two = (int(argument(node, at, f"dim{at - 1}", at - 2)) % rank for at in (2, 3))
    sizes, shape = [int_value(x.ty.shape[axis]) for axis in (one, two)], known_shape(node)
    if None in sizes:
        return _symbolic_diagonal(x, one, two, offset, importer)
    if shape is not None and 0 in shape:
        return full(shape, 0, result_type(node), importer)
    rows, columns = sizes
    assert rows is not None and columns is not None
    first = (max(-offset, 0), max(offset, 0))
    count = min(rows - first[0], columns - first[1])
    rest = [axis for axis in range(rank) if axis not in (one, two)]
    moved = emit(R.permute_dims(x, [*rest, one, two])) if [*rest, one, two] != list(range(rank)) else x
    flat = emit(R.reshape(moved, [*(x.ty.shape[axis] for axis in rest), rows * columns]))
    positions = (first[0] + np.arange(count)) * columns + first[1] + np.arange(count)
    return emit(R.take(flat, relax.const(positions.astype("int64")), len(rest), mode="fast"))


def _symbolic_diagonal(x: Any, one: int, two: int, offset: int, importer: Any) -> Any:
    """Return the diagonals of two axes, of which one is symbolic, as the last axis."""
    row, column = max(-offset, 0), max(offset, 0)

    def diagonals(x: Any) -> Any:
        rest = [extent for axis, extent in enumerate(x.shape) if axis not in (one, two)]
        count = tirx.max(tirx.min(x.shape[one] - row, x.shape[two] - column), 0)

        def value(*places: Any) -> Any:
            at = iter(places[:-1])
            inside = {one: places[-1] + row, two: places[-1] + column}
            return x(*(inside[axis] if axis in inside else next(at) for axis in range(len(x.shape))))

        return te.compute([*rest, count], value, name="diagonals")

    return importer.block_builder.emit_te(diagonals, x)
