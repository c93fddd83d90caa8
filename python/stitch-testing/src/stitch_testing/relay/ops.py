# SPDX-License-Identifier: Apache-2.0
"""Relay's operators under the names and with the parameters of ``tvm.relax.op``, for code that serves both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relay

Expr = Any  # relay.Expr
Axes = int | Sequence[int] | None

_SAME = frozenset(
    "add subtract multiply divide floor_divide floor_mod maximum minimum abs negative sqrt sign floor ceil trunc "
    "round clip exp log rsqrt power tanh sigmoid erf sin cos greater less greater_equal less_equal equal "
    "not_equal logical_and logical_or logical_not where sum mean max min prod reshape expand_dims squeeze "
    "broadcast_to split".split()
)


def __getattr__(name: str) -> Any:
    """Return Relay's operator of the same name and parameters."""
    if name in _SAME:
        return getattr(relay, name)
    raise AttributeError(f"operator {name}: no construction of it in Relay is known")


def const(value: Any, dtype: str) -> Expr:
    """Return a constant of ``dtype``, a scalar for a number."""
    return relay.const(np.asarray(value, np.dtype(dtype)))


def astype(x: Expr, dtype: str) -> Expr:
    """Convert ``x`` to ``dtype``."""
    return relay.cast(x, dtype)


def permute_dims(x: Expr, axes: Sequence[int] | None = None) -> Expr:
    """Return ``x`` with its axes in another order, reversed by default."""
    return relay.transpose(x, axes)


def concat(tensors: Sequence[Expr], axis: int = 0) -> Expr:
    """Concatenate tensors along ``axis``."""
    return relay.concatenate(list(tensors), axis)


def strided_slice(
    x: Expr,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Expr:
    """Return ``x[begin:end:stride]`` along ``axes``."""
    return relay.strided_slice(x, list(begin), list(end), list(strides or [1] * len(begin)), list(axes))


def take(x: Expr, indices: Expr, axis: int | None = None, mode: str = "clip") -> Expr:
    """Return the elements of ``x`` along ``axis`` at ``indices``."""
    return relay.take(x, indices, axis=axis, mode=mode)


def pad(x: Expr, widths: Sequence[tuple[int, int]], value: float) -> Expr:
    """Return ``x`` with ``value`` before and after it, with the widths of every axis."""
    return relay.nn.pad(x, [tuple(pair) for pair in widths], pad_value=value)


def dense(x: Expr, weight: Expr) -> Expr:
    """Multiply x <m, k> by weight <n, k>."""
    return relay.nn.dense(x, weight)


def batch_matmul(a: Expr, b: Expr) -> Expr:
    """Multiply a <batch, m, k> by b <batch, k, n>."""
    return relay.nn.batch_matmul(a, b, transpose_a=False, transpose_b=False)


def shape_of(x: Expr) -> tuple[int, ...]:
    """Return the extents of ``x``."""
    return tuple(int(extent) for extent in relay.transform.InferTypeLocal(x).concrete_shape)


def parts(value: Any, count: int) -> list[Expr]:
    """Return the first ``count`` tensors of a tuple."""
    return [value[place] for place in range(count)]


def log_softmax(x: Expr, axis: int = -1) -> Expr:
    """Emit Relay's own log-softmax."""
    return relay.nn.log_softmax(x, axis=axis)


def nll_loss(predictions: Expr, targets: Expr, reduction: str = "mean") -> Expr:
    """Emit Relay's own negative log-likelihood, every class with weight 1. Classes are axis 1."""
    typed = relay.transform.InferTypeLocal(predictions)
    weights = relay.ones((int(typed.shape[1]),), typed.dtype)
    return relay.nn.nll_loss(predictions, targets, weights, reduction=reduction)


def softmax(x: Expr, axis: int = -1) -> Expr:
    """Emit Relay's own softmax."""
    return relay.nn.softmax(x, axis=axis)
