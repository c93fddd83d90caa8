# SPDX-License-Identifier: Apache-2.0
"""Errors of half models as a GPU has them: libraries round once, and each operator of PyTorch its own result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import simulated_errors as script  # noqa: E402
import tvm  # noqa: E402
from models import errors, half_libraries, simulated  # noqa: E402

from tests.relax import cublaslt_stand_in, cudnn_stand_in  # noqa: E402
from tvm_stitch.compute.cuda import library  # noqa: E402


def draw(*shape: int, seed: int = 0) -> Any:
    array = np.random.default_rng(sum(shape) + seed).standard_normal(shape)
    return tvm.runtime.tensor(array.astype("float16"))


def both(function: Any, stand_in: Any, args: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """Compare a function with one that computes in float64 and rounds once."""
    workspace = tvm.runtime.empty((1,), "uint8")
    results = [tvm.runtime.empty(shape, "float16") for _ in range(2)]
    for each, result in zip((function, stand_in), results):
        each(*args, result, workspace)
    found, wanted = (result.numpy().astype("float64") for result in results)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-10, atol=1e-6)  # a tie may be rounded either way
    assert (found == wanted).mean() > 0.99


def test_convolutions() -> None:
    args = draw(2, 9, 8, 6), draw(10, 3, 3, 6), draw(10), draw(2, 5, 6, 10, seed=1)
    numbers = [1, 2, 1, 1, 0, 1, 1]
    given = (*args, numbers, "channels_last timed bias residual relu")
    both(half_libraries.convolution, cudnn_stand_in.convolution, given, (2, 5, 6, 10))
    given = draw(2, 6, 9), draw(4, 3, 3), [2, 1, 2, 2], "channels_first"
    both(half_libraries.convolution, cudnn_stand_in.convolution, given, (2, 4, 9))
    given = draw(1, 4, 5, 5), draw(4, 3, 3, 3), [1, 2, 2, 1, 1, 1, 1], "channels_first data_gradient"
    both(half_libraries.convolution, cudnn_stand_in.convolution, given, (1, 3, 10, 10))


def test_matmuls() -> None:
    numbers = [7, 5, 9, 2, 7, 9, 5, 63, 0, 35]
    args = draw(2, 9, 7), draw(5, 9), draw(5), draw(2, 7, 5, seed=1)
    mode = "left_transposed right_transposed bias residual relu"
    both(half_libraries.matmul, cublaslt_stand_in.matmul, (*args, numbers, mode), (2, 7, 5))


def test_libraries_are_pretended_only_inside() -> None:
    before = [(each.function, each.opened) for each in (library.CUDNN, library.CUBLASLT)]
    with half_libraries.pretended():
        assert library.CUDNN.function == half_libraries.CONVOLUTION
        assert library.CUBLASLT.missing() is None
    assert [(each.function, each.opened) for each in (library.CUDNN, library.CUBLASLT)] == before


def test_operators_of_pytorch_round_their_results() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.SiLU()).eval()
    x = torch.randn(1, 3, 6, 6)
    program = torch.export.export(module, (x,)).run_decompositions({})
    found = simulated.RoundedOperators(program.module(), torch.bfloat16).run(x)
    with torch.no_grad():
        y = torch.conv2d(x, module[0].weight).bfloat16().float()
        y = (y + module[0].bias.reshape(1, -1, 1, 1)).bfloat16().float()
        wanted = torch.nn.functional.silu(y).bfloat16().float()
    torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, wanted, rtol=0, atol=0)


def test_a_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--models", "lstm", "--size", "small", "--batch", "2", "--seeds", "1", "--draws", "2"]
    assert script.main(arguments) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "model" and row.split()[0] == "lstm"
    numbers = [float(word) for word in row.split()[1:]]
    assert all(0 < n < 2e-3 for n in (*numbers[:2], *numbers[3:5])) and numbers[0] < numbers[3]
    assert numbers[2] == pytest.approx(numbers[0] / numbers[1], abs=0.02)
    monkeypatch.setattr(script, "_errors", lambda *_: iter([[[3.0, 4.0], [2.0, 4.0]]]))
    assert script.main(arguments) == 1
    with pytest.raises(SystemExit):
        script.main(["--models", "nothing"])


def test_root_mean_squares() -> None:
    found = errors.root_mean_square([np.array([1.0, 3.0]), np.ones(2)], [np.array([1.0, 2.0]), np.ones(2)])
    assert found == pytest.approx(0.25)
    assert errors.root_mean_square([np.zeros(2)], [np.zeros(3)]) == float("inf")
    assert errors.root_mean_square([np.array([np.nan])], [np.ones(1)]) == float("inf")
    assert errors.root_mean_square([np.zeros(0)], [np.zeros(0)]) == 0
