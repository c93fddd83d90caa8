# SPDX-License-Identifier: Apache-2.0
"""Named memory-intensive workloads, written as primitives of any front end. Relax is the default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm

from .case import (
    DEFAULT_TOLERANCE,
    Case,
    case_of,
    draw_dropout,
    draw_mask,
    draw_normal,
    draw_positive,
    place_of,
)
from .specs import Spec

# Functions that several workloads share. Each emits primitives only.


def _softmax(ops: Any, x: Any) -> Any:
    shifted = ops.subtract(x, ops.max(x, axis=-1, keepdims=True))
    exponential = ops.exp(shifted)
    return ops.divide(exponential, ops.sum(exponential, axis=-1, keepdims=True))


def _layer_norm(ops: Any, x: Any, gamma: Any, beta: Any, dtype: str) -> Any:
    centred = ops.subtract(x, ops.mean(x, axis=-1, keepdims=True))
    variance = ops.mean(ops.multiply(centred, centred), axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.add(variance, ops.const(1e-5, dtype)))
    normal = ops.multiply(centred, scale)
    return ops.add(ops.multiply(normal, gamma), beta)


def _gelu(ops: Any, x: Any, dtype: str) -> Any:
    """Emit x * (1 + erf(x / sqrt 2)) / 2."""
    erf = ops.erf(ops.multiply(x, ops.const(math.sqrt(0.5), dtype)))
    half = ops.multiply(x, ops.const(0.5, dtype))
    return ops.multiply(half, ops.add(erf, ops.const(1.0, dtype)))


def softmax(rows: int, columns: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of softmax over the last axis of <rows, columns>."""
    x = Spec("x", (rows, columns), dtype)

    def body(ops: Any, x: Any) -> list[Any]:
        return [_softmax(ops, x)]

    return case_of(
        "softmax",
        [(x, draw_normal)],
        [Spec("y", x.shape, dtype)],
        body,
        stock_kernels=4,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "columns": columns},
    )


def log_softmax(rows: int, columns: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of log(softmax) over the last axis of <rows, columns>."""
    x = Spec("x", (rows, columns), dtype)

    def body(ops: Any, x: Any) -> list[Any]:
        shifted = ops.subtract(x, ops.max(x, axis=-1, keepdims=True))
        total = ops.sum(ops.exp(shifted), axis=-1, keepdims=True)
        return [ops.subtract(shifted, ops.log(total))]

    return case_of(
        "log_softmax",
        [(x, draw_normal)],
        [Spec("y", x.shape, dtype)],
        body,
        stock_kernels=4,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "columns": columns},
    )


def attention_softmax(
    batch: int, heads: int, queries: int, keys: int, dtype: str = "float32", symbolic: bool = False
) -> Case:
    """Make the case of the softmax of attention.

    It computes softmax(scores * scale + mask) * dropout on <batch, heads, queries, keys>. The mask is <batch, 1, 1,
    keys>.
    """
    shape = (batch, heads, queries, keys)

    def body(ops: Any, scores: Any, mask: Any, dropout: Any) -> list[Any]:
        scaled = ops.multiply(scores, ops.const(0.125, dtype))
        probability = _softmax(ops, ops.add(scaled, mask))
        return [ops.multiply(probability, dropout)]

    return case_of(
        "attention_softmax",
        [
            (Spec("scores", shape, dtype), draw_normal),
            (Spec("mask", (batch, 1, 1, keys), dtype), draw_mask),
            (Spec("dropout", shape, dtype), draw_dropout),
        ],
        [Spec("y", shape, dtype)],
        body,
        stock_kernels=5,
        symbolic="batch" if symbolic else None,
        sizes={"batch": batch, "heads": heads, "queries": queries, "keys": keys},
    )


def layer_norm(rows: int, columns: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of layer norm over the last axis of <rows, columns> with scale and offset."""
    x = Spec("x", (rows, columns), dtype)

    def body(ops: Any, x: Any, gamma: Any, beta: Any) -> list[Any]:
        return [_layer_norm(ops, x, gamma, beta, dtype)]

    return case_of(
        "layer_norm",
        [
            (x, draw_normal),
            (Spec("gamma", (columns,), dtype), draw_normal),
            (Spec("beta", (columns,), dtype), draw_normal),
        ],
        [Spec("y", x.shape, dtype)],
        body,
        stock_kernels=3,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "columns": columns},
    )


