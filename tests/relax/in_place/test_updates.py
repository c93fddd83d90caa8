# SPDX-License-Identifier: Apache-2.0
"""Rows of an argument are replaced in its own memory, if nothing else reads the old ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

import tvm_stitch
from tests.relax.in_place.modules import HEADS, SIZE, cached, drawn, expected
from tvm_stitch.relax.in_place.rows import RowPositions
from tvm_stitch.relax.in_place.updates import with_results_in_place
from tvm_stitch.relax.rewriting.operators import operator_name


def calls(mod: tvm.IRModule) -> list[str]:
    """Return the operators that ``main`` calls, in order."""
    (block,) = mod["main"].body.blocks
    return [
        operator_name(binding.value) for binding in block.bindings if isinstance(binding.value, relax.Call)
    ]


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> tuple[list[np.ndarray], list[Any]]:
    """Return the results on this CPU, and the arguments behind the call."""
    arguments = [tvm.runtime.tensor(each) for each in inputs]
    machine = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())
    return [each.numpy() for each in machine["main"](*arguments)], arguments


@pytest.mark.parametrize("wraps", [True, False])
def test_new_rows_are_written_in_place(wraps: bool) -> None:
    mod = with_results_in_place(cached(1, wraps=wraps), {0: 1})
    expanded = [] if wraps else ["relax.expand_dims"]
    assert calls(mod) == [
        "relax.multiply",
        *expanded,
        "relax.permute_dims",  # of the new rows
        "relax.call_tir_inplace",
        "relax.sum",
    ]
    (at,) = [RowPositions.of(f) for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert at == RowPositions((2, 0, 1, 3), 1, 1, wraps)


@pytest.mark.parametrize("tokens", [1, 3, "n"])
def test_the_argument_has_the_new_rows(tokens: Any) -> None:
    extent = tirx.Var("n", "int64") if tokens == "n" else tokens
    mod = with_results_in_place(cached(extent), {0: 1})
    for count in (2, 5) if tokens == "n" else (tokens,):
        cache, at, new = drawn(count)
        (total, updated), arguments = run(mod, cache, at, new)
        sums, whole = expected(cache, at, new)
        np.testing.assert_allclose(total, sums, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(updated, whole.astype("float32"))
        np.testing.assert_array_equal(arguments[0].numpy(), updated)


def test_positions_outside_are_left_out() -> None:
    cache, _, new = drawn(3)
    at = np.array([12, -13, 4], "int64")
    (total, updated), _ = run(with_results_in_place(cached(3), {0: 1}), cache, at, new)
    sums, whole = expected(cache, at, new)
    np.testing.assert_array_equal(updated, whole.astype("float32"))
    np.testing.assert_allclose(total, sums, rtol=1e-5, atol=1e-5)


def test_a_symbolic_cache() -> None:
    rows = tirx.Var("rows", "int64")
    mod = with_results_in_place(cached(1, rows=rows, wraps=False), {0: 1})
    assert "relax.call_tir_inplace" in calls(mod)
    for length in (3, 12):
        cache, at, new = drawn(1, length)
        at %= length
        (_, updated), arguments = run(mod, cache, at, new)
        np.testing.assert_array_equal(updated, expected(cache, at, new)[1].astype("float32"))
        np.testing.assert_array_equal(arguments[0].numpy(), updated)


def old_sums(builder: relax.BlockBuilder, cache: relax.Var) -> relax.Expr:
    return builder.emit(op.sum(cache, [-1]))


@pytest.mark.parametrize(
    "options", [{"more": old_sums}, {"reduction": "add"}], ids=["old rows are read", "rows are added"]
)
def test_other_results_stay_new_tensors(options: Any) -> None:
    mod = cached(2, **options)
    assert "relax.call_tir_inplace" not in calls(with_results_in_place(mod, {0: 1}))
    cache, at, new = drawn(2)
    _, arguments = run(with_results_in_place(mod, {0: 1}), cache, at, new)
    np.testing.assert_array_equal(arguments[0].numpy(), cache)


def test_positions_of_two_axes() -> None:
    """A position of each batch: cache[b, :, at[b]] = new[b]."""
    builder = relax.BlockBuilder()
    cache = relax.Var("cache", relax.TensorType((3, 5, HEADS, SIZE), "float32"))
    at = relax.Var("at", relax.TensorType((3, 2), "int64"))
    new = relax.Var("new", relax.TensorType((3, HEADS, SIZE), "float32"))
    with builder.function("main", [cache, at, new]):
        with builder.dataflow():
            scattered = builder.emit(op.scatter_nd(cache, at, new, "update"))
            results = builder.emit_output(relax.Tuple([scattered]))
        builder.emit_func_output(results)
    mod = with_results_in_place(builder.get(), {0: 0})
    assert calls(mod) == ["relax.call_tir_inplace"]
    random = np.random.default_rng(1)
    values = [
        random.standard_normal(shape).astype("float32") for shape in ((3, 5, HEADS, SIZE), (3, HEADS, SIZE))
    ]
    positions = np.array([[0, 4], [1, 0], [2, 2]], "int64")
    (updated,), _ = run(mod, values[0].copy(), positions, values[1])
    want = values[0].copy()
    want[positions[:, 0], positions[:, 1]] = values[1]
    np.testing.assert_array_equal(updated, want)


def test_errors_name_what_is_wrong() -> None:
    mod = cached(1)
    with pytest.raises(ValueError, match="the module has no function 'step'"):
        with_results_in_place(mod, {0: 1}, "step")
    with pytest.raises(ValueError, match="main has no parameter 3: it has 3"):
        with_results_in_place(mod, {3: 1})
    with pytest.raises(ValueError, match="main has no result 2: it has 2"):
        with_results_in_place(mod, {0: 2})
    with pytest.raises(ValueError, match="parameter at is .*, and result 1 is"):
        with_results_in_place(mod, {1: 1})
