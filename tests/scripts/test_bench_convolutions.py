# SPDX-License-Identifier: Apache-2.0
"""The parts of a convolution's step that are timed are what they are called, and usage errors have a message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from tvm_stitch.execution.runner import Runner
from tvm_stitch.relax.build import build

torch = pytest.importorskip("torch")

import bench_convolutions as script  # noqa: E402


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("part", script.PARTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_parts(part: str, stride: int) -> None:
    """Against PyTorch's own differentiation."""
    case = script.case_of(script.Layer(5, 9, 6, 3, stride), part, 2)
    x, w, g = (each.double().requires_grad_() for each in case.given)
    y = torch.nn.functional.conv2d(x, w, None, stride, 1)
    assert y.shape == g.shape
    y.backward(g)
    wanted = {"forward": y, "data": x.grad, "weight": w.grad}[part].detach().numpy()
    target = tvm.target.Target("llvm")
    found = Runner(build(case.mod(), target).executable, target, [v.numpy() for v in case.given]).outputs()
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("arguments", [["--layers", "99"], ["--parts", "none"], ["--batch", "x"]])
def test_usage_errors(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as error:
        script.main(arguments)
    assert error.value.code == 2
    assert arguments[0] in capsys.readouterr().err
