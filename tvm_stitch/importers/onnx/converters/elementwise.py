# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators whose attributes or types TVM's importer drops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx.onnx_frontend import get_type

from .node import ANY, Conversion, Node, Unsupported, dtype_of, scalar


def _is_inf(node: Node) -> relax.Expr:
    x, dtype = node.tensor(0), node.dtype(0)
    positive, negative = node.attributes["detect_positive"], node.attributes["detect_negative"]
    if not dtype.startswith(("float16", "float32", "float64", "bfloat16")):
        x, dtype = node.emit(relax.op.astype(x, "float32")), "float32"
    above = relax.op.equal(x, scalar(np.inf, dtype))
    below = relax.op.equal(x, scalar(-np.inf, dtype))
    if positive and negative:
        return relax.op.logical_or(above, below)
    if not positive and not negative:
        return relax.op.logical_and(above, below)
    return above if positive else below


def _mod(node: Node) -> relax.Expr:
    x, y = node.tensor(0), node.tensor(1)
    floating = node.dtype(0).startswith(("float", "bfloat"))
    if node.attributes["fmod"] or node.dtype(0).startswith("uint"):
        return relax.op.mod(x, y)
    if not floating:
        return relax.op.floor_mod(x, y)
    if node.opset < 28:
        raise Unsupported("it has fmod = 0, which ONNX allows for integers only; set fmod = 1")
    rest = node.emit(relax.op.mod(x, y))
    zero = scalar(0, node.dtype(0))
    other = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(y, zero))
    other = relax.op.logical_and(relax.op.not_equal(rest, zero), other)
    return relax.op.where(node.emit(other), relax.op.add(rest, y), rest)


def _bit_shift(node: Node) -> relax.Expr:
    """Shift. Counts of at least the width, and negative ones, give zero, or the sign of a shift to the right."""
    left, bits = node.attributes["direction"] == "LEFT", tvm.DataType(node.dtype(0)).bits
    x, y, dtype = node.tensor(0), node.tensor(1), node.dtype(0)
    most, zero = scalar(bits - 1, dtype), scalar(0, dtype)
    count = node.emit(relax.op.minimum(relax.op.maximum(y, zero), most))
    shifted = node.emit((relax.op.left_shift if left else relax.op.right_shift)(x, count))
    kept = node.emit(relax.op.equal(count, y))
    beyond = zero if left or dtype.startswith("uint") else relax.op.right_shift(x, most)
    return relax.op.where(kept, shifted, beyond)


def in_float(node: Node, function: Callable[[relax.Expr, str], relax.Expr]) -> relax.Expr:
    """Return a function of the first input, computed in float32 for half types."""
    x, dtype = node.tensor(0), node.dtype(0)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    if wide == dtype:
        return function(x, dtype)
    return relax.op.astype(function(node.emit(relax.op.astype(x, wide)), wide), dtype)


def _elu_of(node: Node, alpha: float, gamma: float, inner: float = 1.0) -> relax.Expr:
    def elu(x: relax.Expr, dtype: str) -> relax.Expr:
        scaled = x if inner == 1.0 else relax.op.divide(x, scalar(inner, dtype))
        below = relax.op.multiply(
            scalar(alpha * gamma, dtype), relax.op.subtract(relax.op.exp(scaled), scalar(1.0, dtype))
        )
        above = x if gamma == 1.0 else relax.op.multiply(x, scalar(gamma, dtype))
        return relax.op.where(relax.op.greater(x, scalar(0.0, dtype)), above, below)

    return in_float(node, elu)


def _celu(node: Node) -> relax.Expr:
    alpha = node.attributes["alpha"]
    return _elu_of(node, alpha, 1.0, inner=alpha)


def _thresholded_relu(node: Node) -> relax.Expr:
    x, dtype = node.tensor(0), node.dtype(0)
    return relax.op.where(relax.op.greater(x, scalar(node.attributes["alpha"], dtype)), x, scalar(0.0, dtype))


def _mish(node: Node) -> relax.Expr:
    return in_float(node, lambda x, d: relax.op.multiply(x, relax.op.tanh(_softplus_of(x, d))))


def _softplus_of(x: relax.Expr, dtype: str) -> relax.Expr:
    """Return log(1 + exp(x)), which does not overflow."""
    tail = relax.op.log(relax.op.add(scalar(1.0, dtype), relax.op.exp(relax.op.negative(relax.op.abs(x)))))
    return relax.op.add(relax.op.maximum(x, scalar(0.0, dtype)), tail)


def _softplus(node: Node) -> relax.Expr:
    return in_float(node, _softplus_of)


def _swish(node: Node) -> relax.Expr:
    alpha = node.attributes["alpha"]
    return in_float(
        node, lambda x, d: relax.op.multiply(x, relax.op.sigmoid(relax.op.multiply(scalar(alpha, d), x)))
    )


def _selu(node: Node) -> relax.Expr:
    return _elu_of(node, node.attributes["alpha"], node.attributes["gamma"])


