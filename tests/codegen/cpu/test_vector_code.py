# SPDX-License-Identifier: Apache-2.0
"""LLVM gets vector code for inner loops of CPU kernels, and no memory of the runtime for lanes."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.codegen.cpu.compiled import F32, MOVES, Compiled, build, check, draw, shapes_of, softmax
from tvm_stitch import StitchConfig
from tvm_stitch.plan.cpu.tile import Lanes
from tvm_stitch.relax.pipeline import planning_passes
from tvm_stitch.testing.workloads.cases import cases


def test_vectors_are_no_memory_of_the_runtime() -> None:
    """Values that a kernel holds for its lanes are on the stack, where LLVM makes registers of them."""
    source = check([(64, 100)], [F32], softmax(1)).source
    assert "fmul <" in source and not re.search(r"@(__)?TVMBackendAllocWorkspace,", source)


VECTOR_STORE = re.compile(r"store <(8|16|32) x float>")
LIBM = re.compile(r"call [^\n]*@(expf?|tanhf?|erff?|logf?|powf?|exp2f?)\(")


@pytest.mark.parametrize("name", ["softmax_add_layer_norm_gelu", "lstm_cell", "swiglu", "log_softmax"])
def test_inner_loops_are_vector_code(name: str) -> None:
    case = next(c for c in cases("test") if c.name == name)
    source = Compiled(case.build()).source
    assert VECTOR_STORE.search(source)
    assert not LIBM.search(source)


def test_lanes_over_rows_are_vector_code() -> None:
    compiled = check([(2, 6, 64)], [F32], softmax(1))
    assert compiled.mappings[0].lanes is Lanes.ROWS
    assert VECTOR_STORE.search(compiled.source) and not LIBM.search(compiled.source)


@pytest.mark.parametrize("channels", [8, 24, 64, 65])
@pytest.mark.parametrize("batch", [1, 3])
def test_pooling_with_channels_last_is_vector_code(batch: int, channels: int) -> None:
    """A kernel asks once a vector if a tap lies in the padding. ``unroll`` replaces lanes that would branch apart."""

    def body(emit: Callable, x: relax.Expr, scale: relax.Expr) -> list[relax.Expr]:
        scaled = emit(R.nn.relu(emit(R.multiply(x, scale))))
        return [emit(R.nn.max_pool2d(scaled, (3, 3), (2, 2), (1, 1), layout="NHWC"))]

    shapes = [(batch, 15, 14, channels), (channels,)]
    compiled = Compiled(build(shapes, [F32] * 2, body))
    assert compiled.mappings[0].lanes is Lanes.ROWS
    x, scale = (draw(shape, F32) for shape in shapes)
    padded = np.pad(np.maximum(x * scale, 0), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    found = compiled.main(tvm.runtime.tensor(x), tvm.runtime.tensor(scale)).numpy()
    np.testing.assert_array_equal(found, windows.max((-1, -2)))
    with tvm.target.Target("llvm"):
        passes = planning_passes(tvm.target.Target("llvm"), StitchConfig())
        scheduled = tvm.transform.Sequential(passes)(build(shapes, [F32] * 2, body)).script()
    assert "T.vectorized" in scheduled and "T.unroll" not in scheduled


def test_conditions_are_resolved_by_parts() -> None:
    compiled = check(*shapes_of("concat"), MOVES["concat"][1])
    assert compiled.mappings[0].inner[693].cuts == (0, 30, 77)
    assert VECTOR_STORE.search(compiled.source) and not LIBM.search(compiled.source)
