# SPDX-License-Identifier: Apache-2.0
"""The oracle's normalizations, softmaxes, pools, convolutions and attention, of its own primitive operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bounded import Bounded, Rules, envelope, rounded
from .case import Inapplicable
from .reduction import contraction, extreme, mean, total, variance
from .scalar import binary, like, unary


def softmax(x: Bounded, axis: int, log: bool, rules: Rules) -> Bounded:
    """exp(x - max) over its sum, or the logarithm of that. A row with NaN is NaN throughout."""
    with np.errstate(all="ignore"):
        if 0 in x.shape:
            return Bounded(x.data, x.error, x.dtype)
        top = extreme("max", x, axis, True, Rules(rules.ulps, rules.flush, "propagate"))
        nan = np.any(np.isnan(x.data) & (x.error == 0), axis=axis, keepdims=True)
        # The subtracted value cancels, so its own error does not matter.
        top = Bounded(top.data, np.where(np.isinf(top.error) | np.isinf(top.data), np.inf, 0.0), x.dtype)
        shifted = binary("subtract", x, top, rules)
        powers = unary("exp", shifted, rules, {})
        summed = total(powers, axis, True, rules)
        if log:
            result = binary("subtract", shifted, unary("log", summed, rules, {}), rules)
        else:
            result = binary("divide", powers, summed, rules)
        everywhere = nan & np.ones(x.shape, bool)
        data = np.where(everywhere, np.nan, result.data)
        return Bounded(data, np.where(everywhere, 0.0, result.error), x.dtype)


def scaled(x: Bounded, scale: Bounded | None, shift: Bounded | None, rules: Rules) -> Bounded:
    """x * scale + shift. If the product alone is too large, one rounding of both may not be."""
    if scale is None:
        return x if shift is None else binary("add", x, shift, rules)
    product = binary("multiply", x, scale, rules)
    if shift is None:
        return product
    too_large = np.isinf(product.data) & np.isfinite(x.data) & np.isfinite(scale.data)
    total = binary("add", product, shift, rules)
    return Bounded(total.data, np.where(too_large, np.inf, total.error), total.dtype, total.signed_zero)


def _deviation(x: Bounded, axes: Sequence[int], epsilon: float, rules: Rules) -> Bounded:
    spread = variance(x, axes, True, rules)
    root = unary("rsqrt", binary("add", spread, like(x, epsilon), rules), rules, {})
    return binary("multiply", binary("subtract", x, mean(x, axes, True, rules), rules), root, rules)


def layer_norm(
    x: Bounded, scale: Bounded, shift: Bounded, axes: Sequence[int], epsilon: float, rules: Rules
) -> Bounded:
    """(x - mean) / sqrt(variance + epsilon), scaled along the axes."""
    with np.errstate(all="ignore"):
        return scaled(_deviation(x, axes, epsilon, rules), scale, shift, rules)


def rms_norm(x: Bounded, weight: Bounded, axes: Sequence[int], epsilon: float, rules: Rules) -> Bounded:
    """x / sqrt(mean(x * x) + epsilon) * weight."""
    with np.errstate(all="ignore"):
        square = mean(unary("square", x, rules, {}), axes, True, rules)
        root = unary("rsqrt", binary("add", square, like(x, epsilon), rules), rules, {})
        return binary("multiply", binary("multiply", x, root, rules), weight, rules)


def _channel(v: Bounded, rank: int, axis: int) -> Bounded:
    shape = [1] * rank
    shape[axis] = -1
    return v.moved(lambda a: a.reshape(shape) if a.size else a.reshape([0 if e == -1 else e for e in shape]))


def group_norm(
    x: Bounded, scale: Bounded, shift: Bounded, groups: int, axes: Sequence[int], epsilon: float, rules: Rules
) -> Bounded:
    """Layer norm of groups of the channels of axis 1 with the other axes."""
    shape = x.shape
    grouped = (shape[0], groups, shape[1] // groups, *shape[2:])
    parted = x.moved(lambda a: a.reshape(grouped))
    over = [2, *[a + 1 for a in axes]]
    with np.errstate(all="ignore"):
        normal = _deviation(parted, over, epsilon, rules).moved(lambda a: a.reshape(shape))
        return scaled(normal, _channel(scale, len(shape), 1), _channel(shift, len(shape), 1), rules)


def instance_norm(
    x: Bounded, scale: Bounded, shift: Bounded, axes: Sequence[int], epsilon: float, rules: Rules
) -> Bounded:
    """Layer norm over the axes, scaled by channel."""
    with np.errstate(all="ignore"):
        rank = len(x.shape)
        normal = _deviation(x, axes, epsilon, rules)
        return scaled(normal, _channel(scale, rank, 1), _channel(shift, rank, 1), rules)


def batch_norm(
    x: Bounded, scale: Bounded, shift: Bounded, center: Bounded, spread: Bounded, epsilon: float, rules: Rules
) -> Bounded:
    """Inference: normalized by given means and variances of the channels of axis 1.

    Of constants, it may be one multiplication and one addition: the errors cover that as well.
    """
    with np.errstate(all="ignore"):
        scale, shift, center, spread = (_channel(v, len(x.shape), 1) for v in (scale, shift, center, spread))
        root = unary("sqrt", binary("add", spread, like(x, epsilon), rules), rules, {})
        normal = binary("divide", binary("subtract", x, center, rules), root, rules)
        result = scaled(normal, scale, shift, rules)
        factor = binary("divide", scale, root, rules)
        offset = binary("subtract", shift, binary("multiply", center, factor, rules), rules)
        folded = scaled(x, factor, offset, rules)
        apart = envelope(result.data, [folded.data], ~result.unknown & ~folded.unknown)
        error = np.maximum(result.error, apart + folded.error)
        return Bounded(result.data, error, result.dtype, result.signed_zero)


def _windows(x: Bounded, window: Sequence[int], strides: Sequence[int]) -> Bounded:
    """Return the last two axes as windows: (..., rows, columns, height, width)."""
    if any(e < w for e, w in zip(x.shape[-2:], window)):
        raise Inapplicable("a window larger than the image")

    def cut(a: np.ndarray) -> np.ndarray:
        view = np.lib.stride_tricks.sliding_window_view(a, tuple(window), axis=(-2, -1))
        return view[..., :: strides[0], :: strides[1], :, :]

    return x.moved(cut)


def padded(x: Bounded, widths: Sequence[tuple[int, int]], value: float) -> Bounded:
    """Put a constant around the tensor."""
    data = np.pad(x.data, widths, constant_values=value)
    return Bounded(data, np.pad(x.error, widths), x.dtype, x.signed_zero)


def pool(
    name: str,
    x: Bounded,
    window: Sequence[int],
    strides: Sequence[int],
    padding: int,
    count_all: bool,
    rules: Rules,
) -> Bounded:
    """max_pool2d or avg_pool2d over the last two axes of NCHW."""
    widths = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    if name == "max_pool2d":
        parts = _windows(padded(x, widths, -np.inf), window, strides)
        return extreme("max", parts, (-2, -1), False, rules)
    summed = total(_windows(padded(x, widths, 0.0), window, strides), (-2, -1), False, rules)
    if count_all or not padding:
        count: np.ndarray = np.array(float(window[0] * window[1]))
    else:
        ones = Bounded(np.ones(x.shape), np.zeros(x.shape), x.dtype)
        count = _windows(padded(ones, widths, 0.0), window, strides).data.sum((-2, -1))
    with np.errstate(all="ignore"):
        return rounded(summed.data / count, summed.error / count, x.dtype, rules, 3)


def conv2d(
    x: Bounded, weight: Bounded, strides: Sequence[int], padding: int, groups: int, rules: Rules
) -> Bounded:
    """NCHW by OIHW."""
    widths = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    out, each, height, width = weight.shape
    parts = _windows(padded(x, widths, 0.0), (height, width), strides)
    batch, _, rows, columns = parts.shape[:4]
    split = parts.moved(lambda a: a.reshape(batch, groups, each, rows, columns, height, width))
    kernel = weight.moved(lambda a: a.reshape(groups, out // groups, each, height, width))
    result = contraction(split, kernel, "bgirchw,goihw->bgorc", each * height * width, rules)
    return result.moved(lambda a: a.reshape(batch, out, rows, columns))


def conv_transpose(
    x: Bounded,
    weight: Bounded,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    rules: Rules,
) -> Bounded:
    """NC... by IO...: every element of the data, times the window, is added to the result from its place on."""
    batch, channels, *places = x.shape
    _, each, *window = weight.shape
    reach = [(k - 1) * d for k, d in zip(window, dilation)]
    lengths = [
        (n - 1) * s + 1 + r - 2 * p + more
        for n, s, r, p, more in zip(places, strides, reach, padding, output_padding)
    ]
    if min([*places, *lengths]) < 1:
        raise Inapplicable("an image without elements")

    def spread(a: np.ndarray) -> np.ndarray:
        wide = np.zeros((batch, channels, *((n + 2 * r) for n, r in zip(lengths, reach))))
        # Element i is at i * stride, seen from the result's position -padding. There are r more before it.
        for index in np.ndindex(*places):
            at = tuple(i * s - p + r for i, s, p, r in zip(index, strides, padding, reach))
            if all(0 <= o < e for o, e in zip(at, wide.shape[2:])):
                wide[(slice(None), slice(None), *at)] = a[(slice(None), slice(None), *index)]
        return wide

    spans = tuple(r + 1 for r in reach)
    axes = tuple(range(2, 2 + len(window)))
    steps = tuple(slice(None, None, d) for d in dilation)

    def cut(a: np.ndarray) -> np.ndarray:
        view = np.lib.stride_tricks.sliding_window_view(spread(a), spans, axis=axes)
        kept = (slice(None), slice(None), *(slice(0, n) for n in lengths))
        return view[(*kept, *steps)].reshape(
            batch, groups, channels // groups, *lengths, int(np.prod(window, dtype=int))
        )

    def turned(a: np.ndarray) -> np.ndarray:
        return np.flip(a, tuple(range(2, 2 + len(window)))).reshape(groups, channels // groups, each, -1)

    spatial = "xyz"[: len(window)]
    result = contraction(
        x.moved(cut),
        weight.moved(turned),
        f"bgi{spatial}k,giok->bgo{spatial}",
        channels // groups * int(np.prod(window, dtype=int)),
        rules,
    )
    return result.moved(lambda a: a.reshape(batch, groups * each, *lengths))


def attention(
    q: Bounded,
    k: Bounded,
    v: Bounded,
    bias: Bounded | None,
    scale: float | None,
    causal: str | None,
    rules: Rules,
) -> Bounded:
    """Attention of <batch, row, head, element>. The result of a query that sees no key is not judged."""
    queries, size, keys = q.shape[1], q.shape[3], k.shape[1]
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise Inapplicable("attention without elements")
    scores = contraction(q, k, "blhd,bshd->bhls", size, rules)
    with np.errstate(all="ignore"):
        scores = binary("multiply", scores, like(scores, size**-0.5 if scale is None else scale), rules)
        if bias is not None:
            scores = binary("add", scores, bias, rules)
        seen = np.ones((queries, keys), bool)
        if causal is not None:
            seen = np.tril(seen, keys - queries if causal == "BottomRight" else 0)
        hidden = Bounded(
            np.where(seen, scores.data, -np.inf), np.where(seen, scores.error, 0.0), scores.dtype
        )
        weights = softmax(hidden, -1, False, rules)
        result = contraction(weights, v, "bhls,bshd->blhd", keys, rules)
    blind = np.asarray(~seen.any(-1)).reshape((1, -1, 1, 1))
    return Bounded(result.data, np.where(blind, np.inf, result.error), result.dtype)
