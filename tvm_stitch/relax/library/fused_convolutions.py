# SPDX-License-Identifier: Apache-2.0
"""Find the bias, the residual and the ReLU that cuDNN computes with a convolution of half types.

Models write ``relu(convolution + bias + residual)``, with casts to float32 and back. The library's own kernels compute
a bias, a residual and ReLU on sums in float32. A scale stays apart: a weight that is half would be rounded again.
(``in_half_precision`` scales weights before they become half.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from ...graph.extent import same_shape
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader_inside, readers_of
from ..rewriting.views import permuted_constant, shape_of


@dataclass(frozen=True, eq=False)
class FusedConvolution:
    """A convolution with channels last, and the operators that follow it.

    Attributes:
        convolution: the variable of the convolution.
        end: the variable that the fused result replaces. It has the convolution's dtype.
        bias: a float32 array with an element for each channel of the result, or None without one.
        residual: the value that is added, of the result's shape and dtype, or None.
        relu: whether ReLU comes last.
        members: the variables from the convolution to the end.
    """

    convolution: relax.Var
    end: relax.Var
    bias: np.ndarray | None = None
    residual: relax.Expr | None = None
    relu: bool = False
    members: tuple[relax.Var, ...] = ()


def fused_convolutions(
    func: relax.Function, takes: Callable[[relax.Call], bool]
) -> dict[relax.Var, FusedConvolution]:
    """Return the convolutions of a function that are computed with what follows them, by the variable at the end.

    Args:
        func: the function.
        takes: whether the library computes a convolution, with channels last and in a half type.
    """
    values = dict(relax.analysis.get_var2val(func).items())
    convolutions = [
        var for var, call in values.items() if operator_name(call) == "relax.nn.conv2d" and takes(call)
    ]
    if not convolutions:
        return {}
    reader = _Reader(values, readers_of(func))
    followed: dict[relax.Var, FusedConvolution] = {}
    taken: set[relax.Var] = set()
    for var in convolutions:
        for fused in [way for way in reader.ways(var) if way.end not in taken][-1:]:
            followed[fused.end] = fused
            taken.update(fused.members)
    added = {fused.residual for fused in followed.values()}
    return {
        end: fused
        for end, fused in followed.items()
        if fused.relu or fused.residual is not None or end in added or reader.feeds_convolutions(end)
    }


class _Reader:
    def __init__(self, values: dict[relax.Var, relax.Expr], readers: Readers):
        self.values, self.readers = values, readers

    def feeds_convolutions(self, var: relax.Var) -> bool:
        """Return whether convolutions alone read a variable. Other readers could as well compute its bias."""
        return all(
            binding is not None and operator_name(binding.value) == "relax.nn.conv2d"
            for binding in self.readers.get(var, ())
        )

    def ways(self, convolution: relax.Var) -> Iterator[FusedConvolution]:
        """Yield ever longer chains that begin with a convolution and end with a value of its dtype."""
        at, fused = convolution, FusedConvolution(convolution, convolution)
        shape, dtype = shape_of(convolution) or (), str(convolution.ty.dtype)
        while (binding := only_reader_inside(self.readers, at)) is not None:
            step, after = self._after(fused, binding.value, at), shape_of(binding.var)
            if step is None or after is None or not same_shape(after, shape):
                return
            at = binding.var
            fused = replace(step, end=at, members=(*fused.members, at))
            if fused.bias is not None and str(at.ty.dtype) == dtype:
                yield fused

    def _after(self, fused: FusedConvolution, call: relax.Expr, at: relax.Var) -> FusedConvolution | None:
        """Return the chain with one more operator, which reads ``at``, or None if cuDNN does not compute it."""
        name = operator_name(call)
        if name == "relax.astype":
            return fused if str(call.ty.dtype) in (str(fused.convolution.ty.dtype), "float32") else None
        if name == "relax.nn.relu":
            return None if fused.bias is None or fused.relu else replace(fused, relu=True)
        if name != "relax.add" or fused.relu:
            return None
        (other,) = [arg for arg in call.args if not arg.same_as(at)] or [None]
        if other is None:
            return None
        channels = self._of_channels(other, call)
        if channels is not None:
            return replace(fused, bias=channels) if fused.bias is None else None
        residual = self._half(other, str(fused.convolution.ty.dtype))
        if fused.bias is None or fused.residual is not None or residual is None:
            return None
        return (
            replace(fused, residual=residual)
            if same_shape(shape_of(residual) or (), shape_of(call) or ())
            else None
        )

    def _of_channels(self, value: relax.Expr, call: relax.Call) -> np.ndarray | None:
        """Return a constant with an element for each channel of a call's result, as float32."""
        array = permuted_constant(value, self.values)
        channels = (shape_of(call) or (0,))[-1]
        if array is None or array.size != channels or (array.shape or (0,))[-1] != channels:
            return None
        return array.reshape(-1).astype("float32")

    def _half(self, value: relax.Expr, dtype: str) -> relax.Expr | None:
        """Return a value of a dtype, or the value of that dtype that it is cast from."""
        call = self.values.get(value) if isinstance(value, relax.Var) else None
        if call is not None and operator_name(call) == "relax.astype":
            value = call.args[0]
        return value if isinstance(value, relax.Var) and str(value.ty.dtype) == dtype else None
