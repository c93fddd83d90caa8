# SPDX-License-Identifier: Apache-2.0
"""Choices of a next step: normalizations, softmaxes, pools and contractions."""

from __future__ import annotations

from collections.abc import Callable

from .bounded import FLOATS, HALVES
from .case import Dim
from .choices import floating
from .grower import Grower, Skip


def softmax(g: Grower) -> None:
    """softmax or log_softmax along any axis."""
    x = g.pick(lambda v: floating(g)(v) and len(g.shape(v)) > 0)
    rank = len(g.shape(x))
    axis = -1 if g.rng.random() < 0.6 else g.rng.randrange(rank)
    g.add(g.rng.choice(["softmax", "softmax", "log_softmax"]), (x,), {"axis": axis})


def norm(g: Grower) -> None:
    """layer_norm, rms_norm, group_norm, instance_norm, batch_norm."""
    kind = g.rng.choice(
        ["layer_norm", "layer_norm", "rms_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"]
    )
    least = 1 if kind in ("layer_norm", "rms_norm") else 3
    x = g.pick(lambda v: floating(g)(v) and len(g.shape(v)) >= least)
    shape, dtype = g.shape(x), g.dtype_of(x)
    if kind == "layer_norm" and dtype not in ("float32", "float16"):
        raise Skip
    if kind == "batch_norm" and dtype in HALVES:
        raise Skip
    if kind == "rms_norm" and dtype == "float64":
        raise Skip  # TVM computes it in float32
    attrs: dict[str, object] = {"epsilon": g.rng.choice([1e-5, 1e-3])}
    if least == 1:
        count = g.rng.choice([1, 1, min(2, len(shape))])
        weights = [g.source(shape[-count:], dtype) for _ in range(2 if kind == "layer_norm" else 1)]
        g.add(kind, (x, *weights), {**attrs, "axes": list(range(-count, 0))})
        return
    if not isinstance(shape[1], int):
        raise Skip
    weights = [g.source([shape[1]], dtype, "positive") for _ in range(4 if kind == "batch_norm" else 2)]
    if kind == "group_norm":
        attrs["groups"] = g.rng.choice([k for k in range(1, shape[1] + 1) if shape[1] % k == 0] or [1])
    if kind != "batch_norm":
        attrs["axes"] = list(range(2, len(shape)))
    g.add(kind, (x, *weights), attrs)


def matmul(g: Grower) -> None:
    """matmul with a fitting value or a constant, either of them perhaps transposed before."""
    x = g.pick(lambda v: len(g.shape(v)) >= 1 and g.dtype_of(v) in (*FLOATS, "int32"))
    if len(g.shape(x)) >= 2 and g.rng.random() < 0.25:
        x = _transposed(g, x)
    shape, dtype = g.shape(x), g.dtype_of(x)
    inner = shape[-1]
    fits = [
        v
        for v in range(len(g.live.values))
        if g.dtype_of(v) == dtype
        and len(g.shape(v)) >= 2
        and g.shape(v)[-2] == inner
        and len(g.shape(v)) <= len(shape)
    ]
    if fits and g.rng.random() < 0.5:
        g.add("matmul", (x, g.rng.choice(fits)))
        return
    sizes = [inner, g.rng.choice([1, 4, 8, 17])]
    values = "normal" if dtype in FLOATS else "small"
    if g.rng.random() < 0.35:
        y = _transposed(g, g.source(sizes[::-1], dtype, values))
    else:
        y = g.source(sizes, dtype, values)
    z = g.add("matmul", (x, y))
    if g.rng.random() < 0.6 and dtype in FLOATS:
        g.add(g.rng.choice(["relu", "sigmoid", "gelu", "tanh", "exp"]), (z,))


def _transposed(g: Grower, x: int) -> int:
    rank = len(g.shape(x))
    return g.add("permute_dims", (x,), {"axes": [*range(rank - 2), rank - 1, rank - 2]})


def image(g: Grower) -> int:
    """Return a value of four axes, perhaps reshaped into it."""

    def fits(v: int) -> bool:
        return floating(g)(v) and len(g.shape(v)) in (3, 4)

    x = g.pick(fits)
    return x if len(g.shape(x)) == 4 else g.add("expand_dims", (x,), {"axes": [0]})


