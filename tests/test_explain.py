# SPDX-License-Identifier: Apache-2.0
"""The report: figures right, text readable, data JSON-able, and a reason for every boundary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, symbol
from tvm_stitch import Report, StitchConfig, explain
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.cases import cases, power_broadcast_add, softmax
from tvm_stitch.testing.workloads.grid_case import GridCase

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
    text = found.verbose()
    for kernel in found.kernels:
        assert kernel.name in text and f"writes {kernel.bytes_written} B" in text
        assert all(o["operator"] in text for o in kernel.operators)


@pytest.mark.parametrize("case", grid_cases.grid_cases("test"), ids=lambda case: case.label)
def test_reports_of_reductions_across_rows_are_json(case: GridCase) -> None:
    found = report(case.build())
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    (kernel,) = found.kernels
    text = found.verbose()
    assert all(o["operator"] in text and f" {o['scheme']}" in text for o in kernel.operators)
    assert bool(kernel.phases) == (kernel.rows == "grid-wide") != bool(kernel.passes)
    for phase in kernel.phases:
        assert f"phase {phase['phase']}:" in text
        for part in phase["stages"]:
            assert f"reads {part['bytes_read']} B, writes {part['bytes_written']} B" in text
    assert kernel.bytes_read + kernel.bytes_written >= kernel.bytes_least == case.bytes_least()


def test_names_and_titles_are_strings() -> None:
    report = tvm_stitch.explain(tvm.IRModule(), "llvm")
    with pytest.raises(TypeError, match="a name must be a string, not 1"):
        report.why(1, "add")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a name is empty"):
        report.why("add", "")
    with pytest.raises(TypeError, match="title must be a string, not None"):
        report.to_html(None)  # type: ignore[arg-type]


def test_a_grid_wide_plan() -> None:
    """The gradients of layer norm: all rows in the first phase, the sums across them finished in the second."""
    (kernel,) = report(grid_cases.layer_norm_backward(4096, 768).build()).kernels
    first, second = kernel.phases
    (rows,), (columns,) = first["stages"], second["stages"]
    assert (rows["rows"], columns["rows"]) == ("4096", "768")
    assert (
        len(rows["reduces_across_rows"]) == 2
        and rows["reduces_across_rows"] == columns["finishes"] == columns["stores"]
    )
    assert sum(len(p["reduces"]) for p in rows["passes"]) == 4 and len(rows["stores"]) == 1
    across = [name for p in rows["passes"] for name in p["reduces_across_rows"]]
    assert sorted(across) == sorted(rows["reduces_across_rows"])
    launch = kernel.launch
    assert (launch["kernels"], launch["grid barriers"]) == (1, 1)
    assert launch["blocks"] == launch["blocks an SM"] * 132
    partials = 768 * rows["mapping"]["blocks"] * 4
    assert [(s["bytes"], s["holds"]) for s in kernel.scratch] == [
        (partials, [f"{name}'s partials"]) for name in rows["reduces_across_rows"]
    ]
    # x and dy and gamma are read once and dx is written, and the partial sums cross through device memory.
    size = 4096 * 768 * 4
    assert (rows["bytes_read"], rows["bytes_written"]) == (2 * size + 768 * 4, size + 2 * partials)
    assert (columns["bytes_read"], columns["bytes_written"]) == (2 * partials, 2 * 768 * 4)
    assert kernel.bytes_read == rows["bytes_read"] + columns["bytes_read"]
    assert kernel.bytes_written == rows["bytes_written"] + columns["bytes_written"]


def test_the_text_of_a_grid_wide_plan() -> None:
    text = report(grid_cases.layer_norm_backward(4096, 768).build()).verbose()
    for part in (
        "grid-wide, 2 phases", "phase 0:", "stage, 4096 rows: computes ", "; reduces across rows ",
        "; stores ", "finishes ",
        "grid barriers 1", "kernels 1", "of device memory holds ", "'s partials", "Global",
    ):  # fmt: skip
        assert part in text
    assert "tiles of columns" not in text  # of which every part has one


def test_reductions_to_one_result_are_finished_by_every_block() -> None:
    (kernel,) = report(grid_cases.cross_entropy(64, 3000).build()).kernels
    first, second = kernel.phases
    assert first["finishes"] == [] and second["finishes"] == first["stages"][0]["reduces_across_rows"] != []
    text = report(grid_cases.cross_entropy(64, 3000).build()).verbose()
    assert f"every block finishes {', '.join(second['finishes'])}" in text


def test_rows_spread_over_all_blocks() -> None:
    """One row that fits no chip: the shift's samples, then both sums in one reading, behind a barrier each."""
    (kernel,) = report(grid_cases.deviation_sum(4096, 4096).build()).kernels
    assert (kernel.rows, kernel.phases) == ("1", [])
    assert kernel.mapping["exchange"] == "device memory and a grid barrier"
    assert kernel.launch["blocks"] == kernel.mapping["blocks a row"] and kernel.launch["grid barriers"] == 2
    reduces = [o for o in kernel.operators if o["class"] == "reduce"]
    assert [o["scheme"] for o in reduces] == ["Global"] * 3
    assert [s["bytes"] for s in kernel.scratch] == [4 * kernel.launch["blocks"]] * 3
    assert all(len(s["holds"]) == 1 for s in kernel.scratch)


