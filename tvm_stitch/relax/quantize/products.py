# SPDX-License-Identifier: Apache-2.0
"""QuantizedProducts: compute matmuls and convolutions of dequantized integers on the integers, and scale the sums.

With activations ``(x - zx) * sx`` and a constant weight ``(w - zw) * sw``, a sum along the reduction axis k of extent
K is::

    sx * sw * (sum x w' - zx * sum w' + c * (sum x - K zx))

The bytes are ``w' = w - zw - c``. If all differences ``w - zw`` fit into a signed byte, c is 0. Otherwise it is the
middle of a column's differences. The terms that depend on the weight alone are constants. A kernel therefore adds one
vector to its sums, and scales them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...compute.templates import multiplies_unsigned, why_no_integers
from ...graph.dtype import BYTES
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from ..rewriting.operators import has_operators, operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.templates import suits_templates
from ..rewriting.views import definition, permutation, shape_of
from .parameters import DEQUANTIZE, array_of, constant_parts, is_constant, is_per_tensor, is_zero
from .unsigned import SHIFT, UnsignedQuantization

MATMUL = "relax.matmul"
CONVOLUTIONS = {
    "relax.nn.conv1d": R.nn.conv1d,
    "relax.nn.conv2d": R.nn.conv2d,
    "relax.nn.conv3d": R.nn.conv3d,
}

LARGEST_SUM = (1 << 31) - 1
LARGEST_BYTE = 255


@module_pass
class QuantizedProducts(ComputePass):
    """Compute matmuls and convolutions with their integers, if a template multiplies them.

    The data is a dequantized tensor of int8 or uint8, with one scale and one zero point, which need not be constants.
    The weight is a constant, with a scale and a zero point for each column or for all. ``matmul(x - zx, w - zw)`` in
    int32 is taken too, as ``MatMulInteger`` is imported.

    If a product of dequantized operands stays one of floats, the module's decisions record the reason. Runs before
    ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, (MATMUL, *CONVOLUTIONS)):
            return mod
        if multiplies_unsigned(self.target) and has_operators(mod, (DEQUANTIZE,)):
            mod = UnsignedQuantization().rewritten(mod)
        names = (MATMUL, *CONVOLUTIONS)
        integers = (DEQUANTIZE, "relax.astype")
        why = "bytes are multiplied faster than floats"
        rule = Rule(why, self._integers, names, leaves_unused=True, needs=[integers])
        return apply_rules(mod, [rule])

    def _integers(self, match: Match) -> relax.Expr | None:
        """Return the product of integers that equals a product. If it stays one of floats, record the reason."""
        try:
            return _Integers(self, match).product()
        except Refusal as err:
            self.computed["", match.var] = f"multiplied as {match.before.ty.dtype}: {err}"
            return None


@dataclass(frozen=True)
class _Data:
    """Activations: bytes in memory, the zero point (None: 0), and their scale (None: 1)."""

    values: relax.Expr
    zero: relax.Expr | None
    scale: relax.Expr | None


@dataclass(frozen=True)
class _Weight:
    """A constant weight: its integers without zero points, and scales of its rank (None: 1)."""

    integers: np.ndarray
    scale: np.ndarray | None


@dataclass(frozen=True)
class _Split:
    """A weight as bytes: ``integers = bytes + rest``. The rest and the bytes' sums have extent 1 along reductions."""

    bytes: np.ndarray
    rest: np.ndarray
    sums: np.ndarray


