# SPDX-License-Identifier: Apache-2.0
"""The script that compares builds of symbolic and of static shapes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import tvm

from tests.graph.helpers import build, symbol
from tvm_stitch.relax.rewriting.views import shape_of


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("torch")
    path = Path(__file__).resolve().parents[2] / "scripts" / "bench_dynamic.py"
    spec = importlib.util.spec_from_file_location("bench_dynamic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["convnext_dynamic", "--sizes", "1", "--repeats", "2"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[-1] == "ratio"
    name, size, symbolic, static, ratio = line.split()
    assert (name, size) == ("convnext_dynamic", "2") and min(map(float, (symbolic, static, ratio))) > 0


def test_an_unknown_model_is_an_error(script: ModuleType) -> None:
    with pytest.raises(SystemExit):
        script.main(["resnet"])


def test_extents_are_bound(script: ModuleType) -> None:
    n = symbol("n")
    mod = build(lambda emit, x, y: tvm.relax.op.add(x, y), ((n, 4), "float32"), ((n, 4), "float32"))
    bound = script.bound(mod, "main", [(3, 4), (3, 4)])
    assert [shape_of(p) for p in bound["main"].params] == [(3, 4), (3, 4)]
