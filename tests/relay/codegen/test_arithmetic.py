# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on special values under a TVM with Relay: NaN and infinities stay, integers of every width wrap around."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import relay

from stitch_testing.expressions import (
    COMPARISONS,
    Tree,
    construct,
    float_trees,
    integer_trees,
    special_pairs,
    wrong,
    zero_trees,
)
from tests.relay.codegen import gpu_kernels, kernels

RELATIVE = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}
SAME = (
    "add subtract multiply divide floor_divide floor_mod maximum minimum negative abs where left_shift right_shift "
    "bitwise_not logical_not logical_and logical_or"
).split()
OPS = SimpleNamespace(astype=relay.cast, **{name: getattr(relay, name) for name in [*SAME, *COMPARISONS]})
RUN = {
    "llvm": lambda f, *inputs: kernels.Kernel(f)(*inputs),
    "cuda": lambda f, *inputs: gpu_kernels.GpuKernel(f)(*inputs).check().outputs,
}


def compute(trees: Sequence[Tree], kind: str, dtype: str) -> list[str]:
    """Return the faults of a kernel of the trees."""
    x, y = special_pairs(dtype)
    named = {name: relay.var(name, shape=x.shape, dtype=dtype) for name in "xy"}
    calls = [construct(t, named, OPS, lambda v: relay.const(np.array(v).astype(dtype), dtype)) for t in trees]
    function = relay.Function(list(named.values()), relay.Tuple(calls))
    results = RUN[kind](function, x, y)
    return wrong(trees, {"x": x, "y": y}, results, RELATIVE.get(dtype, 0))


@pytest.mark.parametrize("dtype", RELATIVE)
def test_floats_keep_nan_and_infinities(dtype: str) -> None:
    every = 9 if dtype == "float32" else 29
    assert not compute(float_trees()[len(dtype) % every :: every], "cuda", dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maxima_and_products_keep_nan_on_a_cpu(dtype: str) -> None:
    """Comparisons need not: this TVM tells LLVM that there is no NaN."""
    trees = [(op, *pair) for op in ("maximum", "minimum") for pair in (("x", "y"), ("x", 0), (-1, "y"))]
    trees += [("maximum", ("minimum", "x", "y"), 1), ("minimum", ("add", "x", "y"), ("subtract", "x", "y"))]
    trees += [
        ("multiply", "x", 0),
        ("divide", 0, "x"),
        ("subtract", "x", "y"),
        ("subtract", ("add", "x", "y"), "y"),
    ]
    assert not compute(trees, "llvm", dtype)


@pytest.mark.parametrize("kind", RUN)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers_wrap_around(kind: str, dtype: str) -> None:
    every = 9 if dtype in ("uint8", "int32") else 29
    assert not compute(integer_trees(dtype)[::every] + zero_trees(), kind, dtype)
