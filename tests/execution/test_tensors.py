# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of models, and random inputs."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.execution.tensors import (
    TensorSpec,
    make_inputs,
    specs_of_inputs,
    specs_of_outputs,
    symbol_and_value,
)


def test_a_module_tells_what_it_takes_and_returns() -> None:
    mod = build(lambda emit, x: [emit(R.exp(x)), emit(R.sum(x, axis=1))], ((symbol("rows"), 4), "float16"))
    (taken,) = specs_of_inputs(mod, ["data"])
    assert taken == TensorSpec("data", ("rows", 4), "float16")
    assert specs_of_inputs(mod)[0].shape == ("rows", 4)
    returned = specs_of_outputs(mod, ["e", "s"])
    assert [spec.shape for spec in returned] == [("rows", 4), ("rows",)]
    single = build(lambda emit, x: R.exp(x), ((2, 4), "float32"))
    assert specs_of_outputs(single, ["y"]) == (TensorSpec("y", (2, 4), "float32"),)


@pytest.mark.parametrize(("shape", "taken"), [((3, 4), True), ((9, 4), True), ((3, 5), False), ((3,), False)])
def test_symbolic_dimensions_take_any_size(shape: tuple[int, ...], taken: bool) -> None:
    assert TensorSpec("x", ("rows", 4), "float32").takes(shape) is taken


def test_dimensions_that_are_expressions() -> None:
    (spec,) = specs_of_inputs(build(lambda emit, x: R.exp(x), ((2 * symbol("n"), 4), "float32")))
    assert spec.shape == ("2 * n", 4) and spec.takes((6, 4)) and not spec.takes((7, 4))


@pytest.mark.parametrize(
    ("dim", "size", "solved"),
    [
        ("n", 5, ("n", 5)),
        ("2 * n", 6, ("n", 3)),
        ("n * 2", 7, None),
        ("n + 1", 5, ("n", 4)),
        ("4 * n - 3", 5, ("n", 2)),
        ("n + 1", 0, None),
        ("n + m", 5, ("n + m", 5)),
        ("?", 5, ("?", 5)),
    ],
)
def test_sizes_give_symbols_values(dim: str, size: int, solved: tuple[str, int] | None) -> None:
    assert symbol_and_value(dim, size) == solved


def test_made_inputs_are_seeded_and_of_the_right_kind() -> None:
    specs = [
        TensorSpec("f", (64,), "float16"),
        TensorSpec("i", (64,), "int64"),
        TensorSpec("b", (64,), "bool"),
        TensorSpec("h", (64,), "bfloat16"),
    ]
    made = make_inputs(specs, seed=1)
    assert [str(value.dtype) for value in made.values()] == ["float16", "int64", "bool", "bfloat16"]
    assert set(np.unique(made["i"])) == {0, 1} and set(np.unique(made["b"])) == {False, True}
    assert made["f"].astype(np.float32).std() > 0.5
    np.testing.assert_array_equal(made["f"], make_inputs(specs, seed=1)["f"])
    assert not np.array_equal(made["f"], make_inputs(specs, seed=2)["f"])
    with pytest.raises(ValueError, match=r"x: int32\[n, 2\] has a symbolic dimension"):
        make_inputs([TensorSpec("x", ("n", 2), "int32")])


def test_sizes_that_are_computed_are_plain_text() -> None:
    n = symbol("n")
    mod = build(lambda emit, x: R.reshape(x, (n * 3, 4)), ((n, 3, 4), "float32"))
    (result,) = specs_of_outputs(mod, ["y"])
    assert result.shape == ("n * 3", 4)
