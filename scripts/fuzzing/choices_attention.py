# SPDX-License-Identifier: Apache-2.0
"""Choices of a next step: attention, written out or as one operator."""

from __future__ import annotations

from collections.abc import Callable

from .case import Dim
from .choices import condition, floating
from .grower import Grower, Skip

LENGTHS = [1, 2, 5, 7, 8, 16, 17, 33]
"""Numbers of keys that differ from the queries'."""


def written_out(g: Grower) -> None:
    """Add matmul, scale, mask, softmax, matmul, of heads that were one axis with the elements, or an axis already."""
    x = g.pick(lambda v: floating(g)(v) and len(g.shape(v)) in (2, 3, 4))
    q = _heads(g, x)
    k, v = _keys(g, q), _keys(g, q)
    if g.shape(k)[-2] != g.shape(v)[-2]:
        v = k
    dtype, rng = g.dtype_of(q), g.rng
    if rng.random() < 0.3:
        q = g.add("multiply", (q,), {"scalar": rng.choice([0.125, 0.3])})
    scores = g.add("matmul", (q, _swapped(g, k)))
    if rng.random() < 0.7:
        kind = rng.choice(["multiply", "divide"])
        scores = g.add(kind, (scores,), {"scalar": rng.choice([0.125, 0.35, 8.0, -0.5])})
    scores = _masked(g, scores)
    if g.shape(scores)[-1] != g.shape(v)[-2]:  # a mask has widened a single key's scores
        raise Skip
    weights = g.add("softmax", (scores,), {"axis": -1})
    if rng.random() < 0.15 and dtype != "float32":
        weights = g.add("cast", (g.add("cast", (weights,), {"dtype": "float32"}),), {"dtype": dtype})
    out = g.add("matmul", (weights, v))
    shape = g.shape(out)
    if len(shape) == 4 and rng.random() < 0.7:
        out = g.add("permute_dims", (out,), {"axes": [0, 2, 1, 3]})
        if isinstance(shape[1], int) and isinstance(shape[3], int):
            g.add("reshape", (out,), {"shape": [shape[0], shape[2], shape[1] * shape[3]]})


def _heads(g: Grower, x: int) -> int:
    """Return queries <..., rows, elements>. The last axis may be heads and elements first."""
    shape = g.shape(x)
    if len(shape) == 3 and isinstance(shape[2], int) and g.rng.random() < 0.6:
        counts = [h for h in (1, 2, 3, 4, 8) if shape[2] % h == 0]
        heads = g.rng.choice(counts)
        parted = g.add("reshape", (x,), {"shape": [*shape[:2], heads, shape[2] // heads]})
        return g.add("permute_dims", (parted,), {"axes": [0, 2, 1, 3]})
    if len(shape) == 4 and g.rng.random() < 0.4:
        return g.add("permute_dims", (x,), {"axes": [0, 2, 1, 3]})
    return x


def _keys(g: Grower, q: int) -> int:
    """Keys or values: the queries themselves, another value, or constants, with heads of their own or one for all."""
    shape, rng = g.shape(q), g.rng
    kind = rng.random()
    if kind < 0.4:
        return q
    if kind < 0.6:
        fits = [
            v
            for v in range(len(g.live.values))
            if g.dtype_of(v) == g.dtype_of(q)
            and len(g.shape(v)) == len(shape)
            and g.shape(v)[:-2] == shape[:-2]
            and g.shape(v)[-1] == shape[-1]
        ]
        return rng.choice(fits)
    leading: list[Dim] = [d if isinstance(d, int) and rng.random() < 0.6 else 1 for d in shape[:-2]]
    sizes = [*leading, rng.choice(LENGTHS), shape[-1]]
    return g.source(sizes[rng.choice([0, 0, len(leading)]) :], g.dtype_of(q), "normal")


def _swapped(g: Grower, k: int) -> int:
    """Exchange the keys' last two axes."""
    rank = len(g.shape(k))
    return g.add("permute_dims", (k,), {"axes": [*range(rank - 2), rank - 1, rank - 2]})


def _masked(g: Grower, scores: int) -> int:
    """Scores with an additive, a boolean or a causal mask, or as they are."""
    rng, dtype, shape = g.rng, g.dtype_of(scores), g.shape(scores)
    kind = rng.choice(["none", "additive", "boolean", "fill", "causal"])
    low = rng.choice([-1e4, -30.0])
    if kind == "additive":
        of: list[Dim] = [d if isinstance(d, int) and rng.random() < 0.5 else 1 for d in shape]
        return g.add("add", (scores, g.source(of, dtype, "normal")))
    if kind == "boolean":
        other = g.add("full", (), {"shape": [1] * len(shape), "value": low, "dtype": dtype})
        return g.add("where", (condition(g, shape), scores, other))
    if kind == "fill":
        return g.add("masked_fill", (scores, condition(g, shape)), {"value": low})
    if kind == "causal":
        ones = g.add("full", (), {"shape": shape[-2:], "value": 1.0, "dtype": dtype})
        seen = g.add("greater", (g.add("tril", (ones,), {"k": rng.choice([0, 0, 1, 3])}),), {"scalar": 0.5})
        other = g.add("full", (), {"shape": [1, 1], "value": low, "dtype": dtype})
        return g.add("where", (seen, scores, other))
    return scores


def operator(g: Grower) -> None:
    """attention or attention_bias, of <batch, row, head, element>."""
    rng = g.rng
    q = g.pick(lambda v: floating(g)(v) and len(g.shape(v)) in (3, 4) and g.dtype_of(v) != "float64")
    shape, dtype = g.shape(q), g.dtype_of(q)
    if len(shape) == 3:
        size = shape[2]
        if not isinstance(size, int):
            raise Skip
        heads = rng.choice([h for h in (1, 2, 3, 4) if size % h == 0])
        q = g.add("reshape", (q,), {"shape": [*shape[:2], heads, size // heads]})
        shape = g.shape(q)
    if not isinstance(shape[3], int):
        raise Skip
    k = v = q
    if rng.random() < 0.5:
        k = g.source([shape[0], rng.choice(LENGTHS), *shape[2:]], dtype, "normal")
        v = k if rng.random() < 0.3 else g.source(g.shape(k), dtype, "normal")
    args = [q, k, v]
    keys = g.shape(k)[1]
    scores: list[Dim] = [shape[0], shape[2], shape[1], keys]
    if rng.random() < 0.4 and all(isinstance(d, int) for d in scores):
        args.append(
            g.source([d if rng.random() < 0.5 else 1 for d in scores[:2]] + scores[2:], dtype, "normal")
        )
    causal = rng.choice([None, None, "TopLeft", "BottomRight"])
    if causal == "BottomRight" and keys != shape[1]:
        if not (isinstance(keys, int) and isinstance(shape[1], int) and keys > shape[1]):
            causal = "TopLeft"  # TVM places the diagonal elsewhere there
    g.add("attention", tuple(args), {"scale": rng.choice([None, 0.25]), "causal": causal})


TABLE: dict[str, tuple[float, Callable[[Grower], None]]] = {
    "attention_written_out": (3, written_out),
    "attention_operator": (3, operator),
}
