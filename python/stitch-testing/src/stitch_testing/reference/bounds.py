# SPDX-License-Identifier: Apache-2.0
"""Bounds on the results of a correct compiled function: the float64 reference with an interval for each element.

Each operator is evaluated at the ends of its operands' intervals, and the result is widened by the operator's
rounding. So a comparison of nearly equal values, or a cast near a rounding boundary, yields both possible results. An
ill-conditioned value gets a wide interval. A fixed tolerance would raise a false alarm there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from tvm_stitch.graph.dtype import HALF, MULTIPLIED

from .operators import Kind, Operation, Rule, axes_of, is_float
from .values import Exact, flatten

if TYPE_CHECKING:
    import tvm

#: Distance between 1 and the next number.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: Element-wise operators without rounding.
_EXACT = frozenset(
    "abs negative maximum minimum where clip floor ceil trunc round sign astype nn.relu".split()
)

#: Absolute error of approximations coarser than the rest: CUDA's tanh under fast-math, 1e-5 as seen on an H200.
_COARSE = {"tanh": 2e-5}


#: Length up to which the order of a sum does not matter, since its bound grows with the number of elements.
_FEW = 24


class Bound(NamedTuple):
    """The exact result, and the least and greatest acceptable one: three arrays of one shape and dtype."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def evaluate_bounds(
    mod: tvm.IRModule, inputs: Sequence[np.ndarray], half_arithmetic: bool = False
) -> list[Bound]:
    """Evaluate a Relax module like :func:`reference.evaluate`, with bounds.

    Parameters
    ----------
    half_arithmetic : whether sums and approximations of float16 and bfloat16 may be computed in those types, as in
        stock TVM. Otherwise they must be computed in float32 and rounded once.

    Raises
    ------
    NotImplementedError : for operators without a rule, and composite ones (softmax, norms), whose error is not
        modelled.
    """
    from .relax import Interpreter  # needs Relax of Apache TVM 0.27, but the bounds do not

    return flatten(Interpreter(mod, Bounds(half_arithmetic)).call("main", inputs))


def _largest(dtype: np.dtype) -> float:
    """Return the largest finite value of a half or single type. Others do not overflow here and give infinity."""
    return float(ml_dtypes.finfo(dtype).max) if str(dtype) in MULTIPLIED else np.inf


def _overflow(values: np.ndarray, top: float) -> np.ndarray:
    """Make values beyond a dtype's range infinite, as they are in that dtype."""
    return np.where(np.abs(values) > top, np.sign(values) * 2 * min(top, 1e300), values)


def violations(outputs: Sequence[np.ndarray], bounds: Sequence[Bound]) -> list[str]:
    """Describe values out of bounds, one line for each output.

    The list is empty if all are right. NaN is never right.
    """
    if len(outputs) != len(bounds):
        return [f"{len(outputs)} outputs, expected {len(bounds)}"]
    problems = []
    for place, (actual, bound) in enumerate(zip(outputs, bounds, strict=True)):
        if actual.shape != bound.value.shape:
            problems.append(f"output {place}: shape {actual.shape}, expected {bound.value.shape}")
            continue
        top = _largest(actual.dtype)
        wide, low, high = (
            _overflow(np.asarray(x).astype(np.float64), top) for x in (actual, bound.low, bound.high)
        )
        excess = np.nan_to_num(np.maximum(low - wide, wide - high), nan=np.inf)
        if (excess > 0).any():
            worst = np.unravel_index(np.argmax(excess), excess.shape)
            problems.append(
                f"output {place} ({actual.dtype}{list(actual.shape)}): {np.count_nonzero(excess > 0)} out of "
                f"bounds, worst at {tuple(int(i) for i in worst)}: {wide[worst]!r}, expected "
                f"{bound.value[worst]!r} in [{low[worst]!r}, {high[worst]!r}]"
            )
    return problems