class _Integers:
    """A matmul or convolution as one of integers."""

    def __init__(self, owner: QuantizedProducts, match: Match):
        self.owner, self.match = owner, match
        self._definition, self._emit = partial(definition, match.values), match.emit

    def product(self) -> relax.Expr | None:
        """Return the result, computed with integers, or None if its operands are not dequantized integers.

        Raises:
            Refusal: if they are, and no template takes them.
        """
        call = self.match.before
        return self._product(call) if operator_name(call) == MATMUL else self._convolution(call)

    # -- what is multiplied ---------------------------------------------------------------------------------------
    def _data(self, value: relax.Expr) -> _Data | None:
        """Return the activations that a left factor is computed from. None if it is computed from something else."""
        call = self._definition(value)
        if call is None:
            return None
        if operator_name(call) == DEQUANTIZE:
            source, scale, zero = call.args
            if is_per_tensor(call) and str(call.ty.dtype) == "float32":
                return _Data(source, None if is_zero(zero) else zero, scale)
            return None
        shift: relax.Expr | None = None
        if operator_name(call) == "relax.subtract":
            first, shift = call.args
            call = self._definition(first)
        if call is None or operator_name(call) != "relax.astype" or str(call.ty.dtype) != "int32":
            return None
        return _Data(call.args[0], None if shift is None or is_zero(shift) else shift, None)

    def _weight(self, value: relax.Expr) -> _Weight | None:
        """Return the integers that a right factor represents, or None if it is not a constant of integers."""
        if is_constant(value):
            whole = str(value.ty.dtype) == "int32"
            return _Weight(array_of(value).astype("int64"), None) if whole else None
        call = self._definition(value)
        if call is None:
            return None
        parts = constant_parts(call)
        if parts is not None:
            array, scale, zero = parts
            return _Weight(array.astype("int64") - zero.astype("int64"), scale.astype("float32"))
        if operator_name(call) == "relax.subtract" and all(map(is_constant, call.args)):
            first, second = (self._weight(arg) for arg in call.args)
            if first is None or second is None:
                return None
            return _Weight(first.integers - second.integers, None)
        if operator_name(call) == "relax.permute_dims":
            weight = self._weight(call.args[0])
            if weight is None:
                return None
            order = permutation(call, weight.integers.ndim)
            permuted = None if weight.scale is None else weight.scale.transpose(order)
            return _Weight(weight.integers.transpose(order), permuted)
        return None

    def _factors(self, call: relax.Call) -> tuple[_Data, _Weight] | None:
        """Return both factors of a product of integers, or None if it is none.

        Raises:
            Refusal: if it is one that is not taken.
        """
        data = self._data(call.args[0])
        if data is None:
            return None
        if str(data.values.ty.dtype) not in BYTES:
            raise Refusal(f"its left side is of {data.values.ty.dtype}, templates take int8 and uint8")
        weight = self._weight(call.args[1])
        if weight is None:
            if data.scale is None or operator_name(self._definition(call.args[1])) == DEQUANTIZE:
                raise Refusal("its right side is not a constant")
            return None
        if (data.scale is None) != (weight.scale is None):
            return None
        return data, weight

    def _check(self, kind: str, dtype: str) -> None:
        if why := why_no_integers(self.owner.target, self.owner.config, kind, (dtype, "int8")):
            raise Refusal(why)

    # -- products -------------------------------------------------------------------------------------------------
    def _product(self, call: relax.Call) -> relax.Expr | None:
        factors = self._factors(call)
        if factors is None:
            return None
        data, weight = factors
        if weight.integers.ndim != 2:
            raise Refusal("its right side is not a matrix")
        if weight.scale is not None and weight.scale.shape[0] != 1:
            raise Refusal("its right side has scales along the reduction dimension, which is added up")
        if data.scale is None and str(call.ty.dtype) != "int32":
            return None
        split = _split(weight.integers, (0,))
        x, zero = self._bytes(data, "matmul")
        sums = self._emit(R.matmul(x, relax.const(split.bytes), out_dtype="int32"))
        if split.rest.any():
            wide = self._emit(R.astype(x, "int32"))
            rows = self._emit(R.sum(wide, -1, keepdims=True))
            if zero is not None:
                rows = self._emit(R.subtract(rows, self._times(zero, np.asarray(len(weight.integers)))))
            more = self._emit(R.multiply(rows, relax.const(split.rest.reshape(-1))))
            sums = self._emit(R.add(sums, more))
        if zero is not None:
            sums = self._emit(R.subtract(sums, self._times(zero, split.sums.reshape(-1))))
        if data.scale is None:
            return sums
        assert weight.scale is not None
        return self._scaled(sums, data, weight.scale.reshape(-1))

    def _convolution(self, call: relax.Call) -> relax.Expr | None:
        factors = self._factors(call)
        if factors is None:
            return None
        data, weight = factors
        attrs, spatial = call.attrs, len(call.attrs.strides)
        layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
        if len(layout) != spatial + 2 or str(attrs.out_layout) not in ("", layout):
            return None
        channel = kernel.index("O")
        reduction = tuple(axis for axis in range(weight.integers.ndim) if axis != channel)
        if weight.scale is None or any(weight.scale.shape[axis] != 1 for axis in reduction):
            raise Refusal("its weight has scales along the reduction dimension, which is added up")
        split = _split(weight.integers, reduction)
        if split.rest.any():
            raise Refusal("the zero points of its weight leave integers that are not signed bytes")
        if data.zero is not None and not is_constant(data.zero) and any(attrs.padding):
            raise Refusal("its border would be of a zero point that is not a constant")
        x, zero = self._bytes(data, "convolution")
        padding = [int(p) for p in attrs.padding]
        if zero is not None and any(padding):
            widths = [(0, 0)] * len(layout)
            for axis, (before, after) in enumerate(zip(padding[:spatial], padding[spatial:])):
                widths[layout.index(_spatial(layout)[axis])] = before, after
            value = float(array_of(zero).reshape(()))
            x = self._emit(R.nn.pad(x, [width for pair in widths for width in pair], pad_value=value))
            padding = [0] * len(padding)
        result = CONVOLUTIONS[call.op.name](
            x,
            relax.const(np.ascontiguousarray(split.bytes)),
            strides=list(attrs.strides),
            padding=padding,
            dilation=list(attrs.dilation),
            groups=int(attrs.groups),
            data_layout=layout,
            kernel_layout=kernel,
            out_dtype="int32",
        )
        sums = self._emit(result)
        if not suits_templates(result if result.ty is not None else self.match.definition(sums), False):
            raise Refusal("its images are of symbolic size")

        def along_channels(values: np.ndarray) -> np.ndarray:
            shape = [1] * len(layout)
            shape[layout.index("C")] = values.size
            return values.reshape(shape)

        if zero is not None:
            sums = self._emit(R.subtract(sums, self._times(zero, along_channels(split.sums))))
        scale = weight.scale.reshape(-1)
        return self._scaled(sums, data, along_channels(scale) if scale.size > 1 else scale)

    def _bytes(self, data: _Data, kind: str) -> tuple[relax.Expr, relax.Expr | None]:
        """Return the activations and their int32 zero point (None: 0) in the dtype that suits templates best."""
        x, dtype = self.match.now(data.values), str(data.values.ty.dtype)
        unsigned = dtype == "int8" and multiplies_unsigned(self.owner.target)
        self._check(kind, "uint8" if unsigned else dtype)
        zero = data.zero
        if zero is not None:
            if is_constant(zero):
                zero = relax.const(array_of(zero).astype("int32"), "int32")
            else:
                zero = self.match.now(zero)
                if str(zero.ty.dtype) != "int32":
                    zero = self._emit(R.astype(zero, "int32"))
        if not unsigned:
            return x, zero
        wide = self._emit(R.add(self._emit(R.astype(x, "int16")), relax.const(np.int16(SHIFT))))
        shifted = self._emit(R.astype(wide, "uint8"))
        if zero is None:
            return shifted, relax.const(np.int32(SHIFT))
        if is_constant(zero):
            return shifted, relax.const(array_of(zero) + np.int32(SHIFT))
        return shifted, self._emit(R.add(zero, relax.const(np.int32(SHIFT))))

    def _times(self, zero: relax.Expr, values: np.ndarray) -> relax.Expr:
        """Return the product of a zero point with constants."""
        if is_constant(zero):
            with np.errstate(over="ignore"):
                product = array_of(zero).astype("int64") * values.astype("int64")
            return relax.const(product.astype("int32"), "int32")
        return self._emit(R.multiply(zero, relax.const(np.asarray(values, "int32"))))

    def _scaled(self, sums: Any, data: _Data, scale: np.ndarray) -> relax.Expr:
        real = self._emit(R.astype(sums, "float32"))
        if is_constant(data.scale):
            product = array_of(data.scale).astype("float32").reshape(()) * scale.astype("float32")
            return R.multiply(real, relax.const(product.reshape(()) if product.size == 1 else product))
        whole = self._emit(R.reshape(self.match.now(data.scale), [])) if shape_of(data.scale) else None
        own = whole if whole is not None else self.match.now(data.scale)
        each = relax.const(scale.reshape(()) if scale.size == 1 else scale)
        return R.multiply(real, self._emit(R.multiply(own, each)))


