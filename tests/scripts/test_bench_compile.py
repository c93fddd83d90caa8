# SPDX-License-Identifier: Apache-2.0
"""Compile times next to TVM's: stages add up, failures have a reason, and too slow is an exit code."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.graph.helpers import build

pytest.importorskip("torch")

import bench_compile as script  # noqa: E402


def model() -> tvm.IRModule:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return [R.nn.softmax(emit(R.exp(emit(R.matmul(x, w)))))]

    return build(body, ((8, 16), "float32"), ((16, 16), "float32"))


@pytest.mark.parametrize("kind", script.TARGETS)
def test_stages_are_parts_of_the_whole(kind: str) -> None:
    with script.no_cuda_compiler():
        row = script.measure("model", model(), kind, 1)
    assert not row.error and row.stock > 0
    assert sum(row.stages.values()) == pytest.approx(row.stitched, rel=0.05)
    assert set(row.stages) == set(script.COLUMNS)
    used = {stage for stage, seconds in row.stages.items() if seconds > 0}
    assert used >= {"imports", "graph", "plan", "passes", "code"}


def test_the_compiler_is_put_back() -> None:
    before = tvm.get_global_func(script.COMPILE)
    with script.no_cuda_compiler():
        assert tvm.get_global_func(script.COMPILE)("code", None) == b"left out"
    after = tvm.get_global_func(script.COMPILE)
    assert after is not None and before is not None
    assert after.same_as(before)


def test_too_slow_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(script, "load", lambda name, size: model())
    arguments = ["--models", "zoo:mixer", "--target", "llvm", "--repeats", "1", "--markdown"]
    assert script.main([*arguments, "--most", "1000"]) == 0
    rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 3 and len({row.count("|") for row in rows}) == 1 and "zoo:mixer" in rows[2]
    assert script.main([*arguments, "--most", "0.001"]) == 1
    assert "times what TVM takes" in capsys.readouterr().err


def test_a_model_that_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fails(mod: tvm.IRModule, target: Any) -> None:
        raise ValueError("what is wrong")

    monkeypatch.setattr(script, "load", lambda name, size: model())
    arguments = ["--models", "zoo:mixer", "--target", "llvm", "--repeats", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(script, "stock", fails)  # a failure of TVM does not count
        assert script.main(arguments) == 0
        assert "-" in capsys.readouterr().out.splitlines()[1].split()
    monkeypatch.setattr(script, "stitched", fails)
    assert script.main(arguments) == 1
    assert "ValueError: what is wrong" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--models", "none"], ["--repeats", "0"]])
def test_usage_errors(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as error:
        script.main(arguments)
    assert error.value.code == 2 and capsys.readouterr().err


def test_sides_apart_have_rows_of_their_imports(capsys: Any) -> None:
    arguments = ["--apart", "--models", "grid-3d", "--markdown"]
    assert script.main([*arguments, "--most", "1000"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert row[1].strip() == "grid-3d" and all(float(cell) >= 0 for cell in row[2:-1])


def test_a_side_that_fails_apart_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    found = {"TVM": {"error": "what is wrong"}, "stitched": {"import": 1.0, "compile": 2.0}}
    monkeypatch.setattr(script, "seconds", lambda side, name, target: found[side])
    assert script.main(["--apart", "--models", "grid-3d"]) == 0  # a failure of TVM does not count
    told = capsys.readouterr()
    assert "what is wrong" in told.err and told.out.splitlines()[-1].split()[1:3] == ["-", "-"]
    found["TVM"] = {"import": 0.1, "compile": 0.1}
    assert script.main(["--apart", "--models", "grid-3d"]) == 1
    with pytest.raises(SystemExit):
        script.main(["--apart", "--models", "zoo:mixer"])
