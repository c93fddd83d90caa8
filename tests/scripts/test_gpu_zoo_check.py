# SPDX-License-Identifier: Apache-2.0
"""The check of the zoo's models runs on a CPU too, and finds what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import gpu_zoo_check as script  # noqa: E402


def test_models_are_checked(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--target", "llvm", "--models", "mixer", "--sizes", "2"]
    assert script.main(options) == 0
    header, row = capsys.readouterr().out.strip().splitlines()
    assert row.split()[0] == "mixer" and "yes" in row and header.split()[0] == "model"
    monkeypatch.setattr(script, "TOLERANCE", 0.0)
    assert script.main(options) == 1


def test_a_model_that_does_not_compile_is_told(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("what is wrong")

    monkeypatch.setattr(script, "check", fails)
    assert script.main(["--target", "llvm", "--models", "mixer"]) == 1
    assert "ValueError: what is wrong" in capsys.readouterr().out


def test_errors() -> None:
    assert script.error_of([np.array([1.0, 3.0])], [np.array([1.0, 2.0])]) == pytest.approx(0.5)
    assert script.error_of([np.array([1, 3])], [np.array([1, 2])]) == float("inf")
    assert script.error_of([np.array([np.nan])], [np.array([1.0])]) == float("inf")
    assert script.error_of([np.zeros(2)], [np.zeros(3)]) == float("inf")


def test_usage_errors(capsys: Any) -> None:
    with pytest.raises(SystemExit) as error:
        script.main(["--sizes", "0"])
    assert error.value.code == 2 and capsys.readouterr().err


def test_sizes_are_spread_evenly() -> None:
    assert script.evenly(range(41), 12) == [0, 3, 7, 10, 14, 18, 21, 25, 29, 32, 36, 40]
    assert script.evenly(range(3), 12) == [0, 1, 2]
    assert script.evenly(range(41), 1) == [0]
