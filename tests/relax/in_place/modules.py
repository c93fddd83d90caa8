# SPDX-License-Identifier: Apache-2.0
"""A cache whose rows a function replaces, and what it reads of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

HEADS, SIZE = 2, 32


def cached(
    tokens: Any,
    rows: Any = 12,
    wraps: bool = True,
    reduction: str = "update",
    more: Callable[[relax.BlockBuilder, relax.Var], relax.Expr] | None = None,
) -> tvm.IRModule:
    """Return a function of a cache <1, heads, rows, size>, positions <tokens> and new keys.

    It returns the sums of the cache's rows behind the update and the cache with the new keys, times 2, as an importer
    writes it: between two permutations. ``more`` emits a value that the first result has added.
    """
    builder = relax.BlockBuilder()
    cache = relax.Var("cache", relax.TensorType((1, HEADS, rows, SIZE), "float32"))
    at = relax.Var("at", relax.TensorType((tokens,), "int64"))
    new = relax.Var("new", relax.TensorType((1, HEADS, tokens, SIZE), "float32"))
    with builder.function("main", [cache, at, new]):
        with builder.dataflow():
            emit = builder.emit
            keys = emit(op.multiply(new, relax.const(2.0)))
            index = at
            if wraps:
                length = relax.const(rows, "int64")
                index = emit(op.where(op.less(at, relax.const(0, "int64")), op.add(at, length), at))
            index = emit(op.expand_dims(index, [-1]))
            moved = emit(op.permute_dims(cache, [2, 0, 1, 3]))
            source = emit(op.permute_dims(keys, [2, 0, 1, 3]))
            scattered = emit(op.scatter_nd(moved, index, source, reduction))
            updated = emit(op.permute_dims(scattered, [1, 2, 0, 3]))
            total = emit(op.sum(updated, [-1]))
            if more is not None:
                total = emit(op.add(total, more(builder, cache)))
            results = builder.emit_output(relax.Tuple([total, updated]))
        builder.emit_func_output(results)
    return builder.get()


def expected(cache: np.ndarray, at: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the results in float64. Positions outside the cache are left out."""
    made = cache.astype("float64")
    rows = made.shape[2]
    for number, position in enumerate(at):
        position = position + rows if position < 0 else position
        if 0 <= position < rows:
            made[:, :, position] = new[:, :, number].astype("float64") * 2
    return made.sum(-1), made


def drawn(tokens: int, rows: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a cache, different positions (some from the end), and new keys."""
    random = np.random.default_rng(seed)
    at = random.permutation(rows)[:tokens].astype("int64")
    at[::2] -= rows
    cache = random.standard_normal((1, HEADS, rows, SIZE)).astype("float32")
    return cache, at, random.standard_normal((1, HEADS, tokens, SIZE)).astype("float32")
