# SPDX-License-Identifier: Apache-2.0
"""The report: figures right, text readable, data JSON-able, and a reason for every boundary."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, symbol
from tvm_stitch import Report, StitchConfig, explain
from tvm_stitch.testing.cases import Case, cases, power_broadcast_add, softmax
from tvm_stitch.testing.random_graphs import emulated_target

F32 = "float32"
TARGETS: dict[str, Callable[[], tvm.target.Target]] = {
    "cuda": emulated_target, "llvm": lambda: tvm.target.Target("llvm"),
}  # fmt: skip


def report(mod: tvm.IRModule, kind: str = "cuda", **options: Any) -> Report:
    return explain(mod, TARGETS[kind](), StitchConfig(**options))


@pytest.mark.parametrize("kind", TARGETS)
def test_softmax_moves_each_byte_once(kind: str) -> None:
    (kernel,) = report(softmax(64, 1024).build(), kind).kernels
    size = 64 * 1024 * 4
    assert (kernel.bytes_written, kernel.bytes_least) == (size, 2 * size)
    if kind == "cuda":
        assert kernel.bytes_read == size
    assert [o["class"] for o in kernel.operators].count("reduce") == 2
    assert {g["dominant"] for g in kernel.groups} == {"x_red", "lv2_red"}
    assert [p["reduces"] for p in kernel.passes] == [["x_red"], ["lv2_red"], []]


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("case", cases("test"), ids=lambda case: case.name)
def test_reports_are_json(case: Case, kind: str) -> None:
    found = report(case.build(), kind)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert found.kernels and found.left == {}
    assert len(found.kernels) == 1 or case.matmuls
    text = str(found)
    for kernel in found.kernels:
        assert kernel.name in text and f"writes {kernel.bytes_written} B" in text
        assert all(o["operator"] in text for o in kernel.operators)


def test_the_text() -> None:
    text = str(report(softmax(64, 1024).build()))
    assert text.startswith(("1 stitch ops for ", "1 stitch op for "))
    for part in (
        "5 operators, 64 rows", "sub-dominant T_divide", "Regional", "Local", "Independent", "reducing x_red",
        "threads a row", "kept in registers", "shared memory", "least possible traffic 524288 B",
    ):  # fmt: skip
        assert part in text


def test_heavy_broadcasts_are_regional() -> None:
    (kernel,) = report(power_broadcast_add(64, 128).build()).kernels
    (power,) = [o for o in kernel.operators if "power" in o["operator"]]
    assert power["scheme"] == "Regional" and power["class"] == "heavy element-wise"


def test_symbolic_sizes() -> None:
    (kernel,) = report(softmax(64, 1024, symbolic=True).build()).kernels
    assert (kernel.rows, kernel.bytes_read, kernel.bytes_least) == ("rows", "rows * 4096", "rows * 8192")


def test_every_boundary_has_a_reason() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.matmul(emit(R.exp(x)), w))
        z = emit(R.subtract(y, emit(R.max(y, -1, True))))
        return [R.sum(z, 0)]

    found = report(build(body, ((16, 24), F32), ((24, 32), F32)), remote=False)
    reasons = {(b["producer"], b["consumer"]): b["reason"] for b in found.boundaries}
    assert reasons["matmul", "max"] == "compute-intensive"
    assert "16 and 32 rows" in reasons["subtract", "sum"]
    assert "Boundaries:" in str(found) and "16 and 32 rows" in str(found)


def test_the_limits_are_named() -> None:
    def body(emit: Any, x: Any) -> Any:
        for op in (R.exp, R.tanh, R.negative, R.sigmoid, R.abs):
            x = emit(op(x))
        return [x]

    found = report(build(body, ((16, 24), F32)), max_operators=2)
    assert len(found.kernels) == 3
    assert any("max_operators" in b["reason"] for b in found.boundaries)


def test_nothing_to_stitch() -> None:
    found = report(build(lambda emit, x, w: R.matmul(x, w), ((16, 24), F32), ((24, 32), F32)))
    assert found.kernels == [] and str(found).startswith("0 stitch op")


def test_the_module_is_left_as_it_was() -> None:
    mod = softmax(64, 1024).build()
    before = mod.script()
    report(mod)
    assert mod.script() == before


def test_symbols_from_several_places() -> None:
    n, m = symbol("n"), symbol("m")
    mod = build(lambda emit, x, b: R.exp(emit(R.add(x, b))), ((n, m, 8), F32), ((m, 8), F32))
    (kernel,) = report(mod).kernels
    assert "n" in str(kernel.bytes_read) and "m" in str(kernel.bytes_read)


def test_targets_as_strings() -> None:
    assert len(explain(softmax(4, 33).build(), "llvm").kernels) == 1
    assert "explain" in tvm_stitch.__all__
