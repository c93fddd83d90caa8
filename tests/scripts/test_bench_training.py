# SPDX-License-Identifier: Apache-2.0
"""Training steps next to PyTorch: right, in a table, and usage errors have a message."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import bench_training as script  # noqa: E402


class Wrong(script.PyTorch):
    """PyTorch's step, with other results."""

    def __init__(self, step: Any, target: Any):
        super().__init__(step, "cpu", compiled=False)

    def outputs(self) -> list[np.ndarray]:
        return [value + 1 for value in super().outputs()]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_step_is_timed_and_compared(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script.STEPS["residual"]("small")
    monkeypatch.setitem(script.STEPS, "residual", lambda size: made)
    monkeypatch.setattr(script, "time_on_cpu", partial(script.time_on_cpu, blocks=2, seconds_per_block=0.01))
    options = ["--size", "small", "--target", "llvm", "--contenders", "stitched,eager", "--steps", "residual"]
    assert script.main(options) == 0
    told = capsys.readouterr().out
    assert "stitched" in told and "eager" in told and "best peer/ours" in told
    monkeypatch.setattr(script, "Stitched", Wrong)
    assert script.main(options) == 1


def test_errors_are_of_the_largest_element() -> None:
    wanted = [np.array([1.0, -4.0]), np.zeros(2)]
    assert script.relative_error([np.array([1.0, -4.0]), np.zeros(2)], wanted) == 0.0
    assert script.relative_error([np.array([1.2, -4.0]), np.zeros(2)], wanted) == pytest.approx(0.05)
    assert script.relative_error([np.array([np.nan, -4.0]), np.zeros(2)], wanted) == float("inf")
    assert script.relative_error([np.zeros(3), np.zeros(2)], wanted) == float("inf")


@pytest.mark.parametrize("arguments", [["--contenders", "nobody"], ["--steps", "none"]])
def test_usage_errors(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as error:
        script.main(arguments)
    assert error.value.code == 2 and capsys.readouterr().err
