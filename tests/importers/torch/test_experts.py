# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts from PyTorch: counts of equal numbers, and products of groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.importers.torch import programs
from tests.importers.torch.test_indexing import check, compiled, numbers, run
from tvm_stitch.importers.torch.converters import torch_converters

torch = pytest.importorskip("torch")
import tvm  # noqa: E402


@torch.library.custom_op("tvm_stitch_tests::grouped_mm_fallback", mutates_args=())
def grouped(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply each expert's rows by its weight, and leave the rest 0, like transformers."""
    out, start = rows.new_zeros(rows.shape[0], weights.shape[2]), 0
    for expert, end in enumerate(ends.tolist()):
        out[start:end] = rows[start:end] @ weights[expert]
        start = end
    return out


@grouped.register_fake
def _(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


ENDS = [[3, 3, 8, 12], [0, 0, 0, 12], [12, 12, 12, 12], [2, 4, 6, 9]]


@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("count", [12, 3])
def test_rows_by_their_experts(count: int, ends: list[int]) -> None:
    """More rows than experts, and fewer, each of which reads its own expert's weight."""
    at = torch.tensor([min(end, count) for end in ends], dtype=torch.int32)
    rows, weights = numbers(count, 16), numbers(4, 16, 10)
    (found,) = run(grouped, rows, weights, at, custom_convert_map=torch_converters())
    np.testing.assert_allclose(found, grouped(rows, weights, at).numpy(), rtol=1e-5, atol=1e-5)


def test_rows_of_symbolic_number() -> None:
    count = torch.export.Dim("count", min=2, max=64)
    at, weights = torch.tensor([1, 4, 4, 7]), numbers(4, 16, 10)

    def function(rows: Any, weights: Any, ends: Any) -> Any:
        return grouped(rows * 2, weights, ends)

    main = compiled(
        function,
        numbers(9, 16),
        weights,
        at,
        dynamic=(({0: count}, None, None),),
        custom_convert_map=torch_converters(),
    )
    for n in (7, 30):
        rows = numbers(n, 16)
        found = main(*(tvm.runtime.tensor(x.numpy()) for x in (rows, weights, at)))
        np.testing.assert_allclose(found.numpy(), function(rows, weights, at).numpy(), rtol=1e-5, atol=1e-5)


def test_other_groups_are_refused() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.histc(x, 4)

    with pytest.raises(NotImplementedError, match="give those of the data, min below max"):
        compiled(function, numbers(3), numbers(3), custom_convert_map=torch_converters())


@pytest.mark.parametrize(
    ("bins", "low", "high"), [(4, 0, 3), (8, 0, 7), (5, -1, 1), (1, 0, 1), (3, 0.25, 0.75)]
)
@pytest.mark.parametrize("shape", [(50,), (3, 7), (1,)], ids=str)
def test_counts(shape: tuple[int, ...], bins: int, low: float, high: float) -> None:
    x = torch.randint(-2, 10, shape, generator=torch.Generator().manual_seed(1)).float()
    for values in (x, x / 8):
        check(lambda x: [torch.histc(x, bins=bins, min=low, max=high)], values)


def test_counts_of_the_bounds_themselves() -> None:
    """The greatest number is in the last part. Infinities are in none."""
    x = torch.tensor([0.0, 1.0, 1.0, 0.999, -0.001, 1.001, float("inf"), float("-inf")])
    check(lambda x: [torch.histc(x, bins=4, min=0, max=1)], x)


def test_transformers_operator_is_imported() -> None:
    """Its name has the namespace of transformers, which only operators with a converter may have."""
    with torch.library._scoped_library("transformers", "FRAGMENT") as library:
        if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
            library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
            library.impl("grouped_mm_fallback", grouped._init_fn, "CPU")
            library.impl("grouped_mm_fallback", lambda x, w, _: x.new_empty(x.shape[0], w.shape[2]), "Meta")
        operator = torch.ops.transformers.grouped_mm_fallback
        rows, weights, ends = numbers(9, 16), numbers(4, 16, 10), torch.tensor([1, 4, 4, 7])
        run_program = programs.compiled(programs.imported(lambda *x: operator(*x), rows, weights, ends))
        (found,) = run_program(rows, weights, ends)
        np.testing.assert_allclose(found, operator(rows, weights, ends).numpy(), rtol=1e-5, atol=1e-5)
