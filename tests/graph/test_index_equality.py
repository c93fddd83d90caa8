# SPDX-License-Identifier: Apache-2.0
"""Indices that the prover calls equal are equal at large and at small sizes. It proves reshapes, and no near misses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.helpers import symbol
from tvm_stitch import compat
from tvm_stitch.compat import Expr, Var, tir
from tvm_stitch.graph.extent import Extent, as_expr, flatten, unflatten
from tvm_stitch.graph.index_equality import equal_indices

fd, fm = tir.floordiv, tir.floormod
N, M, K = symbol("n"), symbol("m"), symbol("k")
Shape = Sequence[Extent]
Axes = list[tuple[Var, Extent]]


def axes_of(shape: Shape) -> Axes:
    return [(tir.Var(f"v{i}", "int64"), e) for i, e in enumerate(shape)]


def flat_of(axes: Axes) -> Expr:
    return flatten([v for v, _ in axes], [e for _, e in axes])


def with_modulo(flat: Expr, shape: Shape) -> list[Expr]:
    """Return the point of a flat index as TVM's operators write it: the outermost index has a modulo, too."""
    indices = []
    for extent in reversed(shape):
        indices.append(fm(flat, as_expr(extent)))
        flat = fd(flat, as_expr(extent))
    return indices[::-1]


def simplified(indices: list[Expr], axes: Axes) -> list[Expr]:
    analyzer = compat.Analyzer()
    for v, e in axes:
        compat.bind_range(analyzer, v, as_expr(e))
    return [analyzer.simplify(i) for i in indices]


def proves(shape: Shape, index: Callable[..., list[Any]], source: Shape) -> bool:
    """Return whether reading a tensor of shape ``source`` at ``index(*axes)`` is the identity on the flat index."""
    axes = axes_of(shape)
    indices = [as_expr(i) for i in index(*(v for v, _ in axes))]
    return equal_indices(flatten(indices, source), flat_of(axes), axes, source)


RESHAPES: list[tuple[Shape, Shape]] = [
    ((N, M, 768), (N * M, 768)),  # batch and sequence of a transformer
    ((N, M, 12, 64), (N * M, 768)),  # heads
    ((N * 12, M, 64), (N, 12, M, 64)),
    ((N, 12, M, K), (N * 12, M * K)),
    ((N, 32, M, K), (N, 8, 4 * M * K)),  # group norm
    ((N, 8, 4, M * K), (N, 32, M, K)),
    ((N, fd(M, 7), 7, fd(K, 7), 7, 96), (N, fd(M, 7) * 7, fd(K, 7) * 7, 96)),
    ((N, fd(N, 16) + 1, K), (N * (fd(N, 16) + 1), K)),
    ((N, fd(N, 16) + 1, K), (N, (fd(N, 16) + 1) * K)),
    ((N, fd(M, 16), 7), (N * fd(M, 16) * 7,)),
    ((N, N - 9, M), (N * (N - 9) * M,)),
    ((N * (N - 9), M), (N, (N - 9) * M)),
    ((N + 1, M + 2, K - 3), ((N + 1) * (M + 2) * (K - 3),)),
    ((fd(N, 2), 2, M), (fd(N, 2) * 2, M)),
    ((fd(N + 15, 16), 16, K), (fd(N + 15, 16) * 16, K)),
    ((N - fd(N, 16) * 16, M), ((N - fd(N, 16) * 16) * M,)),
    ((N, N), (N * N,)),
    ((N, M, K), (K, M, N)),
    ((N * 4, 6), (N * 3, 8)),
    ((N, fd(M, N)), (N * fd(M, N),)),
    ((tir.min(N, M), K), (tir.min(M, N) * K,)),
]  # fmt: skip


@pytest.mark.parametrize("turned", [False, True], ids=["one-way", "other-way"])
@pytest.mark.parametrize("pair", RESHAPES, ids=str)
def test_reshapes_are_proved(pair: tuple[Shape, Shape], turned: bool) -> None:
    source, target = pair[::-1] if turned else pair
    axes = axes_of(target)
    flat = flat_of(axes)
    for indices in (unflatten(flat, source), with_modulo(flat, source)):
        assert equal_indices(flatten(indices, source), flat, axes, source)
        assert equal_indices(flatten(simplified(indices, axes), source), flat, axes, source)