def add_layer_norm_gelu(rows: int, columns: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of (s, t, gelu(layer_norm(t))), where s is x + residual and t is s + bias."""
    x = Spec("x", (rows, columns), dtype)

    def body(
        ops: Any,
        x: Any,
        residual: Any,
        bias: Any,
        gamma: Any,
        beta: Any,
    ) -> list[Any]:
        first = ops.add(x, residual)
        second = ops.add(first, bias)
        return [first, second, _gelu(ops, _layer_norm(ops, second, gamma, beta, dtype), dtype)]

    vectors = [(Spec(name, (columns,), dtype), draw_normal) for name in ("bias", "gamma", "beta")]
    return case_of(
        "add_layer_norm_gelu",
        [(x, draw_normal), (Spec("residual", x.shape, dtype), draw_normal), *vectors],
        [Spec("first_sum", x.shape, dtype), Spec("second_sum", x.shape, dtype), Spec("y", x.shape, dtype)],
        body,
        stock_kernels=5,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "columns": columns},
    )


def softmax_add_layer_norm_gelu(
    rows: int, columns: int, dtype: str = "float32", symbolic: bool = False
) -> Case:
    """Make the case of gelu(layer_norm(softmax(x) + residual)) on <rows, columns>."""
    x = Spec("x", (rows, columns), dtype)

    def body(ops: Any, x: Any, residual: Any, gamma: Any, beta: Any) -> list[Any]:
        added = ops.add(_softmax(ops, x), residual)
        return [_gelu(ops, _layer_norm(ops, added, gamma, beta, dtype), dtype)]

    vectors = [(Spec(name, (columns,), dtype), draw_normal) for name in ("gamma", "beta")]
    return case_of(
        "softmax_add_layer_norm_gelu",
        [(x, draw_normal), (Spec("residual", x.shape, dtype), draw_normal), *vectors],
        [Spec("y", x.shape, dtype)],
        body,
        stock_kernels=7,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "columns": columns},
    )


def group_norm_silu(
    batch: int, channels: int, groups: int, pixels: int, dtype: str = "float32", symbolic: bool = False
) -> Case:
    """Make the case of silu(group_norm(x)) on <batch, channels, pixels>, statistics over channels/groups x pixels."""
    if channels % groups:
        raise ValueError(f"channels ({channels}) must be a multiple of groups ({groups})")
    shape = (batch, channels, pixels)
    vector = (1, groups, channels // groups, 1)

    def body(ops: Any, x: Any, gamma: Any, beta: Any) -> list[Any]:
        outer = ops.shape_of(x)[0]
        grouped = ops.reshape(x, (outer, groups, channels // groups, pixels))
        centred = ops.subtract(grouped, ops.mean(grouped, axis=[2, 3], keepdims=True))
        variance = ops.mean(ops.multiply(centred, centred), axis=[2, 3], keepdims=True)
        scale = ops.rsqrt(ops.add(variance, ops.const(1e-5, dtype)))
        normal = ops.multiply(centred, scale)
        scaled = ops.multiply(normal, ops.reshape(gamma, vector))
        shifted = ops.reshape(ops.add(scaled, ops.reshape(beta, vector)), ops.shape_of(x))
        return [ops.multiply(shifted, ops.sigmoid(shifted))]

    return case_of(
        "group_norm_silu",
        [
            (Spec("x", shape, dtype), draw_normal),
            (Spec("gamma", (channels,), dtype), draw_normal),
            (Spec("beta", (channels,), dtype), draw_normal),
        ],
        [Spec("y", shape, dtype)],
        body,
        stock_kernels=4,
        symbolic="batch" if symbolic else None,
        sizes={"batch": batch, "channels": channels, "groups": groups, "pixels": pixels},
    )


def rms_norm_quantize(rows: int, columns: int, dtype: str = "bfloat16", symbolic: bool = False) -> Case:
    """Make the case of a residual add, an RMS norm and int8 quantization with one scale a token.

    ``main`` returns (x + residual <rows, columns>, int8 <rows, columns>, float32 scale <rows, 1>). The mean square is
    taken in float32. The quotient is rounded in ``dtype``, as models that quantize activations write it.
    """
    x = Spec("x", (rows, columns), dtype)

    def body(ops: Any, x: Any, residual: Any, weight: Any) -> list[Any]:
        added = ops.add(x, residual)
        wide = ops.astype(added, "float32")
        mean_square = ops.mean(ops.multiply(wide, wide), axis=-1, keepdims=True)
        inverse = ops.rsqrt(ops.add(mean_square, ops.const(1e-6, "float32")))
        normal = ops.astype(ops.multiply(wide, inverse), dtype)
        weighted = ops.multiply(normal, weight)
        largest = ops.max(ops.abs(weighted), axis=-1, keepdims=True)
        scale = ops.multiply(ops.astype(largest, "float32"), ops.const(1 / 127, "float32"))
        scale = ops.maximum(scale, ops.const(1e-8, "float32"))
        quotient = ops.divide(weighted, ops.astype(scale, dtype))
        limited = ops.clip(ops.round(quotient), -127.0, 127.0)
        return [added, ops.astype(limited, "int8"), scale]

    return case_of(
        "rms_norm_quantize",
        [
            (x, draw_normal),
            (Spec("residual", x.shape, dtype), draw_normal),
            (Spec("weight", (columns,), dtype), draw_positive),
        ],
        [
            Spec("sum", x.shape, dtype),
            Spec("quantized", x.shape, "int8"),
            Spec("scale", (rows, 1), "float32"),
        ],
        body,
        stock_kernels=7,
        symbolic="rows" if symbolic else None,
        # The scale is the largest of values that an implementation may or may not round to ``dtype``. Quotients past
        # 64 are multiples of 0.5 in bfloat16.
        tolerance={"float32": (2e-2, 1e-6), "int8": (0.0, 2.0)},
        sizes={"rows": rows, "columns": columns},
    )


def lstm_cell(batch: int, hidden: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of an LSTM cell's element-wise part: gates <batch, 4*hidden> (i, f, g, o) and c -> (h', c')."""

    def body(ops: Any, gates: Any, cell: Any) -> list[Any]:
        parts = ops.split(gates, 4, axis=1)
        i, f, g, o = ops.parts(parts, 4)
        kept = ops.multiply(ops.sigmoid(f), cell)
        written = ops.multiply(ops.sigmoid(i), ops.tanh(g))
        new_cell = ops.add(kept, written)
        return [ops.multiply(ops.sigmoid(o), ops.tanh(new_cell)), new_cell]

    return case_of(
        "lstm_cell",
        [
            (Spec("gates", (batch, 4 * hidden), dtype), draw_normal),
            (Spec("cell", (batch, hidden), dtype), draw_normal),
        ],
        [Spec("new_hidden", (batch, hidden), dtype), Spec("new_cell", (batch, hidden), dtype)],
        body,
        stock_kernels=3,
        symbolic="batch" if symbolic else None,
        sizes={"batch": batch, "hidden": hidden},
    )


def swiglu(rows: int, hidden: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of silu(a) * b, where <rows, 2*hidden> holds a and b side by side."""

    def body(ops: Any, x: Any) -> list[Any]:
        gate = ops.strided_slice(x, axes=[1], begin=[0], end=[hidden])
        value = ops.strided_slice(x, axes=[1], begin=[hidden], end=[2 * hidden])
        return [ops.multiply(ops.multiply(gate, ops.sigmoid(gate)), value)]

    return case_of(
        "swiglu",
        [(Spec("x", (rows, 2 * hidden), dtype), draw_normal)],
        [Spec("y", (rows, hidden), dtype)],
        body,
        stock_kernels=1,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "hidden": hidden},
    )


def power_broadcast_add(rows: int, columns: int, dtype: str = "float32", symbolic: bool = False) -> Case:
    """Make the case of broadcast(x ** 2.5) + y with x <rows, 1> and y <rows, columns>: pow is needed once a row."""

    def body(ops: Any, x: Any, y: Any) -> list[Any]:
        power = ops.power(x, ops.const(2.5, dtype))
        return [ops.add(ops.broadcast_to(power, ops.shape_of(y)), y)]

    return case_of(
        "power_broadcast_add",
        [(Spec("x", (rows, 1), dtype), draw_positive), (Spec("y", (rows, columns), dtype), draw_normal)],
        [Spec("z", (rows, columns), dtype)],
        body,
        stock_kernels=1,
        symbolic="rows" if symbolic else None,
        sizes={"rows": rows, "columns": columns},
    )


def encoder_layer(batch: int, sequence: int, hidden: int, heads: int, ffn: int) -> Case:
    """Make the case of an encoder layer from the PyTorch importer (needs torch), with constant weights."""

    def build() -> tvm.IRModule:
        from . import encoder  # torch is optional

        return encoder.encoder_layer(batch, sequence, hidden, heads, ffn)[0]

    x = Spec("x", (batch, sequence, hidden), "float32")
    weights = 4 * hidden * (hidden + 1) + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    return Case(
        name="encoder_layer",
        build=build,
        inputs=lambda rng: [draw_normal(rng, x.shape)],
        kernels=6,
        stock_kernels=14,
        tolerance={**DEFAULT_TOLERANCE, "float32": (1e-4, 1e-4)},
        arguments=(x,),
        results=(Spec("y", x.shape, "float32"),),
        matmuls=8,
        constant_bytes=4 * weights,
        sizes={"batch": batch, "sequence": sequence, "hidden": hidden, "heads": heads, "ffn": ffn},
    )


SCALES = ("test", "cpu", "gpu")
_EXTENTS: Mapping[Callable[..., Case], Sequence[tuple[int, ...]]] = {
    softmax: [(7, 33), (1024, 1024), (65536, 1024)],
    attention_softmax: [(2, 3, 5, 17), (4, 8, 128, 256), (16, 12, 512, 512)],
    layer_norm: [(5, 100), (1024, 1024), (65536, 1024)],
    add_layer_norm_gelu: [(6, 65), (1024, 512), (65536, 768)],
    softmax_add_layer_norm_gelu: [(9, 130), (1024, 1024), (65536, 1024)],
    group_norm_silu: [(2, 12, 4, 35), (8, 128, 32, 1024), (64, 320, 32, 4096)],
    rms_norm_quantize: [(5, 72), (2048, 1024), (32768, 4096)],
    lstm_cell: [(3, 37), (512, 768), (32768, 1024)],
    swiglu: [(5, 43), (1024, 1024), (16384, 4096)],
    power_broadcast_add: [(11, 29), (1024, 1024), (65536, 1024)],
    log_softmax: [(3, 257), (64, 30000), (4096, 30000)],
    encoder_layer: [(2, 7, 24, 3, 40), (4, 128, 384, 12, 1536), (32, 512, 768, 12, 3072)],
}
"""The extents of each workload, one for each of the ``SCALES``."""


def cases(scale: str = "test") -> list[Case]:
    """Return every workload once, at the sizes of ``scale``.

    ``"test"``: small and odd, a few thousand elements. ``"cpu"``: 4 to 16 MB of inputs and outputs.
    ``"gpu"``: hundreds of MB, well past a GPU's cache.

    Raises
    ------
    ValueError : unknown scale.
    """
    at = place_of(scale, SCALES)
    return [make(*extents[at]) for make, extents in _EXTENTS.items()]