def test_rows_spread_over_a_cluster() -> None:
    (kernel,) = report(softmax(64, 100_000).build()).kernels
    assert kernel.mapping["exchange"] == "distributed shared memory"
    assert kernel.launch["cluster"] == kernel.mapping["blocks a row"] > 1
    assert (kernel.launch["grid barriers"], kernel.scratch) == (0, [])
    reduces = [o for o in kernel.operators if o["class"] == "reduce"]
    assert [o["scheme"] for o in reduces] == ["Cluster", "Cluster"]


def test_a_sum_beside_its_warps_maximum() -> None:
    told = "summed beside their warp's maximum"
    (shared,) = report(softmax(64, 30000).build()).kernels
    assert shared.mapping["exchange"] == "distributed shared memory" and shared.mapping[told] == ["lv2_red"]
    (whole,) = report(softmax(1, 1_500_000).build()).kernels
    assert whole.mapping[told] and whole.launch["grid barriers"] == 1
    (alone,) = report(softmax(64, 1024).build()).kernels
    assert told not in alone.mapping  # its exponential is kept


def test_the_text() -> None:
    text = report(softmax(64, 1024).build()).verbose()
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
    assert (kernel.rows, str(kernel.bytes_read), str(kernel.bytes_least)) == (
        "rows",
        "rows * 4096",
        "rows * 8192",
    )


def test_symbolic_sizes_are_sums_of_different_terms() -> None:
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.reshape(emit(R.concat([x, x], 1)), (n * (m * 2), 64)))
        return R.nn.softmax(emit(R.matmul(emit(R.nn.softmax(y, -1)), w)), -1)

    found = report(build(body, ((n, m, 64), F32), ((64, 64), F32)), "llvm")
    assert "T.int64" not in str(found) + found.verbose()
    assert re.findall(r"; ([^;]*) moved", str(found)) == ["n * m * 2816 + 16384 B"]
    assert [kernel.rows for kernel in found.kernels] == ["n * m * 2"] * 2
    assert "<n * m * 2,64>" in found.verbose()


def test_every_boundary_has_a_reason() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.matmul(emit(R.exp(x)), w))
        z = emit(R.subtract(y, emit(R.max(y, -1, True))))
        return [R.sum(z, 0)]

    found = report(build(body, ((16, 24), F32), ((24, 32), F32)), "llvm", horizontal_fusion=False)
    reasons = {(b["producer"], b["consumer"]): b["reason"] for b in found.boundaries}
    assert reasons["matmul", "max"] == "compute-intensive"
    assert "16 and 32 rows" in reasons["subtract", "sum"]
    assert "Boundaries:" in found.verbose() and "16 and 32 rows" in found.verbose()
    assert "Boundaries, by reason" in str(found) and "16 and 32 rows" in str(found)


def test_the_limits_are_named() -> None:
    def body(emit: Any, x: Any) -> Any:
        for op in (R.mean, R.sum, R.max):
            x = emit(R.subtract(x, emit(op(x, -1, True))))
        return [x]

    found = report(build(body, ((16, 24), F32)), max_operators=3)
    assert len(found.kernels) == 3
    assert any("max_operators" in b["reason"] for b in found.boundaries)


def test_nothing_to_stitch() -> None:
    found = report(build(lambda emit, x, w: R.matmul(x, w), ((16, 24), F32), ((24, 32), F32)))
    assert found.kernels == [] and found.verbose().startswith("0 stitch op")
    assert "1 kernel a call: 0 stitched, 1 around a compute-intensive operator" in str(found)


def test_functions_of_a_module_are_told_apart() -> None:
    """And what TVM makes of them is the sum over the same functions, whether one is called main or none."""
    builder = relax.BlockBuilder()
    for name, rows in (("decode", 4), ("prefill", 64)):
        x = relax.Var("x", relax.TensorType((rows, 256), "float32"))
        with builder.function(name, [x]):
            with builder.dataflow():
                y = builder.emit(R.nn.softmax(R.multiply(x, x)))
                out = builder.emit_output(R.nn.softmax(R.matmul(y, R.permute_dims(y))) if rows > 4 else y)
            builder.emit_func_output(out)
    found = explain(builder.get(), "llvm")
    assert [(k.caller, k.kind) for k in found.completed().kernels] == [
        ("decode", "stitched"), ("prefill", "stitched"), ("prefill", "compute"), ("prefill", "stitched"),
    ]  # fmt: skip
    lines = str(found).splitlines()
    assert lines[1].startswith("4 kernels in all 2 functions: 3 stitched (3 different), 1 around")
    assert lines[2] == "  a call of decode: 1 kernel; 8.19 kB moved"
    assert lines[3].startswith("  a call of prefill: 3 kernels; ")
    model = found.completed()
    assert model.stitched.kernels == 4 and model.stock is not None
    assert model.stock.kernels == len(model.stock_kernels) == 7


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


def test_a_report_in_a_session_is_its_summary() -> None:
    found = report(softmax(64, 1024).build())
    assert repr(found) == str(found)


def test_the_code_of_a_kernel() -> None:
    found = report(softmax(64, 1024).build())
    (kernel,) = found.kernels
    assert "__global__" in found.code(kernel.name) and kernel.name in found.code(kernel.name)
    with pytest.raises(ValueError, match=f"no kernel 'other' whose source is known; there are {kernel.name}"):
        found.code("other")


def test_symbolic_rows_are_told_as_they_are_read() -> None:
    mod = build(lambda emit, x: R.nn.softmax(x, -1), ((symbol("batch"), 199, 64), "float32"))
    report = tvm_stitch.explain(mod, "llvm")
    assert report.kernels[0].rows == "batch * 199"
    assert "batch * 199 rows" in str(report)
    assert "T.int64" not in report.verbose() + json.dumps(report.to_dict())
