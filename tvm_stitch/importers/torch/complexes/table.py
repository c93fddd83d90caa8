# SPDX-License-Identifier: Apache-2.0
"""The operators of complex tensors that are imported, and the choice of a node's converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from ..core import Converter
from ..importing.unsupported import Unsupported
from .arithmetic import arithmetic_converters, magnitude
from .fourier import fourier_converters
from .parts import Parts, by_parts, described_kind, is_complex, touches_complex, with_reals, zeros_like
from .products import product_converters

_VIEWS = (
    "alias.default as_strided.default clone.default contiguous.default cumsum.default detach.default diagonal.default"
    " embedding.default expand.default expand_as.default flatten.using_ints flip.default gather.default getitem"
    " index.Tensor index_select.default lift.default lift_fresh.default lift_fresh_copy.default mean.default mean.dim"
    " neg.default permute.default repeat.default reshape.default roll.default select.int slice.Tensor split.Tensor"
    " split_with_sizes.default squeeze.default squeeze.dim squeeze.dims sum.default sum.dim_IntList take.default"
    " transpose.int tril.default triu.default unbind.int unfold.default unsqueeze.default view.default"
    " _unsafe_view.default"
).split()
"""Operators whose only values are in complex tensors: they move or add up data."""

_WITH_VALUES = {
    "cat.default": (0,),
    "constant_pad_nd.default": (0, 2),
    "copy.default": (0, 1),
    "index_put.default": (0, 2),
    "masked_fill.Scalar": (0, 2),
    "scatter.src": (0, 3),
    "scatter.value": (0, 3),
    "scatter_add.default": (0, 3),
    "slice_scatter.default": (0, 1),
    "stack.default": (0,),
    "where.self": (1, 2),
}
"""Operators that move data of several arguments, some of which may be real, with these arguments' positions."""

_FILLED = {
    "fill.Scalar": (1,),
    "full.default": (1,),
    "full_like.default": (1,),
    "new_full.default": (2,),
    "scalar_tensor.default": (0,),
    **dict.fromkeys(
        "empty.memory_format empty_like.default empty_permuted.default empty_strided.default new_empty.default"
        " new_empty_strided.default new_zeros.default zeros.default zeros_like.default".split(),
        (),
    ),
}
"""Operators that fill a tensor with a number, with its position."""

_ONES = ("new_ones.default", "ones.default", "ones_like.default")

_OF_PARTS = {**dict.fromkeys(_VIEWS, ()), **_WITH_VALUES, **_FILLED}

_SHAPE_ONLY = frozenset(("sym_size.int", "_assert_tensor_metadata.default"))
"""Operators that read no numbers of a tensor."""

_NORMS = frozenset(("linalg_vector_norm.default",))
"""Operators of absolute values."""


@cache
def _converters() -> Mapping[str, Converter]:
    return MappingProxyType({**arithmetic_converters(), **fourier_converters(), **product_converters()})


def complex_operators() -> frozenset[str]:
    """Return the names of the operators of complex tensors that are imported."""
    return frozenset(_converters()) | frozenset(_OF_PARTS) | frozenset(_ONES) | _SHAPE_ONLY | _NORMS


def with_complex(name: str, convert: Callable[[Any], Any] | None, importer: Any) -> Callable[[Any], Any]:
    """Return the converter of a node of real or complex tensors.

    Args:
        name: the operator's name.
        convert: converts a node of real tensors, or None if there is no converter.
        importer: the importer of the program.
    """

    def converted(node: Any) -> Any:
        if convert is not None and not touches_complex(node):
            picked = _picked(node, importer) if name == "select.int" else None
            return convert(node) if picked is None else picked
        if (own := _converters().get(name)) is not None:
            return own(node, importer)
        if convert is None or name not in complex_operators():
            raise Unsupported.at(node, described_kind(node))
        if not is_complex(node.meta.get("val")):
            if name in _FILLED or name in _ONES or name in _SHAPE_ONLY:
                return with_reals(_real, node, importer, convert)
            if name in _NORMS:
                return with_reals(partial(_magnitude, importer), node, importer, convert)
            raise Unsupported.at(node, described_kind(node))
        if name in _ONES:
            one = with_reals(_real, node, importer, convert)
            return Parts(one, zeros_like(one, importer))
        return by_parts(_OF_PARTS[name], node, importer, convert)

    return converted


def _real(parts: Parts) -> Any:
    return parts.real


def _magnitude(importer: Any, parts: Parts) -> Any:
    return magnitude(parts.real, parts.imaginary, importer.block_builder.emit)


def _picked(node: Any, importer: Any) -> Any:
    """Return the part that a ``select`` takes from a ``view_as_real``, or None if the node does something else."""
    view, axis, at = node.args
    if getattr(view.target, "__name__", "") != "view_as_real.default" or at not in (0, 1):
        return None
    if axis not in (-1, view.meta["val"].dim() - 1):
        return None
    parts = importer.env[view.args[0]]
    return (parts.real, parts.imaginary)[at]
