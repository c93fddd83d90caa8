# SPDX-License-Identifier: Apache-2.0
"""PointwiseConvolutions: convolutions of one position become matmuls if a library computes the operators behind them.

A convolution with a window of one element is a matmul if its channels are last: each position is a row. The library's
matmul adds a bias and a residual, and applies ReLU. Behind cuDNN's convolution, a kernel would read its result for
these, and write another. A batch norm behind the convolution is a scale and a shift of each channel. The scale goes
into the constant weight, and the shift is the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...cost.choices import Choices
from ...graph.dtype import HALF
from ...graph.extent import is_static, product
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.operators import PRODUCTS, has_operators, operator_name
from ..rewriting.readers import Readers, only_reader_inside, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import permuted_constant, shape_of
from .rows import LAYOUTS, has_channels_last, is_of_channels


@dataclass(frozen=True)
class Chain:
    """A convolution and the operators behind it that a library's matmul computes with it.

    Attributes:
        convolution: the variable of the convolution.
        result: the variable of the last operator, whose type is the convolution's.
        weight: the constant weight, in float64, ``<results, channels>``.
        shift: a number that is added to each channel, if any, in float64.
        residual: a value of the result's shape and type that is added, if any.
        relu: whether ReLU is the last operator.
    """

    convolution: relax.Var
    result: relax.Var
    weight: np.ndarray
    shift: np.ndarray | None = None
    residual: relax.Expr | None = None
    relu: bool = False

    @property
    def is_plain(self) -> bool:
        """True for a matmul without a bias, a residual and ReLU."""
        return self.shift is None and self.residual is None and not self.relu


@module_pass
class PointwiseConvolutions:
    """Write convolutions of one position, of half types, as ``R.matmul`` with scaled weights.

    A convolution is rewritten if a shift, a residual or ReLU follows, and if another convolution, a matmul or the
    caller reads what these make. Other results would pass through a kernel anyway. Runs once layouts are chosen.

    Args:
        is_called: returns whether the library is installed. Only convolutions ask.
        choices: the device's constants of choice.
        rounds: whether scaled weights may be rounded again. Otherwise their scales must be powers of two.
    """

    def __init__(self, is_called: Callable[[], bool], choices: Choices, rounds: bool = False):
        self.is_called, self.choices, self.rounds = is_called, choices, rounds

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, LAYOUTS) or not self.is_called():
            return mod
        chains: dict[relax.Var, Chain] = {}
        for _, func in own_functions(mod):
            chains |= _Chains(func, self.choices, self.rounds).found()

        def product_of(match: Match) -> relax.Expr:
            return _matmul(match, chains[match.var])

        why = "a matmul adds a bias and a residual, and applies ReLU"
        return apply_rules(mod, [Rule(why, product_of, variables=chains, leaves_unused=True)])


class _Chains:
    """The chains of a function."""

    def __init__(self, func: relax.Function, choices: Choices, rounds: bool):
        self.choices = choices
        self.most_error = choices.scaled_weight_error if rounds else 0.0
        self.values: Mapping[relax.Var, relax.Expr] = dict(relax.analysis.get_var2val(func).items())
        self.readers: Readers = readers_of(func)

    def found(self) -> dict[relax.Var, Chain]:
        """Return the chains by their last variables."""
        grown = [
            self._grown(var, call) for var, call in self.values.items() if operator_name(call) in LAYOUTS
        ]
        chains = {chain.result: chain for chain in grown if chain is not None}
        taken = {r: chain for r, chain in chains.items() if self._is_written(r, ())}
        while True:  # residuals of matmuls are read from memory too
            residuals = {c.residual for c in taken.values() if isinstance(c.residual, relax.Var)}
            more = {r: c for r, c in chains.items() if r not in taken and self._is_written(r, residuals)}
            if not more:
                return taken
            taken |= more

    def _grown(self, var: relax.Var, call: relax.Call) -> Chain | None:
        """Return the longest chain from a convolution on that ends with a value of its type, or None."""
        weight = self._weight(call)
        if weight is None:
            return None
        narrow = str(call.ty.dtype)
        chain, best = Chain(var, var, weight), None
        while (binding := only_reader_inside(self.readers, chain.result)) is not None:
            taken = self._taken(chain, binding, narrow)
            if taken is None:
                break
            chain = taken
            if (
                str(binding.var.ty.dtype) == narrow
                and not chain.is_plain
                and _is_exact(chain, narrow, self.most_error)
            ):
                best = chain
        return best

    def _taken(self, chain: Chain, binding: relax.Binding, narrow: str) -> Chain | None:
        """Return a chain with one more operator, or None if the matmul does not have it there."""
        call, at = binding.value, chain.result
        name = operator_name(call)
        longer = replace(chain, result=binding.var)
        if name == "relax.astype":
            return longer if str(call.ty.dtype) in (narrow, "float32") else None
        if chain.relu or name not in ("relax.nn.relu", "relax.multiply", "relax.add"):
            return None
        if str(call.ty.dtype) not in (narrow, "float32"):
            return None
        if shape_of(call) != shape_of(at):
            return None  # the other operand has more axes, if only of extent 1
        if name == "relax.nn.relu":
            return replace(longer, relu=True)
        (other,) = [arg for arg in call.args if not arg.same_as(at)] or [None]
        numbers = None if other is None else self._of_channels(other, len(chain.weight))
        if numbers is not None:
            if chain.residual is not None:
                return None
            before = np.zeros(()) if chain.shift is None else chain.shift
            if name == "relax.add":
                return replace(longer, shift=before + numbers)
            scaled = None if chain.shift is None else chain.shift * numbers
            return replace(longer, weight=chain.weight * numbers[:, None], shift=scaled)
        residual = None if other is None else self._narrow(other, narrow)
        if name == "relax.multiply" or chain.residual is not None or residual is None:
            return None
        return replace(longer, residual=residual) if shape_of(residual) == shape_of(call) else None

    def _narrow(self, value: relax.Expr, narrow: str) -> relax.Expr | None:
        """Return a value of a half type, or the one that was widened to it."""
        if str(value.ty.dtype) == narrow:
            return value
        definition: Any = self.values.get(value) if isinstance(value, relax.Var) else None
        if operator_name(definition) != "relax.astype" or str(definition.args[0].ty.dtype) != narrow:
            return None
        return definition.args[0] if isinstance(definition.args[0], relax.Var) else None

    def _of_channels(self, value: relax.Expr, channels: int) -> np.ndarray | None:
        """Return a constant that has one number for each channel of the last axis, in float64, else None."""
        array = self._constant(value)
        if array is None or not is_of_channels(array, channels):
            return None
        return np.broadcast_to(array.reshape(-1), (channels,))

    def _constant(self, value: relax.Expr) -> np.ndarray | None:
        """Return a constant in float64, also if it is transposed, else None."""
        array = permuted_constant(value, self.values)
        return None if array is None else array.astype("float64")

    def _weight(self, call: relax.Call) -> np.ndarray | None:
        """Return a convolution's weight as a matrix, if the convolution is a matmul of rows, else None."""
        attrs, dtypes = call.attrs, {str(value.ty.dtype) for value in (*call.args, call)}
        if not has_channels_last(call):
            return None
        if len(dtypes) != 1 or not dtypes <= set(HALF) or int(attrs.groups) != 1:
            return None
        if any(int(n) != 1 for n in attrs.strides) or any(int(n) for n in attrs.padding):
            return None
        shapes = [shape_of(value) for value in (call.args[0], call)]
        if any(shape is None or not is_static(shape[1:]) or 0 in shape for shape in shapes):
            return None
        weight = self._constant(call.args[1])
        if weight is None or any(extent != 1 for extent in weight.shape[1:-1]):
            return None
        matrix = weight.reshape(len(weight), -1)
        return None if any(extent % self.choices.aligned_channels for extent in matrix.shape) else matrix

    def _is_written(self, var: relax.Var, residuals: Collection[relax.Var]) -> bool:
        """Return whether a value is in memory anyway: for the caller, a library call or as one of ``residuals``."""
        return var in residuals or any(
            binding is None or operator_name(binding.value) in PRODUCTS
            for binding in self.readers.get(var, ())
        )


