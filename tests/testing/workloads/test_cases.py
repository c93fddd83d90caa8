# SPDX-License-Identifier: Apache-2.0
"""The named workloads: right through stock TVM, sized as stated, symbolic on request."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from stitch_testing.reference.relax import evaluate, mismatches
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.testing.workloads import cases
from tvm_stitch.testing.workloads.case import Case

SMALL = [case for case in cases.cases("test") if not case.matmuls]


def run_stock(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    result = vm["main"](*map(tvm.runtime.tensor, inputs))
    return [tensor.numpy() for tensor in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_stock_llvm_agrees_with_the_reference(case: Case) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(1))
    outputs = run_stock(mod, inputs)
    assert mismatches(outputs, evaluate(mod, inputs), case.tolerance) == []
    assert [(out.shape, str(out.dtype)) for out in outputs] == [(s.shape, s.dtype) for s in case.results]
    assert [(x.shape, str(x.dtype)) for x in inputs] == [(s.shape, s.dtype) for s in case.arguments]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_written_as_primitives(case: Case) -> None:
    names: list[str] = []
    relax.analysis.post_order_visit(
        case.build()["main"], lambda e: names.append(e.op.name) if isinstance(e, relax.Call) else None
    )
    assert names and not any(name.startswith("relax.nn") for name in names)


@pytest.mark.parametrize("case", cases.cases("test"), ids=lambda case: case.name)
def test_recorded_stock_kernels(case: Case) -> None:
    counted = count_kernels(case.build(), "llvm")
    assert (counted.memory_intensive, counted.compute_intensive) == (case.stock_kernels, case.matmuls)


def test_symbolic_rows_accept_any_size() -> None:
    mod = cases.add_layer_norm_gelu(4, 32, symbolic=True).build()
    for rows in (1, 5):
        case = cases.add_layer_norm_gelu(rows, 32)
        inputs = case.inputs(np.random.default_rng(rows))
        assert mismatches(run_stock(mod, inputs), evaluate(mod, inputs), case.tolerance) == []


def test_symbolic_leaves_vectors_static_when_extents_coincide() -> None:
    function = cases.layer_norm(16, 16, symbolic=True).build()["main"]
    assert [str(param.ty.shape) for param in function.params] == [
        "R.shape([rows, 16])",
        "R.shape([16])",
        "R.shape([16])",
    ]


def test_bytes_least_counts_inputs_and_outputs_once() -> None:
    assert cases.softmax(8, 16).bytes_least() == 2 * 8 * 16 * 4
    assert cases.rms_norm_quantize(4, 8).bytes_least() == (3 * 4 * 8 + 8) * 2 + 4 * 8 + 4 * 4


def test_scales_share_their_names() -> None:
    names = {scale: [case.name for case in cases.cases(scale)] for scale in ("test", "cpu", "gpu")}
    assert names["test"] == names["cpu"] == names["gpu"] and len(set(names["test"])) == 12
    assert all(4e6 <= case.bytes_least() <= 16e6 for case in cases.cases("cpu"))
    with pytest.raises(ValueError, match="choose 'test', 'cpu' or 'gpu'"):
        cases.cases("huge")
