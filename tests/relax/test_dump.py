# SPDX-License-Identifier: Apache-2.0
"""Dumps of the module behind a phase or a pass: they are read again, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, draw
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import without_decisions
from tvm_stitch.relax import dump, pipeline
from tvm_stitch.relax.dump import dumping, read_dump
from tvm_stitch.relax.pass_table import PHASES
from tvm_stitch.relax.phases import numbers_of
from tvm_stitch.relax.pipeline import planning_passes

F32 = "float32"
LLVM = tvm.target.Target("llvm")


def model() -> tvm.IRModule:
    """Build two stitch ops around a product of a constant weight."""
    weight, bias = draw([((20, 20), F32), ((20,), F32)])

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.add(emit(R.matmul(emit(R.nn.softmax(x)), relax.const(weight))), relax.const(bias)))
        return [R.nn.softmax(emit(R.negative(y)))]

    return build(body, ((6, 20), F32))


def output(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    executable = tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM))
    found: np.ndarray = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    return found


def test_a_dump_of_a_phase_is_read_and_compiled(tmp_path: Path) -> None:
    mod = model()
    (x,) = draw([((6, 20), F32)])
    with dumping("layouts", tmp_path / "new"):
        expected = output(mod, x)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name == "06-layouts.py" and path.read_text().startswith("# The module after layouts.\n")
    np.testing.assert_array_equal(output(read_dump(path), x), expected)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_every_phase_is_read_again(kind: str, tmp_path: Path) -> None:
    target = emulated_target() if kind == "cuda" else LLVM
    with dumping("all", tmp_path), target:
        planned = tvm.transform.Sequential(planning_passes(target, StitchConfig()))(model())
        pipeline(target)(model())
    numbers = numbers_of(PHASES)
    written = {path.name: read_dump(path) for path in sorted(tmp_path.iterdir())}
    assert list(written) == [f"{numbers[phase.name]}-{phase.name}.py" for phase in PHASES]
    # As text: TVM's parser gives buffers another layout object than they had.
    assert written["11-templates.py"].script() == without_decisions(planned).script()


def test_passes_are_dumped_by_their_name_or_by_what_instances_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_STITCH_DUMP", "ConstantViews, StitchOps")
    monkeypatch.setenv("TVM_STITCH_DUMP_TO", str(tmp_path))
    pipeline(LLVM)(model())
    assert sorted(path.name.partition("-")[2][3:] for path in tmp_path.iterdir()) == [
        "ConstantViews.dequantized.py",
        "ConstantViews.layouts.py",
        "ConstantViews.weights.py",
        "StitchOps.py",
    ]


def test_an_unknown_name_is_told() -> None:
    with (
        dumping("layout"),
        pytest.raises(ValueError, match="neither a phase nor a pass; did you mean layouts?"),
    ):
        pipeline(LLVM)(model())


def test_a_runtime_that_saves_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "why_not_saved", lambda: "pip install another one")
    with dumping("all"), pytest.raises(RuntimeError, match="all cannot be dumped: pip install another one"):
        dump.asked_dump(numbers_of(PHASES))