DERIVED: dict[str, Extent] = {
    "n": N, "n//16": fd(N, 16), "n//16+1": fd(N, 16) + 1, "n-9": N - 9, "n//2": fd(N, 2), "n*m": N * M, "n+1": N + 1,
    "n//2*3": fd(N, 2) * 3, "min": tir.min(N, M), "7": 7,
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_near_misses_are_refused(name: str) -> None:
    e = DERIVED[name]
    last = as_expr(e) - 1
    assert proves((e, K), lambda i, j: [i, j], (e, K))
    assert not proves((e, K), lambda i, j: [last - i, j], (e, K)), "a flip"
    assert not proves((K, e), lambda i, j: [i, last - j], (K, e)), "a flip"
    assert not proves((e, K), lambda i, j: [fm(i + 1, as_expr(e)), j], (e, K)), "a roll"
    assert not proves((e, K), lambda i, j: [i + 1, j], (e, K)), "a shift"
    assert not proves((e, K), lambda i, j: [i - 1, j], (e, K)), "a shift"
    assert not proves((e, e), lambda i, j: [j, i], (e, e)), "a transposition of equal extents"
    assert not proves((e, K), lambda i, j: [j, i], (K, e)), "a transposition"
    assert not proves((e, K), lambda i, j: [i, 0], (e, K)), "one column"
    assert not proves((e, 4), lambda i, j: [fd(i, 2), j], (e, 4)), "repeated rows"
    assert not proves((e, 4), lambda i, j: [i, fm(j, 2)], (e, 4)), "repeated columns"
    assert proves((e, 4), lambda i, j: [last - (last - i), j], (e, 4)), "two flips"


def test_digits_that_reach_their_radix() -> None:
    """A quotient is 0, or a factor is divided out, only where what is left is less than it, at every point."""
    (i, j), zero = (tir.Var("i", "int64"), tir.Var("j", "int64")), compat.const(0, "int64")
    assert equal_indices(fd(i, N), zero, [(i, N)])
    assert not equal_indices(fd(i, N), zero, [(i, N + 1), (j, N)])
    assert not equal_indices(fd(i - 3, 8), zero, [(i, 8)])
    assert not equal_indices(fd(i - j, N), zero, [(i, N), (j, N)])
    assert equal_indices(fd(i * 4 + j, 8), fd(i, 2), [(i, N), (j, 4)])
    assert not equal_indices(fd(i * 4 + j, 8), fd(i, 2), [(i, N), (j, 8)])
    assert not equal_indices(fd(i * 4 + j, 8), fd(i, 2), [(i, N), (j, M)])


def test_rolls_and_flips_in_disguise() -> None:
    """Digits of another radix, of another length, or of a number that is too large."""
    h = fd(N, 16) + 1
    assert not proves((N * h,), lambda i: [fd(i, N), fm(i, N)], (N, h))
    assert not proves((N * M,), lambda i: [fd(i, N), fm(i, N)], (N, M))
    assert proves((N * M,), lambda i: [fd(i, M), fm(i, M)], (N, M))
    assert not proves((N * M,), lambda i: [fd(i + 1, M), fm(i + 1, M)], (N, M))
    assert not proves((N, 16), lambda i, j: [fm(i * 16 + j, N), fd(i * 16 + j, N)], (N, 16))
    assert not proves((N,), lambda i: [fm(i, N - 1)], (N,))
    assert not proves((N - 9,), lambda i: [fm(i, N - 10)], (N - 9,))
    assert not proves((fd(N, 2) * 2,), lambda i: [fm(i, fd(N, 2))], (fd(N, 2) * 2,))


def test_two_symbols_of_one_name_differ() -> None:
    n, other = symbol("n"), symbol("n")
    assert proves((n * other,), lambda i: [fd(i, other), fm(i, other)], (n, other))
    assert not proves((n * other,), lambda i: [fd(i, n), fm(i, n)], (n, other))
    i = tir.Var("i", "int64")
    assert not equal_indices(i * n, i * other, [(i, 4)])
    assert not equal_indices(i + n, i + other, [(i, 4)])


def test_symbols_may_be_negative() -> None:
    """An offset that is no extent is not positive: ``x // n`` is 0 for a positive ``n`` only."""
    i = tir.Var("i", "int64")
    zero = compat.const(0, "int64")
    assert not equal_indices(fd(i, N + 8), zero, [(i, 8)])
    assert equal_indices(fd(i, N + 8), zero, [(i, 8)], [N])
    assert not equal_indices(fd(i * N, N), i, [(i, 8)])
    assert equal_indices(fd(i * N, N), i, [(i, 8)], [N])
    assert equal_indices(fd(i, N * M), zero, [(i, N * M)])
    # Both may be negative where only the product is known.
    assert not equal_indices(fd(i, N * N * M), zero, [(i, N * M)])
    assert equal_indices(fd(i, N * N * M), zero, [(i, N * M)], [N])


@pytest.mark.parametrize(
    "make",
    [
        lambda i: compat.tir.Select(i < 4, i, i),
        lambda i: compat.load(compat.tir.decl_buffer((8,), "int64"), [i]),
        lambda i: compat.tir.Cast("int64", compat.tir.Cast("int32", i)),
        lambda i: compat.tir.truncdiv(i, 2) * 2 + compat.tir.truncmod(i, 2),
    ],
)
def test_other_operations_are_refused(make: Callable[[Expr], Expr]) -> None:
    i = tir.Var("i", "int64")
    assert not equal_indices(make(i), i, [(i, N)])


def test_wider_integers_are_the_same_number() -> None:
    i = tir.Var("i", "int32")
    j = tir.Cast("int64", i)
    assert equal_indices(fd(j, 4) * 4 + fm(j, 4), j, [(i, 8)])


def test_an_empty_space_proves_anything() -> None:
    i, j = tir.Var("i", "int64"), tir.Var("j", "int64")
    assert equal_indices(fm(i, N), i, [(i, N)]) and equal_indices(i + j * 0, i, [(i, 0), (j, N)])


def test_time_grows_with_the_expression_only() -> None:
    """Deep chains and products of many symbols end soon, proved or not."""
    symbols = [symbol(f"s{i}") for i in range(7)]
    start = time.perf_counter()
    shape: list[Extent] = [s + 1 for s in symbols]
    axes = axes_of(shape)
    flat = flat_of(axes)
    merged = [*shape[:5], shape[5] * shape[6]]
    assert equal_indices(flatten(unflatten(flat, merged), merged), flat, axes)
    deep = flat
    for s in [*symbols, *symbols]:
        deep = fd(deep, s) * s + fm(deep, s + 1)
    equal_indices(deep, flat, axes, symbols)
    assert time.perf_counter() - start < 5


# -- random chains
POOL: list[Extent] = [2, 3, 8, N, M, K, fd(N, 16), fd(N, 16) + 1, N - 9, M + 1, fd(M, 2), fd(K, 7) * 2]
LARGE = [
    (997, 1013, 499),
    (1024, 768, 384),
    (1007, 641, 350),
    (512 + 9, 1031, 777),
    (16 * 61 + 15, 900, 7 * 91 + 6),
]
SMALL = [(16, 16, 16), (17, 2, 7), (10, 1, 7), (25, 9, 8), (32, 3, 14)]


def chain(rng: random.Random, moves: Sequence[str]) -> tuple[Axes, Expr, list[Extent]]:
    """Index maps one after the other: axes, the flat index read in the end, and the shape that it is in."""
    shape: list[Extent] = [rng.choice(POOL) for _ in range(rng.randint(1, 4))]
    axes = axes_of(shape)
    parts = [[e] for e in shape]  # what each dimension was merged of
    indices: list[Expr] = [v for v, _ in axes]
    for _ in range(rng.randint(1, 4)):
        move = rng.choice(moves)
        d = rng.randrange(len(parts))
        extents = [_whole(p) for p in parts]
        last = as_expr(extents[d]) - 1
        if move == "reshape":
            flat = flatten(indices, extents)
            pieces = [e for p in parts for e in p]
            parts = _cut(rng, pieces)
            new = [_whole(p) for p in parts]
            indices = rng.choice([unflatten, with_modulo])(flat, new)
        elif move == "transpose":
            order = rng.sample(range(len(parts)), len(parts))
            indices, parts = [indices[i] for i in order], [parts[i] for i in order]
        elif move == "flip":
            indices[d] = last - indices[d]
        elif move == "roll":
            indices[d] = fm(indices[d] + rng.choice([1, last]), last + 1)
        elif move == "shift":
            indices[d] = indices[d] + rng.choice([1, -1])
        if rng.random() < 0.5:
            indices = simplified(indices, axes)
    final = [_whole(p) for p in parts]
    return axes, flatten(indices, final), final


def _whole(parts: Sequence[Extent]) -> Extent:
    found: Extent = 1
    for p in parts:
        found = found * p if isinstance(found, int) == isinstance(p, int) else as_expr(found) * as_expr(p)
    return found


def _cut(rng: random.Random, pieces: list[Extent]) -> list[list[Extent]]:
    parts: list[list[Extent]] = []
    for e in pieces:
        if parts and rng.random() < 0.5:
            parts[-1].append(e)
        else:
            parts.append([e])
    return parts


def evaluate(e: Any, values: dict[Var, int]) -> int:
    """Return the value of an expression in Python's integers."""
    name = compat.kind(e)
    if isinstance(e, int) or name == "IntImm":
        return int(e)
    if name in ("Var", "SizeVar"):
        return values[e]
    a, b = evaluate(e.a, values), evaluate(e.b, values)
    functions: dict[str, Callable[[int, int], int]] = {
        "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y,
        "FloorDiv": lambda x, y: x // y, "FloorMod": lambda x, y: x % y, "Min": min, "Max": max,
    }  # fmt: skip
    return functions[name](a, b)


def differs(rng: random.Random, axes: Axes, a: Expr, b: Expr) -> dict[str, int] | None:
    """Return a point and sizes at which the expressions differ."""
    for sizes in [*LARGE, *SMALL]:
        values: dict[Var, int] = dict(zip((N, M, K), sizes))
        extents = [evaluate(as_expr(e), values) for _, e in axes]
        if prod(extents) == 0:
            continue
        ends = [[0] * len(extents), [e - 1 for e in extents]]
        for point in ends + [[rng.randrange(e) for e in extents] for _ in range(6)]:
            at = {**values, **dict(zip((v for v, _ in axes), point))}
            if evaluate(a, at) != evaluate(b, at):
                return {str(v): x for v, x in at.items()}
    return None


MOVES = ["reshape", "transpose", "flip", "roll", "shift"]


@given(st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_what_is_proved_holds_at_every_size(seed: int) -> None:
    rng = random.Random(seed)
    axes, flat, shape = chain(rng, rng.choice([MOVES, ["reshape", "flip"], ["reshape", "transpose"]]))
    wanted = flat_of(axes)
    if equal_indices(flat, wanted, axes, shape):
        assert differs(rng, axes, flat, wanted) is None, f"{flat} is not {wanted}"


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_chains_of_reshapes_are_proved(seed: int) -> None:
    rng = random.Random(seed)
    axes, flat, shape = chain(rng, ["reshape"])
    proved = equal_indices(flat, flat_of(axes), axes, shape)
    assert proved, f"{len(str(flat))} characters over {[str(e) for _, e in axes]}"


def test_other_operators_equal_themselves() -> None:
    """An extent that is a choice cancels, and says nothing about another choice."""
    v, w = tir.Var("v", "int64"), tir.Var("w", "int64")
    choice = tir.Select(N > 3, N, M)
    axes: Axes = [(v, M), (w, choice)]
    assert equal_indices(fd(v * choice + w, choice), v, axes)
    assert not equal_indices(fd(v * choice + w, tir.Select(N > 4, N, M)), v, axes)
    assert not equal_indices(tir.Select(v > 3, v, M), tir.Select(w > 3, w, M), axes)
