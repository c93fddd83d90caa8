# SPDX-License-Identifier: Apache-2.0
"""Single operators next to libraries: all contenders compute the same, and wrong results are reported."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import bench_operators as script  # noqa: E402

SMALL = [
    script.Product(5, 33, 17),
    script.Product(5, 33, 17, batch=3),
    script.Product(5, 33, 17, batch=3, transposed=True),
    script.Conv(6, 10, 9, 3),
    script.Conv(6, 10, 9, 5, stride=2),
    script.Conv(6, 6, 8, 3, groups=6),
    script.Conv(6, 6, 8, 3, dilation=3),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("isa", script.ISAS)
def test_contenders_compute_the_same(case: Any, isa: str) -> None:
    x, w = case.arrays(np.random.default_rng(1))
    expected = script.exact(case, x, w)
    for name, make in script.CONTENDERS.items():
        call = make(case, x, w, isa, 1)
        if call is None:
            assert name == "openblas" and isinstance(case, script.Conv)
            continue
        found = call()
        found = found.numpy() if hasattr(found, "numpy") else np.asarray(found)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_operations_are_those_of_the_result() -> None:
    case = script.Conv(6, 10, 9, 5, stride=2)
    x, w = case.arrays(np.random.default_rng(0))
    assert case.operations == 2 * script.exact(case, x, w).size * w[0].size
    case = script.Product(5, 33, 17, batch=3)
    assert case.operations == 2 * script.exact(case, *case.arrays(np.random.default_rng(0))).size * 17


def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(script, "CASES", (script.Product(5, 33, 17),))
    arguments = ["--seconds", "0.001", "--rounds", "1", "--markdown"]
    assert script.main(arguments) == 0
    rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 4 and len({row.count("|") for row in rows[1:]}) == 1
    right = script.CONTENDERS["stitched"]

    def wrong(*args: Any) -> Any:
        call = right(*args)
        return lambda: argparse.Namespace(numpy=lambda: call().numpy() + 1)

    monkeypatch.setitem(script.CONTENDERS, "stitched", wrong)
    assert script.main(arguments) == 1


@pytest.mark.parametrize("arguments", [["--cases", "nothing"], ["--threads", "0"], ["--isa", "mmx"]])
def test_a_usage_error_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(arguments)
    assert ended.value.code == 2