class Bounds(Exact):
    """Tensors as :class:`Bound` values: an evaluator with these computes bounds of correct results."""

    def __init__(self, half_arithmetic: bool = False) -> None:
        self.half_arithmetic = half_arithmetic

    def wrap(self, array: np.ndarray, dtype: str) -> Bound:
        value = super().wrap(array, dtype)
        return Bound(value, value, value)

    def shape(self, value: Any) -> tuple[int, ...]:
        return value.value.shape if isinstance(value, Bound) else value

    def apply(self, rule: Rule, operation: Operation, args: list[Any]) -> Any:
        with np.errstate(all="ignore"):
            if rule.kind in (Kind.LIGHT, Kind.HEAVY):
                return self._element_wise(rule, operation, args)
            if rule.kind in (Kind.MOVE, Kind.EXTREME):
                return _join(*(rule.apply(operation, *_pick(args, end)) for end in Bound._fields))
            if rule.kind is Kind.SUM:
                return self._sum(rule, operation, args)
            if rule.kind is Kind.PRODUCT:
                return self._product(rule, operation, args)
            if rule.kind is Kind.CONTRACT:
                return self._contraction(rule, operation, args)
        raise NotImplementedError(f"bounds of {operation.name}")

    def _element_wise(self, rule: Rule, operation: Operation, args: list[Any]) -> Bound:
        value = np.asarray(rule.apply(operation, *_pick(args, "value")))
        low = high = value
        choices = [_corners(arg, alone=len(args) == 1) for arg in args]
        if any(len(choice) > 1 for choice in choices):
            for corner in itertools.product(*choices):
                result = rule.apply(operation, *corner)
                low, high = np.minimum(low, result), np.maximum(high, result)
        dtype = operation.dtype
        if not is_float(dtype) or operation.name in _EXACT:
            return Bound(value, low, high)
        if operation.name in ("sin", "cos"):  # the turning points are not at the ends
            bend = np.square(args[0].high - args[0].low)
            low, high = low - bend, high + bend
        relative, absolute = self._rounding(rule.kind, dtype)
        absolute = max(absolute, _COARSE.get(operation.name, 0.0))
        if operation.name == "ewise_fma":  # the product may be rounded, and be much larger than the sum
            low, high = _apart(low, high, relative * np.abs(args[0].value * args[1].value))
        return _widen(value, low, high, relative, absolute)

    def _contraction(self, rule: Rule, operation: Operation, args: list[Any]) -> Bound:
        a, b = args
        dtype = operation.dtype
        value = rule.apply(operation, a.value, b.value)
        (size_a, off_a), (size_b, off_b) = (
            (np.abs(x.value), np.maximum(x.high - x.value, x.value - x.low)) for x in (a, b)
        )
        spread = rule.apply(operation, off_a, size_b) + rule.apply(operation, size_a + off_a, off_b)
        if not is_float(dtype):
            return Bound(value, value - spread, value + spread)
        products = rule.apply(operation, np.ones_like(size_a), np.ones_like(size_b)).max(initial=1.0)
        narrow = dtype if self.half_arithmetic or dtype not in HALF else "float32"
        roundings = min(products, 4 * products**0.5 + 4)
        spread = spread + rule.apply(operation, size_a + off_a, size_b + off_b) * EPSILON[narrow] * roundings
        relative, absolute = self._rounding(Kind.LIGHT, dtype)
        return _widen(value, *_apart(value, value, spread), relative, absolute)

    def _sum(self, rule: Rule, operation: Operation, args: list[Any]) -> Bound:
        (x,) = args
        value, low, high = (rule.apply(operation, *_pick(args, end)) for end in Bound._fields)
        dtype = operation.dtype
        if not is_float(dtype):
            return Bound(value, low, high)
        axes = axes_of(operation, x.value.ndim)
        count = int(np.prod([x.value.shape[axis] for axis in axes]))
        narrow = (
            dtype if self.half_arithmetic else "float32" if EPSILON[dtype] > EPSILON["float32"] else dtype
        )
        # Roundings of a sum are so independent that their total grows with the root of their number.
        grown = (
            rule.apply(operation, np.maximum(np.abs(x.low), np.abs(x.high)))
            * EPSILON[narrow]
            * min(count, 4 * count**0.5 + 4)
        )
        if count > _FEW:
            # If values repeat (sums of broadcast values), every rounding goes the same way.
            drift = _sequential_error(x.value, axes, narrow)
            grown = grown + 2 * drift.reshape(grown.shape) / (count if operation.name == "mean" else 1)
        relative, absolute = self._rounding(Kind.LIGHT, dtype)
        return _widen(value, *_apart(low, high, grown), relative, absolute)

    def _product(self, rule: Rule, operation: Operation, args: list[Any]) -> Bound:
        (x,) = args
        value = rule.apply(operation, x.value)
        if not is_float(operation.dtype):
            return Bound(value, *(rule.apply(operation, end) for end in (x.low, x.high)))
        magnitude = np.abs(x.value)
        far = magnitude + np.maximum(x.high - x.value, x.value - x.low)
        count = int(np.prod([x.value.shape[axis] for axis in axes_of(operation, x.value.ndim)]))
        spread = rule.apply(operation, far) - rule.apply(operation, magnitude)
        relative, absolute = self._rounding(Kind.LIGHT, operation.dtype)
        return _widen(value, *_apart(value, value, spread), relative * (count + 1), absolute)

    def _rounding(self, kind: Kind, dtype: str) -> tuple[float, float]:
        """Return the (relative, absolute) error of one operator.

        In float32, cheap operators have two roundings (a fused multiply-add, a reciprocal). The rest have the errors
        of approximations of exp, tanh, erf and others on GPUs and vector units. Half types have these errors and one
        rounding. They have up to three roundings if an approximation is evaluated in the type itself.
        """
        relative = (2 if kind is Kind.LIGHT else 32) * EPSILON["float32"]
        absolute = 0.0 if kind is Kind.LIGHT else 32 * EPSILON["float32"]
        if dtype in HALF:
            in_half = kind is Kind.HEAVY and self.half_arithmetic
            relative += (1.6 if in_half else 0.55) * EPSILON[dtype]
            absolute += 0.25 * EPSILON[dtype] if in_half else 0.0
        return relative, absolute + (2.0**-24 if dtype == "float16" else 2.0**-126)


