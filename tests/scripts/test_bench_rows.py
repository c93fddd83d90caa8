# SPDX-License-Identifier: Apache-2.0
"""The benchmark of rows and transpositions. Workloads are what PyTorch computes, in one kernel each, in a table."""

from __future__ import annotations

from typing import Any

import bench_rows
import numpy as np
import pytest
import torch
import tvm

from tvm_stitch.execution.count import count_kernels
from tvm_stitch.execution.runner import Runner
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.build import build

WORKLOADS = [
    *bench_rows.workloads(bench_rows.ROWS, [64, 130], elements=520),
    bench_rows.transpose(3, 20, 33),
    bench_rows.transpose_layer_norm(3, 20, 33),
]


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_one_kernel_that_is_right(work: Any) -> None:
    inputs = work.inputs()
    mod = bench_rows.imported(work, inputs)
    for target in ("cuda -arch=sm_90", "llvm"):
        made = tvm.target.Target({"kind": "cuda", "arch": "sm_90"} if "cuda" in target else "llvm")
        assert count_kernels(mod, made, pipeline(made)).total == 1
    target = tvm.target.Target("llvm")
    arrays = [
        x.view(torch.int16).numpy().view("bfloat16") if x.dtype == torch.bfloat16 else x.numpy()
        for x in inputs
    ]
    (found,) = Runner(build(mod, target).executable, target, arrays).outputs()
    expected = work.function(*(x.double() if x.is_floating_point() else x for x in inputs))
    narrow = str(found.dtype) == "bfloat16"
    result = torch.from_numpy(np.asarray(found, "float32")).to(torch.bfloat16 if narrow else torch.float32)
    assert bench_rows.problem(result, expected) is None
    assert bench_rows.problem(result * 1.1, expected).startswith("wrong")
    assert "shape" in bench_rows.problem(result[:1], expected)


def test_bytes() -> None:
    work = bench_rows.softmax(4, 8, torch.bfloat16)
    inputs = work.inputs()
    assert work.bytes_least(inputs, work.function(*inputs)) == 2 * 4 * 8 * 2


def test_the_table_names_the_best_peer() -> None:
    rows = [
        {"workload": "a", "seconds": {"stitched": 2e-6, "inductor": 4e-6, "liger": 3e-6, "copy": 1e-6}},
        {"workload": "b", "seconds": {"inductor": 4e-6, "copy": 1e-6}},
    ]
    lines = bench_rows.table(rows, ["stitched", "inductor", "liger"]).splitlines()
    assert lines[1].split() == ["a", "2.0", "4.0", "3.0", "1.0", "50", "1.50"]
    assert lines[2].split() == ["b", "-", "4.0", "-", "1.0", "-", "-"]
    assert lines[3].split() == ["geometric", "mean", "1.50"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--cases", "sort"], "sort"), (["--columns", "0"], "0"), (["--contenders", "xla"], "xla")],
)
def test_wrong_arguments(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_rows.main(arguments)
    assert named in capsys.readouterr().err
