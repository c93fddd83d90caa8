# SPDX-License-Identifier: Apache-2.0
"""The script that compares builds of symbolic and of static shapes."""

from __future__ import annotations

import pytest
import tvm

from tests.graph.helpers import build, symbol
from tvm_stitch.relax.rewriting.views import shape_of

pytest.importorskip("torch")

import bench_dynamic as script  # noqa: E402


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["convnext_dynamic", "--sizes", "1", "--repeats", "2"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[-1] == "ratio"
    name, size, symbolic, static, ratio = line.split()
    assert (name, size) == ("convnext_dynamic", "2") and min(map(float, (symbolic, static, ratio))) > 0


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(SystemExit):
        script.main(["resnet"])


def test_extents_are_bound() -> None:
    n = symbol("n")
    mod = build(lambda emit, x, y: tvm.relax.op.add(x, y), ((n, 4), "float32"), ((n, 4), "float32"))
    bound = script.bound(mod, "main", [(3, 4), (3, 4)])
    assert [shape_of(p) for p in bound["main"].params] == [(3, 4), (3, 4)]
