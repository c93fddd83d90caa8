# SPDX-License-Identifier: Apache-2.0
"""Recognise attention between its two matmuls: scales, masks, softmax, and PyTorch's code for masked rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax

from ...graph.extent import Extent, product, same, same_shape
from ...support.failures import Refusal
from ..rewriting.operators import operator_name
from ..rewriting.views import RESHAPES, Part, definition, shape_of

_FLOATS = ("bfloat16", "float16", "float32", "float64")
"""Types that scores and factors may be rounded to."""

_FILLS = ("relax.full", "relax.full_like")


class NotAttention(Refusal):
    """The matmuls around a softmax do not compute attention. Reports of attention leave them out."""


@dataclass
class Weights:
    """The operators between a softmax and the matmul of weights and v.

    Attributes:
        softmax: the softmax call.
        safe: rows of scores that are all -inf have weights of 0, not NaN.
        members: the variables of these operators.
        shapes: the shapes of their results.
    """

    softmax: relax.Call
    safe: bool
    members: list[relax.Expr]
    shapes: list[tuple[Extent, ...]]


@dataclass
class Scores:
    """The operators between a softmax and the matmul of q and k.

    Attributes:
        product: the call of ``R.matmul``, found last.
        scale: the factor of the scores.
        masks: the masks, each with the shape of the scores that it is added to.
        shapes: the shapes of the operators' results.
        members: the variables of these operators.
    """

    product: relax.Call = None
    scale: float = 1.0
    masks: list[tuple[relax.Expr, tuple[Extent, ...]]] = field(default_factory=list)
    shapes: list[tuple[Extent, ...]] = field(default_factory=list)
    members: list[relax.Expr] = field(default_factory=list)


class PatternReader:
    """Recognises the patterns around attention in a Relax function.

    Args:
        values: the value that each variable is bound to.
    """

    def __init__(self, values: Mapping[relax.Var, relax.Expr]):
        self.values = values
        self.definition = partial(definition, values)

    def weights(self, value: relax.Expr) -> Weights | None:
        """Return the softmax behind a value, and the operators in between, or None if there is no softmax."""
        members: list[relax.Expr] = []
        shapes: list[tuple[Extent, ...]] = []
        while (call := self.definition(value)) is not None:
            members.append(value)
            name, shape = operator_name(call), shape_of(call)
            if shape is None:
                return None
            shapes.append(shape)
            if name == "relax.nn.softmax":
                last = int(call.attrs.axis) in (-1, len(shape) - 1)
                return Weights(call, False, members, shapes) if last else None
            if name == "relax.where" and (scores := self._all_masked(call, members)) is not None:
                inner = self.weights(call.args[2])
                if inner is None or not self._without_casts(inner.softmax.args[0], []).same_as(scores):
                    return None
                return Weights(inner.softmax, True, members + inner.members, shapes + inner.shapes)
            if not self._is_cast(call) and not self.keeps_matrices(call):
                return None
            value = call.args[0]
        return None

    def _all_masked(self, where: relax.Call, members: list[relax.Expr]) -> relax.Expr | None:
        """Return the scores if a ``where`` gives 0 for rows whose scores are all -inf, else None.

        PyTorch decomposes attention to ``where(not any(not (scores == -inf)), 0, softmax(scores))``.
        """
        if self._scalar(where.args[1]) != 0.0:
            return None
        steps = ("relax.logical_not", "relax.max", "relax.logical_not", "relax.equal")
        value = where.args[0]
        for step in steps:
            value = self._without_casts(value, members)
            call = self.definition(value)
            if call is None or operator_name(call) != step:
                return None
            if step == "relax.max" and not _is_of_rows(call):
                return None
            members.append(value)
            last, value = call, call.args[0]
        if self._scalar(last.args[1]) != float("-inf"):
            return None
        return self._without_casts(last.args[0], members)

    def _without_casts(self, value: relax.Expr, passed: list[relax.Expr]) -> relax.Expr:
        """Return the value before casts and comparisons with zero, and append these to ``passed``."""
        while (call := self.definition(value)) is not None and (
            operator_name(call) == "relax.astype" or _is_truth(call)
        ):
            passed.append(value)
            value = call.args[0]
        return value

    def scores(self, value: relax.Expr) -> Scores:
        """Return the matmul that scores come from, and the operators in between.

        Raises:
            NotAttention: if another operator is between the softmax and the matmul.
        """
        scores = Scores()
        while (call := self.definition(value)) is not None:
            name, shape = operator_name(call), shape_of(call)
            if shape is None:
                raise NotAttention("a shape is not known")
            scores.members.append(value)
            scores.shapes.append(shape)
            if name == "relax.matmul":
                scores.product = call
                return scores
            if (scaled := self.scaled(call)) is not None:
                value, factor = scaled
                scores.scale *= factor
            elif name == "relax.add":
                if scores.scale != 1.0:
                    raise NotAttention("a mask is scaled")
                value, mask = self._split_sum(call, shape)
                scores.masks.append((mask, shape))
            elif self._is_cast(call) or self.keeps_matrices(call):
                value = call.args[0]
            else:
                raise NotAttention(f"{name} is between its matmuls")
        raise NotAttention("the softmax's operand is not computed by a matmul")

    def _split_sum(self, call: relax.Call, shape: tuple[Extent, ...]) -> tuple[relax.Expr, relax.Expr]:
        """Return the operands of an addition: first the operand that comes from a matmul, then the mask."""
        for value, other in (call.args, reversed(call.args)):
            own = shape_of(value)
            if own is not None and same_shape(own, shape) and self._leads_to_product(value):
                return value, other
        raise NotAttention("a sum of scores and a mask is not recognized")

    def _leads_to_product(self, value: relax.Expr) -> bool:
        while (call := self.definition(value)) is not None:
            name = operator_name(call)
            if name == "relax.matmul":
                return True
            if name == "relax.add":
                return any(self._leads_to_product(arg) for arg in call.args)
            scaled = self.scaled(call)
            if scaled is None and not self._is_cast(call) and not self.keeps_matrices(call):
                return False
            value = scaled[0] if scaled is not None else call.args[0]
        return False

    def _is_cast(self, call: relax.Call) -> bool:
        """Return whether a call casts between floating-point types."""
        return operator_name(call) == "relax.astype" and all(
            str(v.ty.dtype) in _FLOATS for v in (call, call.args[0])
        )

    def keeps_matrices(self, call: relax.Call) -> bool:
        """Return whether a call changes only the axes before rows and columns."""
        if operator_name(call) not in (*RESHAPES, "relax.broadcast_to"):
            return False
        before, after = shape_of(call.args[0]), shape_of(call)
        if not before or not after or min(len(before), len(after)) < 2:
            return False
        return same_shape(before[-2:], after[-2:]) and same(product(before), product(after))

    def scaled(self, call: relax.Call) -> tuple[relax.Expr, float] | None:
        """Return the value that a call multiplies by a number, and the number, or None for any other call."""
        name = operator_name(call)
        if name not in ("relax.multiply", "relax.divide"):
            return None
        pairs = [call.args] if name == "relax.divide" else [call.args, list(call.args)[::-1]]
        for value, number in pairs:
            factor = self._scalar(number)
            if factor is not None and same_shape(shape_of(value) or (), shape_of(call) or (0,)):
                return value, 1.0 / factor if name == "relax.divide" and factor else factor
        return None

    def _scalar(self, value: relax.Expr) -> float | None:
        """Return the number that all elements of a value equal, rounded by the casts that it passes, else None."""
        types: list[str] = []
        while True:
            types.append(str(value.ty.dtype))
            call = self.definition(value)
            if call is None:
                break
            name = operator_name(call)
            if name in ("relax.zeros", "relax.zeros_like"):
                return 0.0
            if name not in ("relax.astype", "relax.broadcast_to", *_FILLS, *RESHAPES):
                return None
            value = call.args[1] if name in _FILLS else call.args[0]
        if not isinstance(value, tvm.ir.GenericConst) or not set(types) <= set(_FLOATS):
            return None
        array = value.value.numpy()
        if array.size != 1:
            return None
        number = array.reshape(-1)[0]
        with np.errstate(over="ignore"):
            for dtype in reversed(types):
                number = np.asarray(number).astype(dtype)
        return float(number)

    def part(self, value: relax.Expr) -> Part | None:
        """Return the slice that a variable is bound to, if ``R.split`` makes it, else None."""
        value_of_var = self.values.get(value) if isinstance(value, relax.DataflowVar) else None
        if not isinstance(value_of_var, relax.TupleGetItem):
            return None
        call = self.values.get(value_of_var.tuple_value)
        return Part(call, int(value_of_var.index)) if operator_name(call) == "relax.split" else None


def _is_truth(call: relax.Call) -> bool:
    """Return whether a call compares with zero, which casts to a boolean."""
    if operator_name(call) != "relax.not_equal" or not isinstance(call.args[1], tvm.ir.GenericConst):
        return False
    number = call.args[1].value.numpy()
    return number.size == 1 and not number.any()


def _is_of_rows(reduction: relax.Call) -> bool:
    """Return whether a reduction is over the last axis alone, which it keeps with one element."""
    axes = [int(axis) for axis in reduction.attrs.axis or ()]
    rank = len(shape_of(reduction) or ())
    return axes in ([-1], [rank - 1]) and bool(reduction.attrs.keepdims)