def _room(shape: list[Dim], window: list[int], padding: int) -> None:
    for whole, size in zip(shape[2:], window):
        if isinstance(whole, int) and whole + 2 * padding < size:
            raise Skip


def pool(g: Grower) -> None:
    """max_pool2d or avg_pool2d."""
    x = image(g)
    window = g.rng.choice([[2, 2], [3, 3], [1, 2], [16, 1], [2, 1], [1, 1], [4, 1]])
    padding = g.rng.choice([0, 0, 1]) if min(window) > 1 else 0
    _room(g.shape(x), window, padding)
    strides = window if g.rng.random() < 0.6 else [g.rng.choice([1, 2]), g.rng.choice([1, 2])]
    attrs = {"window": window, "strides": strides, "padding": padding}
    if g.rng.random() < 0.5:
        g.add("max_pool2d", (x,), attrs)
    else:
        g.add("avg_pool2d", (x,), {**attrs, "count_all": g.rng.random() < 0.5})


def convolution(g: Grower) -> None:
    """conv2d with a constant kernel, and operators that often follow."""
    x = image(g)
    channels, dtype = g.shape(x)[1], g.dtype_of(x)
    if not isinstance(channels, int) or not 1 <= channels <= 33:
        raise Skip
    window = g.rng.choice([[1, 1], [3, 3], [2, 1]])
    padding = g.rng.choice([0, 1]) if window == [3, 3] else 0
    _room(g.shape(x), window, padding)
    groups = channels if g.rng.random() < 0.2 else 1
    out = channels if groups > 1 else g.rng.choice([1, 4, 8])
    weight = g.source([out, channels // groups, *window], dtype, "normal")
    strides = g.rng.choice([[1, 1], [2, 2]])
    y = g.add("conv2d", (x, weight), {"strides": strides, "padding": padding, "groups": groups})
    if g.rng.random() < 0.5:
        bias = g.source([1, out, 1, 1], dtype, "normal")
        y = g.add("add", (y, bias))
    if g.rng.random() < 0.5:
        g.add("relu", (y,))


def transposed_convolution(g: Grower) -> None:
    """conv1d_transpose to conv3d_transpose with a constant kernel, and operators that often follow."""
    x = g.pick(lambda v: floating(g)(v) and len(g.shape(v)) in (3, 4, 5))
    shape, dtype, rng = g.shape(x), g.dtype_of(x), g.rng
    channels, spatial = shape[1], len(shape) - 2
    if not isinstance(channels, int) or not 1 <= channels <= 33:
        raise Skip
    window = [rng.choice([1, 2, 3, 3, 4]) for _ in range(spatial)]
    strides = [rng.choice([1, 2, 2, 3]) for _ in range(spatial)]
    dilation = [rng.choice([1, 1, 1, 2]) for _ in range(spatial)]
    groups = rng.choice([1, 1, 1, channels, *(k for k in range(1, channels) if channels % k == 0)])
    each = rng.choice([1, 1, 2]) if groups == channels else rng.choice([1, 4, 7, 8])
    if channels * each * groups > 1024:
        raise Skip
    weight = g.source([channels, each, *window], dtype, "normal")
    attrs = {
        "strides": strides,
        "padding": [rng.randint(0, min(2, (k - 1) * d)) for k, d in zip(window, dilation)],
        "output_padding": [rng.randrange(s) for s in strides],
        "dilation": dilation,
        "groups": groups,
    }
    y = g.add("conv_transpose", (x, weight), attrs)
    if rng.random() < 0.5:
        y = g.add("add", (y, g.source([1, each * groups, *[1] * spatial], dtype, "normal")))
    if rng.random() < 0.5:
        g.add(rng.choice(["relu", "tanh", "gelu"]), (y,))


TABLE: dict[str, tuple[float, Callable[[Grower], None]]] = {
    "softmax": (5, softmax),
    "norm": (5, norm),
    "matmul": (3, matmul),
    "pool": (2, pool),
    "convolution": (2, convolution),
    "transposed_convolution": (4, transposed_convolution),
}
