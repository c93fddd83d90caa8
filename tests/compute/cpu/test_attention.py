# SPDX-License-Identifier: Apache-2.0
"""Attention of a CPU in one kernel against float64: odd shapes, masks, symbolic extents, several vector lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch.relax
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tests.choices import CHOICES
from tests.compute.attention_modules import calling, check_causal, described
from tests.graph.helpers import symbol
from tvm_stitch.compute.attention import Attention, Operand
from tvm_stitch.compute.cpu.attention import check, cpu_attention
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.support.failures import Refusal

FLAGS = open("/proc/cpuinfo").read()
TARGETS = [
    tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    for cpu, flag in (("x86-64", "sse2"), ("haswell", "avx2"), ("skylake-avx512", "avx512dq"))
    if flag in FLAGS
]
CASES = [
    *(Case(1, 2, 33, 45, size, "float32") for size in (1, 4, 7, 20, 33, 64, 80)),
    Case(3, 1, 16, 1, 8, "float32"),
    Case(1, 1, 65, 300, 16, "float32"),  # several blocks of keys
    Case(1, 1, 300, 129, 12, "float32", flat=True),  # several panels of a task
    Case(1, 40, 70, 65, 8, "float32", mask=(1, 1, 1, 65)),
    Case(1, 2, 130, 70, 24, "float32", mask=(2, 1, 70), flat=True),
    Case(2, 1, 65, 65, 16, "float32", mask=(1, 1, 65, 65), safe=True),
    Case(1, 1, 5, 66, 16, "float32", mask=(1, 1, 66), safe=True),
    Case(2, 2, 20, 0, 16, "float32"),
    Case(1, 2, 20, 600, 16, "float32", mask=(2, 20, 600), safe=True),
]


def run(mod: tvm.IRModule, target: tvm.target.Target, arrays: list[np.ndarray]) -> np.ndarray:
    executable = tvm.compile(mod, target, relax_pipeline=tvm_stitch.relax.pipeline(target))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


def close(case: Case, found: np.ndarray, arrays: list[np.ndarray]) -> None:
    wanted = reference(case, arrays)
    assert found.shape == wanted.shape
    atol = 3e-6 * max(1e-30, abs(wanted).max(initial=0))
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.attrs["mcpu"]))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case, target: tvm.target.Target) -> None:
    arrays = inputs(case, np.random.default_rng())
    assert count_kernels(module(case), target, tvm_stitch.relax.pipeline(target)).total == 1
    close(case, run(module(case), target, arrays), arrays)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.attrs["mcpu"]))
def test_symbolic_extents(target: tvm.target.Target) -> None:
    """One kernel for all sizes, 0 among them."""
    b, m, n = (symbol(name) for name in "bmn")
    case = Case(b, 2, m, n, 16, "float32", mask=(b, 1, 1, n), safe=True)
    recorder = Recorder()
    pipeline = tvm_stitch.relax.pipeline(target, None, recorder)
    vm = relax.VirtualMachine(tvm.compile(module(case), target, relax_pipeline=pipeline), tvm.cpu())
    assert [how.split(":")[0] for how in recorder.computed.values()] == ["our kernel"]
    for sizes in ((2, 17, 33), (1, 1, 1), (3, 70, 65), (1, 200, 150), (0, 5, 7), (2, 0, 3), (1, 5, 0)):
        found = replace(
            case, batch=sizes[0], queries=sizes[1], keys=sizes[2], mask=(sizes[0], 1, 1, sizes[2])
        )
        shapes = [(found.batch, k, 2, 16) for k in sizes[1:]]
        arrays = (
            inputs(found, np.random.default_rng())
            if sizes[2]
            else [np.zeros(s, "float32") for s in (*shapes, shapes[1], found.mask or ())]
        )
        close(found, vm["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy(), arrays)


@pytest.mark.parametrize(
    ("queries", "keys", "offset"),
    [(70, 70, 0), (20, 70, 50), (70, 20, -50), (33, 65, 0), (300, 300, 3)],
)
def test_causal(queries: int, keys: int, offset: int) -> None:
    for heads in (2, 40):  # with one panel of queries in a task, and with several
        check_causal(Case(1, heads, queries, keys, 16, "float32"), offset, run_kernel_of, 3e-6)


def test_what_is_not_finite() -> None:
    """NaN in a query, a key's row or a value goes where the products take it, and nowhere else."""
    case = Case(1, 1, 20, 70, 16, "float32")
    arrays = inputs(case, np.random.default_rng(0))
    arrays[0][0, 3, 0, 5] = np.nan
    arrays[2][0, 69, 0, 7] = np.inf
    found = run_kernel_of(described(case), arrays)[0, :, 0]
    assert np.isnan(found[3]).all() and np.isposinf(np.delete(found, 3, 0)[:, 7]).all()
    assert np.isfinite(np.delete(np.delete(found, 3, 0), 7, 1)).all()


def test_large_scores_do_not_overflow() -> None:
    """The greatest score of later blocks is far above that of the first, and the other way round."""
    case = Case(1, 1, 40, 256, 16, "float32")
    for place in (0, 200):
        arrays = inputs(case, np.random.default_rng(1))
        arrays[0] = np.abs(arrays[0])
        arrays[1][:, place] = 60.0
        close(case, run_kernel_of(described(case), arrays), arrays)


def run_kernel_of(attention: Attention, arrays: list[np.ndarray]) -> np.ndarray:
    target = TARGETS[-1]
    return run(calling(cpu_attention(attention, [], target, CHOICES), attention), target, arrays)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 513}, "heads of 513 elements"),
        *(({"scale": scale}, "scale is") for scale in (0.0, 1e-60, float("nan"), float("inf"))),
        ({"q": Operand((1,), "float64", 0, (0, 0, 0, 0))}, "float32 and float64"),
    ],
)
def test_refusals(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        check(replace(described(Case(1, 2, 20, 20, 16, "float32")), **change), CHOICES)


@pytest.mark.parametrize(
    "case", [Case(1, 3, 1, 70, 16, "float32"), Case(2, 1, 2, 300, 24, "float32")], ids=str
)
def test_one_query_is_enough(case: Case) -> None:
    arrays = inputs(case, np.random.default_rng())
    assert count_kernels(module(case), TARGETS[-1], tvm_stitch.relax.pipeline(TARGETS[-1])).total == 1
    close(case, run(module(case), TARGETS[-1], arrays), arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 2, 33, 45, 20), (2, 1, 3, 300, 16)], ids=str)
def test_half_types_are_computed_in_float32(dtype: str, shape: tuple[int, int, int, int, int]) -> None:
    """The only roundings are those of the result."""
    case = Case(*shape, dtype, mask=(1, 1, shape[2], shape[3]))
    arrays = inputs(case, np.random.default_rng(0))
    found = run(module(case), TARGETS[-1], arrays).astype("float64")
    wanted = reference(case, arrays)
    step = 2**-8 if dtype == "bfloat16" else 2**-11
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1.01 * step * np.abs(wanted).max()
    assert count_kernels(module(case), TARGETS[-1], tvm_stitch.relax.pipeline(TARGETS[-1])).total == 1
