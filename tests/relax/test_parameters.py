# SPDX-License-Identifier: Apache-2.0
"""Weights that are parameters, as `tvm.relax.frontend.nn` exports them: nothing copies them, lifted or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

import tvm_stitch
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import in_half_precision, pipeline

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


class Perceptron(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64, -1, bias=False)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 32)

    def forward(self, x: Any) -> Any:
        return self.down(nn.op.silu(self.up(self.norm(x))))


def expected(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    wide = {name: value.astype("float64") for name, value in weights.items()}
    y = x / np.sqrt((x.astype("float64") ** 2).mean(-1, keepdims=True) + 1e-5) * wide["norm.weight"]
    y = y @ wide["up.weight"].T + wide["up.bias"]
    return y / (1 + np.exp(-y)) @ wide["down.weight"].T + wide["down.bias"]


@pytest.mark.parametrize("lifted", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_parameters(rows: int, lifted: bool) -> None:
    mod, named = Perceptron().export_tvm({"forward": {"x": nn.spec.Tensor(["n", 64], "float32")}})
    rng = np.random.default_rng(rows)
    weights = {
        name: rng.standard_normal([int(e) for e in p.shape]).astype("float32") / 8 for name, p in named
    }
    x = rng.standard_normal((rows, 64)).astype("float32")
    recorder = Recorder()
    mod = relax.transform.LiftTransformParams()(mod) if lifted else mod
    vm = relax.VirtualMachine(
        tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET, None, recorder)), tvm.cpu()
    )
    params = [tvm.runtime.tensor(value) for value in weights.values()]
    if lifted:
        params = list(vm["forward_transform_params"](params))
    result = vm["forward"](tvm.runtime.tensor(x), *params).numpy()
    np.testing.assert_allclose(result, expected(x, weights), rtol=1e-4, atol=1e-5)
    assert len(recorder.computed) == 2
    assert all(how.startswith("our template") for how in recorder.computed.values())
    if not lifted:  # where they are lifted, they are transposed once
        assert list(recorder.plans) == ["stitch_rms_norm"]


def test_in_half_precision() -> None:
    """Weights that are parameters are half types too, and the function may have any name."""
    mod, named = Perceptron().export_tvm({"forward": {"x": nn.spec.Tensor(["n", 64], "float32")}})
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal([int(e) for e in p.shape]).astype("float16") / 8 for name, p in named
    }
    x = rng.standard_normal((5, 64)).astype("float16")
    executable = tvm_stitch.compile(in_half_precision(mod, "float16"), TARGET)
    params = [tvm.runtime.tensor(value) for value in weights.values()]
    result = relax.VirtualMachine(executable, tvm.cpu())["forward"](tvm.runtime.tensor(x), *params).numpy()
    wide = expected(x, weights)
    assert np.abs(result.astype("float64") - wide).max() < 4 * 2.0**-11 * np.abs(wide).max()