def _spatial(layout: str) -> str:
    return "".join(axis for axis in layout if axis not in "NC")


def _split(integers: np.ndarray, reduction: tuple[int, ...]) -> _Split:
    """Split a weight into bytes and a rest that is the same along the reduction axes.

    Raises:
        Refusal: if a column's integers differ by more than a byte, or sums may not fit into an int32.
    """
    count = int(np.prod([integers.shape[axis] for axis in reduction]))
    shape = [1 if axis in reduction else extent for axis, extent in enumerate(integers.shape)]
    if integers.size == 0:
        nothing = np.zeros(shape, "int32")
        return _Split(integers.astype("int8"), nothing, nothing)
    low, high = integers.min(reduction, keepdims=True), integers.max(reduction, keepdims=True)
    if (high - low).max() > LARGEST_BYTE:
        raise Refusal("the integers of a column of its weight differ by more than a byte")
    largest = max(abs(int(low.min())), abs(int(high.max())), SHIFT)
    if count * LARGEST_BYTE * largest > LARGEST_SUM:
        raise Refusal(f"its sums of {count} products may not fit into an int32")
    fits = low.min() >= -SHIFT and high.max() < SHIFT
    rest = np.zeros_like(low) if fits else (high + low + 1) // 2
    quotient = integers - rest
    sums = quotient.sum(reduction, keepdims=True)
    return _Split(quotient.astype("int8"), rest.astype("int32"), sums.astype("int32"))