def _shrink(node: Node) -> relax.Expr:
    """Compute in float64 for integers: the bounds are floats."""
    x, dtype = node.tensor(0), node.dtype(0)
    wide = dtype if dtype.startswith(("float", "bfloat")) else "float64"
    x = x if wide == dtype else node.emit(relax.op.astype(x, wide))
    lambd, bias = node.attributes["lambd"], scalar(node.attributes["bias"], wide)
    below = relax.op.where(relax.op.less(x, scalar(-lambd, wide)), relax.op.add(x, bias), scalar(0.0, wide))
    y = relax.op.where(relax.op.greater(x, scalar(lambd, wide)), relax.op.subtract(x, bias), below)
    return y if wide == dtype else relax.op.astype(y, dtype)


def _hard_sigmoid(node: Node) -> relax.Expr:
    def clipped(x: relax.Expr, dtype: str) -> relax.Expr:
        line = relax.op.add(
            relax.op.multiply(scalar(node.attributes["alpha"], dtype), x),
            scalar(node.attributes["beta"], dtype),
        )
        return relax.op.minimum(relax.op.maximum(line, scalar(0.0, dtype)), scalar(1.0, dtype))

    return in_float(node, clipped)


def _clip_by_attributes(x: relax.Expr, node: Node) -> relax.Expr:
    dtype = dtype_of(x)
    low, high = node.attributes.get("min"), node.attributes.get("max")
    x = x if low is None or low <= -3.4e38 else relax.op.maximum(x, scalar(low, dtype))
    return x if high is None or high >= 3.4e38 else relax.op.minimum(x, scalar(high, dtype))


def _clip(node: Node) -> relax.Expr:
    x = node.tensor(0)
    if node.opset < 11:
        return _clip_by_attributes(x, node)
    for position, bound in ((1, relax.op.maximum), (2, relax.op.minimum)):
        if not node.has(position):
            continue
        value = node.constant(position)
        if value is not None and value.dtype.kind == "f" and np.isnan(value).any():
            continue  # ONNX Runtime takes such a bound for none
        x = bound(x, node.tensor(position))
    return x if x is not node.tensor(0) else relax.op.multiply(x, scalar(1, node.dtype(0)))


