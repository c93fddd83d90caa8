# SPDX-License-Identifier: Apache-2.0
"""The script that compares recurrent layers with ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "bench_recurrent.py"
    spec = importlib.util.spec_from_file_location("bench_recurrent", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["RNN", "--hidden", "16", "--batch", "2", "--steps", "5", "--blocks", "1"]
    assert script.main([*options, "--direction", "bidirectional"]) == 0
    head, line, mean = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "layer"
    kind, hidden, batch, steps, *_, error = line.split()
    assert (kind, hidden, batch, steps) == ("RNN", "16", "2", "5") and float(error) < 1e-5
    assert mean.startswith("threads ")


def test_an_unknown_layer_is_an_error(script: ModuleType) -> None:
    with pytest.raises(SystemExit):
        script.main(["MLP"])
