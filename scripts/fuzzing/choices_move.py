# SPDX-License-Identifier: Apache-2.0
"""Choices of a next step: data movement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .bounded import FLOATS
from .case import Dim
from .grower import Grower, Skip


def _ranked(g: Grower, least: int = 1) -> int:
    return g.pick(lambda v: len(g.shape(v)) >= least)


def _times(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    return f"({a})*({b})"


def reshape(g: Grower) -> None:
    """Axes merged, split, or put into another order of extents."""
    x = g.pick()
    shape = list(g.shape(x))
    kind = g.rng.choice(["merge", "merge", "split", "mix", "ones", "flatten"])
    if kind == "flatten":
        g.add("flatten", (x,))
        return
    if kind == "merge":
        if len(shape) < 2:
            raise Skip
        at = g.rng.randrange(len(shape) - 1)
        shape[at : at + 2] = [_times(shape[at], shape[at + 1])]
    elif kind == "split":
        places = [i for i, d in enumerate(shape) if isinstance(d, int) and d > 1]
        if not places or len(shape) > 5:
            raise Skip
        at = g.rng.choice(places)
        whole = int(shape[at])
        parts = [k for k in range(1, whole + 1) if whole % k == 0]
        part = g.rng.choice(parts)
        shape[at : at + 1] = [part, whole // part]
    elif kind == "mix":
        g.rng.shuffle(shape)
    else:
        shape.insert(g.rng.randint(0, len(shape)), 1)
        if len(shape) > 6:
            raise Skip
    if 0 in shape:  # to TVM 0 means the argument's extent at that position
        raise Skip
    g.add("reshape", (x,), {"shape": shape})


def axes(g: Grower) -> None:
    """permute_dims, expand_dims, squeeze, flip."""
    kind = g.rng.choice(["permute_dims", "permute_dims", "expand_dims", "squeeze", "flip"])
    x = _ranked(g)
    shape = g.shape(x)
    if kind == "permute_dims":
        order = list(range(len(shape)))
        g.rng.shuffle(order)
        g.add(kind, (x,), {"axes": order})
    elif kind == "expand_dims":
        if len(shape) > 5:
            raise Skip
        g.add(kind, (x,), {"axes": [g.rng.randint(0, len(shape))]})
    elif kind == "squeeze":
        ones = [i for i, d in enumerate(shape) if d == 1]
        if not ones:
            raise Skip
        g.add(kind, (x,), {"axes": g.rng.sample(ones, g.rng.randint(1, len(ones)))})
    else:
        g.add(kind, (x,), {"axis": g.rng.randrange(len(shape))})


def broadcast(g: Grower) -> None:
    """broadcast_to, over ones and new axes."""
    x = g.pick(lambda v: len(g.shape(v)) < 6)
    shape = [g.rng.choice(g.pool) if d == 1 and g.rng.random() < 0.7 else d for d in g.shape(x)]
    if len(shape) < 5 and g.rng.random() < 0.5:
        shape.insert(0, g.rng.choice(g.pool))
    g.add("broadcast_to", (x,), {"shape": shape})


def cut(g: Grower) -> None:
    """strided_slice, with static or symbolic bounds."""
    x = _ranked(g)
    shape = g.shape(x)
    axis = g.rng.randrange(len(shape))
    whole = shape[axis]
    if isinstance(whole, int):
        if whole < 1:
            raise Skip
        begin = g.rng.randrange(whole)
        end: Dim = g.rng.randint(begin, whole) if g.rng.random() < 0.9 else whole + 3
        step = g.rng.choice([1, 1, 1, 2, 3])
        if g.rng.random() < 0.1:
            begin, end, step = whole - 1, -whole - 1, -1
        attrs: dict[str, Any] = {"axes": [axis], "begin": [begin], "end": [end], "strides": [step]}
    else:
        begin = g.rng.choice([0, 1, 2, 3, 9])
        end = g.rng.choice([whole, whole, f"{whole} - 1", f"({whole}) // 2"])
        step = g.rng.choice([1, 1, 2])
        attrs = {"axes": [axis], "begin": [begin], "end": [end], "strides": [step], "inbound": True}
        if g.rng.random() < 0.5:
            attrs["inbound"] = False
    g.add("strided_slice", (x,), attrs)


def split(g: Grower) -> None:
    """split, and some or all of its results."""
    x = _ranked(g)
    shape = g.shape(x)
    axis = g.rng.randrange(len(shape))
    whole = shape[axis]
    sections: Any
    if isinstance(whole, int):
        even = [k for k in (2, 3, 4) if whole and whole % k == 0]
        sections = (
            g.rng.choice(even)
            if even and g.rng.random() < 0.7
            else sorted({g.rng.randint(1, max(1, whole)), max(1, whole // 2)})
        )
    else:
        sections = g.rng.choice([[1], [f"({whole}) // 2"], [2, 5]])
    parts = sections if isinstance(sections, int) else len(sections) + 1
    number = g.add("split", (x,), {"sections": sections, "axis": axis})
    if g.rng.random() < 0.15:
        return  # the whole tuple may be an output
    items = [g.add("item", (number,), {"index": i}) for i in range(parts) if g.rng.random() < 0.8]
    if g.rng.random() < 0.4:
        for item in items:
            if g.shape(item)[axis] == 1:
                g.add("squeeze", (item,), {"axes": [axis]})


def join(g: Grower) -> None:
    """concat or stack of values that fit."""
    x = _ranked(g)
    shape, dtype = g.shape(x), g.dtype_of(x)
    if g.rng.random() < 0.35 and len(shape) < 6:
        same = [v for v in range(len(g.live.values)) if g.shape(v) == shape and g.dtype_of(v) == dtype]
        args = [g.rng.choice(same) for _ in range(g.rng.choice([1, 2, 2, 3]))]
        g.add("stack", args, {"axis": g.rng.randint(0, len(shape))})
        return
    axis = g.rng.randrange(len(shape))
    fits = [
        v
        for v in range(len(g.live.values))
        if g.dtype_of(v) == dtype
        and len(g.shape(v)) == len(shape)
        and all(i == axis or a == b for i, (a, b) in enumerate(zip(shape, g.shape(v))))
    ]
    args = [x, *[g.rng.choice(fits) for _ in range(g.rng.choice([0, 1, 1, 2]))]]
    g.rng.shuffle(args)
    g.add("concat", args, {"axis": axis})


def copies(g: Grower) -> None:
    """tile, repeat, pad."""
    kind = g.rng.choice(["tile", "repeat", "pad", "pad"])
    x = _ranked(g)
    rank = len(g.shape(x))
    if kind == "tile":
        g.add("tile", (x,), {"repeats": [g.rng.choice([1, 1, 2, 3]) for _ in range(rank)]})
    elif kind == "repeat":
        g.add("repeat", (x,), {"repeats": g.rng.choice([1, 2, 3]), "axis": g.rng.randrange(rank)})
    else:
        if g.dtype_of(x) == "bool":
            raise Skip
        widths = [[g.rng.choice([0, 0, 1, 2]), g.rng.choice([0, 0, 1, 3])] for _ in range(rank)]
        value = g.rng.choice([0.0, 1.0, -2.0]) if g.dtype_of(x) in FLOATS else g.rng.choice([0, 1])
        g.add("pad", (x,), {"widths": widths, "value": value})


def gather(g: Grower) -> None:
    """take, gather_elements, gather_nd, at constant or given indices."""
    x = _ranked(g)
    shape = g.shape(x)
    kind = g.rng.choice(["take", "take", "take", "gather_elements", "gather_nd"])
    axis = g.rng.randrange(len(shape))
    whole = shape[axis]
    dtype = g.rng.choice(["int32", "int64"])
    if kind == "take":
        given = [v for v, p in enumerate(g.inputs) if p.fill == f"index:{whole}"]
        if given and g.rng.random() < 0.7:
            index = g.rng.choice(given)
        elif isinstance(whole, int) and whole:
            count = g.rng.choice([[1], [1], [3], [whole], [2, 2]])
            index = g.source(count, dtype, f"index:{whole}")
        else:
            raise Skip
        g.add("take", (x, index), {"axis": axis})
        return
    if not all(isinstance(d, int) and d > 0 for d in shape):
        raise Skip
    if kind == "gather_elements":
        target = [d if i != axis else g.rng.choice([1, 3]) for i, d in enumerate(shape)]
        g.add(kind, (x, g.source(target, "int64", f"index:{whole}")), {"axis": axis})
    else:
        depth = g.rng.randint(1, len(shape))
        least = min(int(d) for d in shape[:depth])
        g.add(kind, (x, g.source([g.rng.choice([1, 4]), depth], "int64", f"index:{least}")))


def made(g: Grower) -> None:
    """Add a constant, a filled tensor, a range, a triangle or one-hot rows."""
    kind = g.rng.choice(["const", "full", "arange", "triangle", "triangle", "one_hot"])
    if kind == "const":
        shape = list(g.shape(g.pick()))
        g.source([d if isinstance(d, int) else 1 for d in shape], g.dtype)
    elif kind == "full":
        shape = list(g.shape(g.pick()))
        value: Any = g.rng.choice([0, 1, 2])
        value = bool(value) if g.dtype == "bool" else float(value) if g.dtype in FLOATS else value
        g.add("full", (), {"shape": shape, "dtype": g.dtype, "value": value})
    elif kind == "arange":
        end = g.rng.choice(g.pool)
        dtype = g.dtype if g.dtype in ("float32", "int32", "int64") else "int64"
        g.add("arange", (), {"start": 0, "end": end, "step": g.rng.choice([1, 1, 2]), "dtype": dtype})
    elif kind == "triangle":
        x = g.pick(lambda v: len(g.shape(v)) >= 2 and g.dtype_of(v) != "bool")
        g.add(g.rng.choice(["tril", "triu"]), (x,), {"k": g.rng.choice([0, 0, 1, -1, 3])})
    else:
        x = g.pick(lambda v: g.dtype_of(v) in ("int32", "int64", "int8", "uint8") and len(g.shape(v)) < 5)
        attrs = {
            "values": g.rng.choice([[1.0, 0.0], [2.0, -1.0]]),
            "depth": g.rng.choice([3, 8]),
            "dtype": "float32",
        }
        g.add("one_hot", (x,), {**attrs, "axis": g.rng.choice([-1, 0])})


def pixels(g: Grower) -> None:
    """Channels spread over squares of pixels. TVM infers no type if their number is symbolic."""

    def factors(v: int) -> list[int]:
        channels = g.shape(v)[-3] if len(g.shape(v)) >= 3 else 1
        return [f for f in (2, 3, 4) if isinstance(channels, int) and channels % f**2 == 0]

    x = g.pick(lambda v: bool(factors(v)))
    g.add("pixel_shuffle", (x,), {"factor": g.rng.choice(factors(x))})


TABLE: dict[str, tuple[float, Callable[[Grower], None]]] = {
    "reshape": (7, reshape),
    "axes": (8, axes),
    "broadcast": (4, broadcast),
    "cut": (5, cut),
    "split": (2.5, split),
    "join": (4, join),
    "copies": (4, copies),
    "gather": (3, gather),
    "made": (4, made),
    "pixels": (2, pixels),
}