def _fold(function: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Callable[[Node], relax.Expr]:
    def convert(node: Node) -> relax.Expr:
        values = [node.tensor(i) for i in range(len(node.inputs))]
        return functools.reduce(lambda a, b: node.emit(function(a, b)), values)

    return convert


def _mean(node: Node) -> relax.Expr:
    total = _fold(relax.op.add)(node)
    return relax.op.divide(total, scalar(len(node.inputs), node.dtype(0)))


def _dropout(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """Return the input: nothing is dropped at inference. The mask is true everywhere."""
    x = node.tensor(0)
    if node.opset >= 12 and node.has(2):
        training, ratio = node.constant(2), node.constant(1)
        dropped = (
            ratio is None and not node.has(1) or ratio is not None and float(ratio.reshape(-1)[0]) != 0.0
        )
        if training is None or (
            bool(training.reshape(-1)[0]) and (ratio is not None or not node.has(1)) and dropped
        ):
            raise Unsupported("it drops elements at random (training_mode); export the model for inference")
        if bool(training.reshape(-1)[0]) and node.has(1) and ratio is None:
            raise Unsupported("its ratio is no constant in training mode; export the model for inference")
    if node.attributes.get("is_test") == 0:
        raise Unsupported("it drops elements at random (is_test = 0); export the model for inference")
    mask_type = "bool" if node.opset >= 10 else node.dtype(0)
    mask = relax.op.full_like(
        x, scalar(True, mask_type) if mask_type == "bool" else scalar(1, mask_type), mask_type
    )
    return x, mask


def _pow(node: Node) -> relax.Expr:
    """Compute powers in the wider of both types. Integers with integer exponents are multiplied exactly."""
    x, y, dtype, other = node.tensor(0), node.tensor(1), node.dtype(0), node.dtype(1)
    floating = [d.startswith(("float", "bfloat")) for d in (dtype, other)]
    exponent = node.constant(1)
    if (
        not any(floating)
        and exponent is not None
        and exponent.size == 1
        and 0 <= int(exponent.reshape(-1)[0]) <= 8
    ):
        powers = [x] * int(exponent.reshape(-1)[0])
        if not powers:
            return relax.op.ones_like(x)
        result = functools.reduce(relax.op.multiply, powers)
        return result if len(powers) > 1 else relax.op.multiply(x, scalar(1, dtype))
    wide = "float64" if "float64" in (dtype, other) or not all(floating) else "float32"
    wide = dtype if dtype == other and dtype == "float32" else wide
    x = x if dtype == wide else relax.op.astype(x, wide)
    y = y if other == wide else relax.op.astype(y, wide)
    power = relax.op.power(x, y)
    return power if dtype == wide else relax.op.astype(power, dtype)


def _prelu(node: Node) -> relax.Expr:
    x, slope, dtype = node.tensor(0), node.tensor(1), node.dtype(0)
    return relax.op.where(relax.op.less(x, scalar(0, dtype)), relax.op.multiply(x, slope), x)


def _eye_like(node: Node) -> relax.Expr:
    dtype = get_type(node.attributes["dtype"]) if "dtype" in node.attributes else node.dtype(0)
    rows, columns = node.static_shape(0)
    return relax.const(np.eye(rows, columns, int(node.attributes["k"])).astype(np_type(dtype)), dtype)


def _gelu(node: Node) -> relax.Expr:
    tanh = node.attributes["approximate"] == "tanh"
    return in_float(node, lambda x, d: gelu_tanh(x, d) if tanh else gelu(x, d))


def gelu(x: relax.Expr, dtype: str) -> relax.Expr:
    """Return x/2 (1 + erf(x / sqrt(2)))."""
    erf = relax.op.erf(relax.op.multiply(x, scalar(math.sqrt(0.5), dtype)))
    return relax.op.multiply(relax.op.multiply(x, scalar(0.5, dtype)), relax.op.add(scalar(1.0, dtype), erf))


def gelu_tanh(x: relax.Expr, dtype: str) -> relax.Expr:
    """Return the approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    cube = relax.op.multiply(relax.op.multiply(x, x), x)
    inner = relax.op.add(x, relax.op.multiply(scalar(0.044715, dtype), cube))
    tanh = relax.op.tanh(relax.op.multiply(scalar(math.sqrt(2 / math.pi), dtype), inner))
    return relax.op.multiply(relax.op.multiply(x, scalar(0.5, dtype)), relax.op.add(scalar(1.0, dtype), tanh))


def _bit_cast(node: Node) -> relax.Expr:
    to = get_type(node.attributes["to"])
    if tvm.DataType(to).bits != tvm.DataType(node.dtype(0)).bits or "bool" in (to, node.dtype(0)):
        raise Unsupported(
            f"it reads {node.dtype(0)} as {to}; only types of equal width are converted, except bool"
        )

    def bits(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.reinterpret(to, x(*i)), name="bit_cast")

    return node.bb.emit_te(bits, node.tensor(0))


def _trilu(node: Node) -> relax.Expr:
    k = int(node.known(1, "k").reshape(-1)[0]) if node.has(1) else 0
    x = node.tensor(0)
    size = max([d for d in node.shape(0) if isinstance(d, int)], default=0)
    k = max(-(1 << 30), min(1 << 30, k)) if size < (1 << 30) else k
    return relax.op.triu(x, k) if node.attributes["upper"] else relax.op.tril(x, k)


def np_type(dtype: str) -> np.dtype:
    """Return NumPy's type of a name, also for ``bfloat16``."""
    return np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)


_ALPHA = {"alpha": ANY}
CONVERSIONS = {
    ("", "IsInf"): Conversion(_is_inf, {"detect_positive": ANY, "detect_negative": ANY}),
    ("", "Mod"): Conversion(_mod, {"fmod": ANY}),
    ("", "BitShift"): Conversion(_bit_shift, {"direction": ("LEFT", "RIGHT")}),
    ("", "Elu"): Conversion(lambda n: _elu_of(n, n.attributes["alpha"], 1.0), _ALPHA, since=6),
    ("", "Celu"): Conversion(_celu, _ALPHA),
    ("", "Selu"): Conversion(_selu, {"alpha": ANY, "gamma": ANY}, since=6),
    ("", "ThresholdedRelu"): Conversion(_thresholded_relu, _ALPHA),
    ("", "Mish"): Conversion(_mish),
    ("", "Softplus"): Conversion(_softplus),
    ("", "Swish"): Conversion(_swish, _ALPHA),
    ("", "Shrink"): Conversion(_shrink, {"lambd": ANY, "bias": ANY}),
    ("", "HardSigmoid"): Conversion(_hard_sigmoid, {"alpha": ANY, "beta": ANY}, since=6),
    ("", "Clip"): Conversion(_clip, {"min": ANY, "max": ANY}, since=6),
    ("", "Min"): Conversion(_fold(relax.op.minimum), since=8),
    ("", "Max"): Conversion(_fold(relax.op.maximum), since=8),
    ("", "Sum"): Conversion(_fold(relax.op.add), since=8),
    ("", "Mean"): Conversion(_mean, since=8),
    ("", "Dropout"): Conversion(_dropout, {"ratio": ANY, "seed": ANY, "is_test": (1,)}, since=6),
    ("", "Pow"): Conversion(_pow, since=7),
    ("", "PRelu"): Conversion(_prelu, since=7),
    ("", "EyeLike"): Conversion(_eye_like, {"k": ANY, "dtype": ANY}),
    ("", "Gelu"): Conversion(_gelu, {"approximate": ("none", "tanh")}),
    ("", "BitCast"): Conversion(_bit_cast, {"to": ANY}),
    ("", "Trilu"): Conversion(_trilu, {"upper": ANY}),
}
