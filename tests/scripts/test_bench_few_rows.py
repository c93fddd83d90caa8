# SPDX-License-Identifier: Apache-2.0
"""The script that measures products of few rows next to a read of the same bytes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import _few_rows_peers as few_rows_peers  # noqa: E402
from models.narrow_weights import KINDS  # noqa: E402

SMALL = ["--columns", "16", "--inner", "64", "--megabytes", "0", "--blocks", "1"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "bench_few_rows.py"
    spec = importlib.util.spec_from_file_location("bench_few_rows", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ["float32", "bfloat16", "4bit-words"]
    assert script.main([*kinds, "--rows", "1", "3", "--peers", "onnxruntime", "pytorch", *SMALL]) == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["weight", "rows", "MB", "error"]
    assert [line.split()[:2] for line in lines] == [[kind, rows] for kind in kinds for rows in ("1", "3")]
    assert all(float(line.split()[3]) < 5e-3 for line in lines)
    assert [line.split()[-2:].count("-") for line in lines] == [
        0,
        0,
        1,
        1,
        1,
        1,
    ]  # each has what it can multiply
    assert last.startswith("threads ")


def test_no_peers(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["int8", "--rows", "1", "--peers", "none", "--processor-time", *SMALL]) == 0
    assert "pytorch" not in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["int3"], ["--peers", "numpy"], ["--inner", "40"], ["--rows", "0"]])
def test_what_it_does_not_know_is_an_error(script: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(arguments)


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_are_those_of_numpy(kind: str) -> None:
    """The tensors of a kind hold the weight that the script compares with."""
    tensors, wide = KINDS[kind].drawn(4, 64)
    assert wide.shape == (4, 64) and wide.dtype == "float64"
    assert [(each.shape, str(each.dtype)) for each in tensors] == [
        (shape, dtype) for _, shape, dtype in KINDS[kind].parameters(4, 64)
    ]
    if kind == "4bit-words":
        word = int(tensors[0][2, 3])
        fields = [(word >> 4 * i & 15) - 7 for i in range(8)]
        np.testing.assert_allclose(wide[2, 24:32], np.multiply(fields, float(tensors[1][2, 0])))


def test_ggml_multiplies() -> None:
    pytest.importorskip("libggml")
    x = np.ones((1, 64), "float32")
    call = few_rows_peers.ggml(KINDS["float32"], x, [np.ones((16, 64), "float32")], 1)
    assert call is not None and call() == 0