def _is_exact(chain: Chain, dtype: str, most_error: float) -> bool:
    """Return whether the scaled weights of each channel have at most this error in a half type, and are finite."""
    rounded = _rounded(chain.weight, dtype)
    numbers = (
        rounded if chain.shift is None else np.concatenate([rounded.ravel(), _rounded(chain.shift, dtype)])
    )
    if not np.isfinite(numbers).all():
        return False
    error = np.linalg.norm(rounded - chain.weight, axis=1)
    most = most_error * (8 if dtype == "bfloat16" else 1)
    return bool(np.all(error <= most * np.linalg.norm(chain.weight, axis=1)))


def _rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return numbers.astype(_numpy(dtype)).astype("float64")


def _numpy(dtype: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def _matmul(match: Match, chain: Chain) -> relax.Expr:
    """Return a chain as a matmul of rows, with its bias, residual and ReLU, in the shape of its result."""
    call: Any = match.values[chain.convolution]
    dtype, emit = str(call.ty.dtype), match.emit
    results, channels = chain.weight.shape
    positions = product((shape_of(call) or ())[:-1])
    shape = list(call.ty.shape)

    def half(numbers: np.ndarray) -> relax.Expr:
        return relax.const(np.ascontiguousarray(numbers).astype(_numpy(dtype)), dtype)

    rows = emit(R.reshape(match.now(call.args[0]), [positions, channels]))
    result = emit(R.matmul(rows, half(chain.weight.T), out_dtype=dtype), str(chain.convolution.name))
    if chain.shift is not None:
        result = emit(R.add(result, half(chain.shift)))
    if chain.residual is not None:
        result = emit(R.add(result, emit(R.reshape(match.now(chain.residual), [positions, results]))))
    if chain.relu:
        result = emit(R.nn.relu(result))
    return R.reshape(result, shape)
