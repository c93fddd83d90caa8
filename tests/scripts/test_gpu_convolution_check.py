# SPDX-License-Identifier: Apache-2.0
"""The check of convolutions on a GPU: what it checks, and that it says what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import gpu_convolution_check as check  # noqa: E402


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_convolution_check.py"])
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == 2 and "no CUDA device is found here" in capsys.readouterr().err


def test_cases_are_convolutions_of_one_to_three_axes() -> None:
    cases = [*check.odd_cases(), *check.timed_cases(4)]
    assert {len(case.data) for case in cases} == {3, 4, 5}
    assert any(case.groups == case.data[1] > 1 for case in cases)
    for case in cases:
        assert case.weight[1] * case.groups == case.data[1] and case.weight[0] % case.groups == 0
        for extent, kernel in zip(case.data[2:], case.weight[2:]):
            assert extent + 2 * case.padding >= case.dilation * (kernel - 1) + 1


def test_bias_residual_and_relu_are_checked_where_the_compiler_asks_for_them() -> None:
    followed = [
        (case, precision)
        for case in [*check.odd_cases(), *check.timed_cases(2)]
        for precision in check.PRECISIONS
        if check.is_checked(case, precision, "followed")
    ]
    assert {precision for _, precision in followed} == {"float16", "bfloat16"}
    assert {case.weight[2] for case, _ in followed} == {1, 3} and all(
        case.groups == 1 for case, _ in followed
    )
