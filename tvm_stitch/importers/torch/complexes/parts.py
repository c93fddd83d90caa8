# SPDX-License-Identifier: Apache-2.0
"""The pair of expressions that holds a complex tensor, and nodes of PyTorch's graph that compute one part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from tvm.relax import op as R

from ....graph.extent import same_shape
from ..core import dtype_name
from ..importing.unsupported import name_of
from ..operators.values import cast, constant, type_name


@dataclass(frozen=True)
class Parts:
    """Real and imaginary parts of a complex tensor, or of several: Relax expressions of one type and shape."""

    real: Any
    imaginary: Any

    def each(self, function: Callable[[Any], Any]) -> Parts:
        """Return a function of each part."""
        return Parts(function(self.real), function(self.imaginary))


def is_complex(value: Any) -> bool:
    """Return whether the value that PyTorch has computed for a node is a complex tensor, or has one in it."""
    if isinstance(value, (list, tuple)):
        return any(map(is_complex, value))
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def touches_complex(node: Any) -> bool:
    """Return whether a node reads or returns complex tensors, or complex numbers."""
    if is_complex(node.meta.get("val")):
        return True
    return any(is_complex(arg.meta.get("val")) for arg in node.all_input_nodes) or any(
        isinstance(arg, complex) for arg in (*node.args, *node.kwargs.values())
    )


def part_type(node: Any) -> str:
    """Return TVM's name of the type of a node's result, or of its parts if it is complex."""
    return dtype_name(node.meta["val"].dtype.to_real())


def real_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as a real one with a last axis of two elements, and a real tensor as it is."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def operand(given: Any, dtype: str, importer: Any) -> tuple[Any, Any]:
    """Return the parts of an argument in a type. The imaginary part of a real argument is None.

    Args:
        given: a node, a number, or a symbolic extent.
        dtype: TVM's name of the type of both parts.
        importer: the importer of the program.
    """
    value = importer.env.get(given, given)
    if isinstance(value, Parts):
        return cast(value.real, dtype, importer), cast(value.imaginary, dtype, importer)
    if isinstance(value, complex):
        return constant(value.real, dtype), constant(value.imag, dtype)
    if isinstance(value, (int, float)):
        return constant(value, dtype), None
    if not hasattr(value, "ty") or not hasattr(value.ty, "shape"):
        return importer._prim_value_to_scalar_tensor(value, dtype), None
    return cast(value, dtype, importer), None


def zeros_like(x: Any, importer: Any) -> Any:
    """Return zeros in the type and the shape of a tensor."""
    return importer.block_builder.emit(R.zeros(list(x.ty.shape), type_name(x)))


def by_parts(positions: Sequence[int], node: Any, importer: Any, convert: Callable[[Any], Any]) -> Parts:
    """Return the parts of an operator that moves or adds up data: the operator of either part.

    Args:
        positions: arguments with values, not with positions or conditions. The imaginary part of a real one is zero.
        node: the node.
        importer: the importer of the program.
        convert: converts a node of real tensors.
    """
    found = []
    for part in (0, 1):
        with _stand_in(node, importer, part, positions, _chosen(part)) as other:
            found.append(convert(other))
    real, imaginary = found
    shapes = [list(x.ty.shape) for x in found if getattr(getattr(x, "ty", None), "shape", None) is not None]
    if len(shapes) == 2 and not same_shape(*shapes):
        # A mask of the imaginary part selects as many elements as that of the real one.
        imaginary = importer.block_builder.match_cast(imaginary, real.ty)
    return Parts(real, imaginary)


def with_reals(
    choose: Callable[[Parts], Any], node: Any, importer: Any, convert: Callable[[Any], Any]
) -> Any:
    """Return an operator of real numbers in place of a node's complex arguments: of a part, or a magnitude."""
    with _stand_in(node, importer, 0, (), choose) as other:
        return convert(other)


def _chosen(part: int) -> Callable[[Parts], Any]:
    return lambda parts: (parts.real, parts.imaginary)[part]


@contextmanager
def _stand_in(
    node: Any, importer: Any, part: int, positions: Sequence[int], choose: Callable[[Parts], Any]
) -> Iterator[Any]:
    """Return a node of real tensors that computes one part of a node's result, in a graph of its own."""
    graph = fx.Graph()
    clones: dict[Any, Any] = {}

    def of_node(arg: Any, is_value: bool) -> Any:
        if arg in clones:
            return clones[arg]
        clone = clones[arg] = graph.placeholder(arg.name)
        clone.meta = {**arg.meta, "val": _real_like(arg.meta.get("val"))}
        found = importer.env[arg]
        if isinstance(found, Parts):
            found = choose(found)
        elif is_value and part == 1:
            found = zeros_like(found, importer)
        importer.env[clone] = found
        return clone

    def of(arg: Any, is_value: bool) -> Any:
        if isinstance(arg, fx.Node):
            return of_node(arg, is_value)
        if isinstance(arg, (list, tuple)):
            return type(arg)([of(each, is_value) for each in arg])
        if isinstance(arg, complex):
            return (arg.real, arg.imag)[part]
        if is_value and part == 1 and isinstance(arg, (int, float)):
            return type(arg)(0)
        return arg

    args = tuple(of(arg, at in positions) for at, arg in enumerate(node.args))
    kwargs = {name: of(arg, False) for name, arg in node.kwargs.items()}
    other = graph.create_node("call_function", node.target, args, kwargs, name=f"{node.name}_{part}")
    other.meta = {**node.meta, "val": _real_like(node.meta.get("val"))}
    try:
        yield other
    finally:
        for clone in clones.values():
            importer.env.pop(clone, None)


def _real_like(value: Any) -> Any:
    """Return a value like the one that PyTorch has computed for a node, with real tensors for complex ones."""
    if isinstance(value, (list, tuple)):
        return [_real_like(each) for each in value]
    if not is_complex(value):
        return value
    return torch.empty_like(value, dtype=value.dtype.to_real())


def described_kind(node: Any) -> str:
    """Return the reason why an operator of complex tensors is refused."""
    return f"{name_of(node)} of complex numbers is not imported; write it with real and imaginary parts"
