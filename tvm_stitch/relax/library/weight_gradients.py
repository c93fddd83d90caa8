# SPDX-License-Identifier: Apache-2.0
"""Recognise convolutions that are gradients of a convolution's weight.

The gradient of ``y = conv(x, w)`` to ``w`` is ``conv(x^T, g^T)^T``. Images and channels of the data ``x`` and of the
gradient ``g`` are exchanged, strides and dilations too. The result is cut where no whole stride reaches. Importers
and ``relax.transform.Gradient`` write it so. Its window is as large as ``g``, and a library's algorithms for
convolutions are not made for that. The library has other algorithms for the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from ...graph.extent import is_static
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, readers_of
from ..rewriting.views import integers_of, permutation, shape_of

Definition = Callable[[Any], Any]
"""Returns the value that a variable is bound to, or None for a parameter."""


@dataclass(frozen=True)
class WeightGradient:
    """The gradient <O, I, *kernel> of the weight of a convolution with <N, O, ...> as its result.

    Attributes:
        data: the convolution's data, <N, I, ...>.
        gradient: the gradient of its result.
        kernel: its window.
        numbers: its groups, strides, padding and dilations.
    """

    data: Any
    gradient: Any
    kernel: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return _extents(self.gradient)[1], _extents(self.data)[1], *self.kernel

    @property
    def is_transformed(self) -> bool:
        """True if cuDNN has transforms for it (Winograd's): a window of 3 x 3 without strides and dilations."""
        spatial = len(self.kernel)
        strides, dilations = self.numbers[1 : 1 + spatial], self.numbers[1 + 2 * spatial :]
        return self.kernel == (3, 3) and {*strides, *dilations} == {1}


class WeightGradients:
    """Finds gradients of weights among a module's convolutions while these are rewritten."""

    def __init__(self, mod: tvm.IRModule):
        self._mod = mod

    @cached_property
    def _readers(self) -> Readers:
        return {
            var: bindings
            for _, func in own_functions(self._mod)
            for var, bindings in readers_of(func).items()
        }

    def found(self, builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> WeightGradient | None:
        """Return the gradient that a convolution bound to ``var`` computes, as :func:`weight_gradient`."""

        def definition(value: relax.Expr) -> relax.Expr | None:
            return builder.lookup_binding(value) if isinstance(value, tvm.ir.Var) else None

        return weight_gradient(call, cut_of(self._readers.get(var, [])), definition)


def weight_gradient(
    call: relax.Call, cut: tuple[int, ...] | None, definition: Definition
) -> WeightGradient | None:
    """Return the gradient that a convolution computes, transposed: <I, O, *kernel>.

    None if it computes no gradient, or is better computed as it is.

    Args:
        call: a convolution of symmetric padding with the channels first.
        cut: the spatial extents of its result that are read, if not all of them are.
        definition: returns the value of a variable.
    """
    attrs = call.attrs
    if int(attrs.groups) != 1 or not all(is_static(shape_of(v) or ()) for v in (*call.args, call)):
        return None
    sides = [_exchanged(operand, definition) for operand in call.args]
    if any(side is None for side in sides):
        return None
    data, gradient = sides
    kernel = _extents(call)[2:] if cut is None else cut
    extents, positions = (_extents(side)[2:] for side in sides)
    if math.prod(positions) <= math.prod(kernel):
        return None
    strides, padding, dilations = (
        [int(n) for n in a] for a in (attrs.dilation, attrs.padding, attrs.strides)
    )
    padding = padding[: len(strides)]
    for extent, position, k, stride, p, dilation in zip(
        extents, positions, kernel, strides, padding, dilations
    ):
        rest = extent + 2 * p - dilation * (k - 1) - 1
        if rest < 0 or rest // stride + 1 != position:
            return None
    return WeightGradient(data, gradient, kernel, (1, *strides, *padding, *dilations))


def _extents(value: relax.Expr) -> tuple[int, ...]:
    """Return the extents of a value of static shape."""
    return tuple(int(extent) for extent in shape_of(value) or ())


def _exchanged(operand: relax.Expr, definition: Definition) -> relax.Expr | None:
    """Return the value whose first two axes an operand exchanges, or None if it is no such permutation."""
    transposed = definition(operand)
    rank = len(shape_of(operand) or ())
    if transposed is None or operator_name(transposed) != "relax.permute_dims":
        return None
    return transposed.args[0] if permutation(transposed, rank) == [1, 0, *range(2, rank)] else None


def cut_of(readers: list[relax.Binding]) -> tuple[int, ...] | None:
    """Return the spatial extents of a result that are read, if its only reader cuts off the ends of these axes.

    That reader stays. It cuts nothing off a result that has these extents already, as no end is counted from behind.
    """
    if len(readers) != 1 or readers[0] is None or operator_name(readers[0].value) != "relax.strided_slice":
        return None
    call = readers[0].value
    given, results = shape_of(call.args[0]), shape_of(call)
    if given is None or results is None or not is_static((*given, *results)):
        return None
    axes, begin, end, *strides = (integers_of(argument) for argument in call.args[1:])
    if axes is None or begin is None or end is None or any(begin) or any(axis < 2 for axis in axes):
        return None
    if any(last < 0 for last in end):
        return None
    if any(step is None or set(step) != {1} for step in strides):
        return None
    return tuple(int(extent) for extent in results[2:])
