# SPDX-License-Identifier: Apache-2.0
"""The script that compares Fourier transforms with PyTorch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "bench_fourier.py"
    spec = importlib.util.spec_from_file_location("bench_fourier", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["rfft", "irfft", "--lengths", "12", "--rows", "2", "--blocks", "1"]) == 0
    head, *lines, mean = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["transform", "length", "rows"]
    for line, kind in zip(lines, ("rfft", "irfft"), strict=True):
        assert line.split()[:4] == [kind, "12", "2", "12"] and float(line.split()[4]) < 1e-6
    assert mean.startswith("threads ")


def test_errors_alone(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["fft", "--lengths", "8", "--rows", "1", "--errors"]) == 0
    assert "ratio" not in capsys.readouterr().out


def test_an_unknown_transform_is_an_error(script: ModuleType) -> None:
    with pytest.raises(SystemExit):
        script.main(["dct"])