def _sequential_error(x: np.ndarray, axes: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the error of a sequential sum in ``dtype`` over ``axes``.

    Any other order adds fewer elements to one accumulator. The result has the remaining axes, in order.
    """
    last = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    kept = last.shape[: x.ndim - len(axes)]
    flat = last.reshape(*kept, int(np.prod(last.shape[len(kept) :])))  # -1 has no meaning without elements
    total = np.zeros(flat.shape[:-1], np.dtype(dtype))
    for block in range(0, flat.shape[-1], 1024):  # a running sum as large as ``x`` would be needless
        part = flat[..., block : block + 1024].astype(np.dtype(dtype))
        part[..., 0] += total
        total = np.add.accumulate(part, axis=-1, dtype=np.dtype(dtype))[..., -1]
    return np.abs(total.astype(np.float64) - flat.sum(axis=-1))


def _pick(args: Sequence[Any], end: str) -> list[Any]:
    """Return the arguments with every bound replaced by one of its ends."""
    return [
        getattr(arg, end)
        if isinstance(arg, Bound)
        else tuple(_pick(arg, end))
        if type(arg) is tuple and arg and isinstance(arg[0], Bound)
        else arg
        for arg in args
    ]


def _join(value: Any, low: Any, high: Any) -> Any:
    """Make bounds from results at the three ends, or a tuple of bounds if the operator returns several tensors."""
    if type(value) is tuple and value and isinstance(value[0], np.ndarray):
        return tuple(Bound(*parts) for parts in zip(value, low, high, strict=True))
    return Bound(value, low, high) if isinstance(value, np.ndarray) else value


def _corners(arg: Any, alone: bool) -> list[Any]:
    """Return the points at which an operator is evaluated.

    They are the argument's ends, and 0 between them, where |x| and x^2 turn.
    """
    if not isinstance(arg, Bound):
        return [arg]
    if arg.low is arg.high or np.array_equal(arg.low, arg.high):
        return [arg.value]
    zero = [np.clip(np.zeros_like(arg.value), arg.low, arg.high)] if alone and arg.value.dtype != bool else []
    return [arg.low, arg.high, *zero]


def _apart(low: np.ndarray, high: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move the ends outwards by ``spread``. A NaN as ``spread`` means that it is unknown. Infinite ends remain."""
    far = np.where(np.isnan(spread), np.inf, spread)
    return np.where(np.isinf(low), low, low - far), np.where(np.isinf(high), high, high + far)


def _widen(value: np.ndarray, low: np.ndarray, high: np.ndarray, relative: float, absolute: float) -> Bound:
    """Move the ends outwards. An infinite end remains, since inf - inf is NaN."""
    least, most = low - relative * np.abs(low) - absolute, high + relative * np.abs(high) + absolute
    return Bound(value, np.where(np.isinf(low), low, least), np.where(np.isinf(high), high, most))
