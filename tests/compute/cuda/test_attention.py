# SPDX-License-Identifier: Apache-2.0
"""The attention kernel against float64, in the emulator: odd shapes, dtypes, masks, symbolic extents."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_stitch.relax
from cuda_emulator import lower, run_cuda, run_lowered
from stitch_testing.random.graphs import emulated_target
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tests.compute.attention_modules import calling, check_causal, described
from tests.graph.helpers import symbol
from tvm_stitch.compute.attention import Attention, Operand
from tvm_stitch.compute.cuda.attention import check, cuda_attention, is_aligned
from tvm_stitch.device import GPUS, DeviceModel
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.support.failures import Refusal

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2, "float32": 2e-6}
TARGET = emulated_target()
RNG = np.random.default_rng()

CASES = [
    *(Case(1, 2, 33, 45, size) for size in (1, 8, 16, 20, 40, 64, 80)),
    Case(1, 1, 65, 66, 128),
    Case(2, 1, 17, 33, 96, "bfloat16"),
    Case(3, 1, 16, 1, 8, "bfloat16"),
    Case(2, 2, 17, 130, 16, mask=(2, 1, 1, 130)),
    Case(1, 2, 130, 70, 24, mask=(2, 1, 70), flat=True),
    Case(2, 1, 65, 65, 16, mask=(1, 1, 65, 65), mask_dtype="float32", safe=True, flat=True),
    Case(1, 2, 20, 70, 33, "bfloat16", mask=(1, 1, 70), safe=True),
    Case(1, 1, 640, 40, 16, flat=True),  # two tiles a warp
    Case(2, 2, 20, 0, 16),
    *(Case(1, 2, 33, 45, size, "float32") for size in (1, 4, 8, 20, 32, 33, 40, 64, 65, 80)),
    Case(1, 1, 65, 66, 128, "float32"),
    Case(3, 1, 16, 1, 8, "float32"),
    Case(1, 1, 70, 130, 100, "float32", mask=(1, 1, 1, 130), flat=True),
    Case(1, 2, 130, 70, 24, "float32", mask=(2, 1, 70), flat=True),
    Case(2, 1, 65, 65, 16, "float32", mask=(1, 1, 65, 65), safe=True),
    Case(2, 2, 20, 0, 16, "float32"),
]


def with_shared(size: int) -> DeviceModel:
    """Return a GPU whose blocks have so many bytes of shared memory."""
    return replace(GPUS["h200"], shared_per_block=size)


def close(case: Case, found: np.ndarray, arrays: list[np.ndarray]) -> None:
    wanted = reference(case, arrays)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(
        found.astype("float64"),
        wanted,
        rtol=0,
        atol=TOLERANCE[case.dtype] * max(1e-30, abs(wanted).max(initial=0)),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: Case) -> None:
    arrays = inputs(case, np.random.default_rng())
    pipeline = tvm_stitch.relax.pipeline(TARGET)
    run = run_cuda(
        module(case), arrays, relax_pipeline=pipeline, target=TARGET, tir_pipeline=LOWERING
    ).check()
    assert len(run.launches) == 1
    close(case, run.outputs[0], arrays)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_symbolic_extents(dtype: str) -> None:
    """One kernel for all sizes, 0 among them."""
    b, m, n = (symbol(name) for name in "bmn")
    case = Case(b, 2, m, n, 16, dtype, mask=(b, 1, 1, n), safe=True)
    recorder = Recorder()
    lowered = lower(module(case), TARGET, tvm_stitch.relax.pipeline(TARGET, None, recorder), LOWERING)
    assert [how.split(":")[0] for how in recorder.computed.values()] == ["our kernel"]
    for sizes in ((2, 17, 33), (1, 1, 1), (3, 70, 65), (0, 5, 7), (2, 0, 3), (1, 5, 0)):
        found = replace(
            case, batch=sizes[0], queries=sizes[1], keys=sizes[2], mask=(sizes[0], 1, 1, sizes[2])
        )
        arrays = inputs(found, np.random.default_rng()) if sizes[2] else _without_keys(found)
        run = run_lowered(lowered, arrays).check()
        close(found, run.outputs[0], arrays)


def _without_keys(case: Case) -> list[np.ndarray]:
    shapes = [(case.batch, n, case.heads, case.size) for n in (case.queries, 0, 0)]
    return [np.zeros(s, case.dtype) for s in (*shapes, case.mask or ())]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(70, 70, 0), (20, 70, 50), (70, 20, -50), (33, 65, 0)]
)
def test_causal(queries: int, keys: int, offset: int, dtype: str) -> None:
    check_causal(Case(1, 2, queries, keys, 16, dtype), offset, run_kernel_of, 5e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_not_finite(dtype: str) -> None:
    """NaN in a query, a key's row or a value goes where the products take it, and nowhere else."""
    case = Case(1, 1, 20, 70, 16, dtype)
    arrays = inputs(case, np.random.default_rng(0))
    arrays[0][0, 3, 0, 5] = np.nan
    arrays[2][0, 69, 0, 7] = np.inf
    found = run_kernel_of(described(case), arrays)[0, :, 0]
    assert np.isnan(found[3]).all() and np.isposinf(np.delete(found, 3, 0)[:, 7]).all()
    assert np.isfinite(np.delete(np.delete(found, 3, 0), 7, 1)).all()


def run_kernel_of(attention: Attention, arrays: list[np.ndarray]) -> np.ndarray:
    mod = calling(cuda_attention(attention, [], with_shared(1 << 17)), attention)
    pipeline = tvm_stitch.relax.pipeline(TARGET)
    return (
        run_cuda(mod, arrays, relax_pipeline=pipeline, target=TARGET, tir_pipeline=LOWERING)
        .check()
        .outputs[0]
    )


@pytest.mark.parametrize(
    ("case", "blocks"), [(Case(2, 2, 33, 33, 64), 4), (Case(2, 2, 33, 33, 64, "float32"), 3)]
)
def test_the_compiler_is_told_how_many_blocks_share_registers(case: Case, blocks: int) -> None:
    executable = tvm.compile(module(case), TARGET, relax_pipeline=tvm_stitch.relax.pipeline(TARGET))
    found, left = "", [executable.mod]
    while left:
        built = left.pop()
        left.extend(built.imports)
        found += str(built.inspect_source()) if built.kind == "cuda" else ""
    assert f"__launch_bounds__(128, {blocks}) attention_kernel" in found


def test_alignment_is_proved() -> None:
    n = symbol()
    plain = described(Case(1, 3, 20, 30, 40))
    assert is_aligned(plain)
    assert not is_aligned(described(Case(1, 3, 20, 30, 20)))
    assert is_aligned(
        replace(plain, q=replace(plain.q, strides=(0, n * tvm.tirx.IntImm("int64", 8), 40, 120)))
    )
    assert not is_aligned(replace(plain, q=replace(plain.q, strides=(0, n, 40, 120))))
    assert not is_aligned(replace(plain, k=replace(plain.k, offset=4)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 136}, "heads of 136 elements"),
        *(({"scale": scale}, "scale is") for scale in (-1.0, 0.0, 1e-60, float("nan"), float("inf"))),
        ({"q": Operand((1,), "float32", 0, (0, 0, 0, 0))}, "float16 and float32"),
        ({"mask": Operand((1,), "float64", 0, (0, 0, 0, 0, 0))}, "a type that the kernel does not have"),
    ],
)
def test_refusals(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        check(replace(described(Case(1, 2, 20, 20, 16)), **change), 1 << 17)


def test_shared_memory_bounds_tiles() -> None:
    """Two tiles a warp where they fit, else one, else none."""
    large = described(Case(1, 1, 1024, 64, 128))
    both, one = 6 * 64 * 136 * 2, 5 * 64 * 136 * 2

    def blocks(shared_bytes: int) -> int:
        made = cuda_attention(large, [], with_shared(shared_bytes))
        found = re.search(r'"blockIdx.x", T.int64\((\d+)\)', made.script())
        return int(found[1]) if found else 0

    assert (blocks(both), blocks(both - 1), blocks(one)) == (8, 16, 16)
    with pytest.raises(Refusal, match="shared memory"):
        cuda_attention(large, [], with_shared(one - 1))


@pytest.mark.parametrize("size", [1, 20, 32, 33, 64, 65, 80, 100, 128])
def test_shared_memory_of_float32_is_what_the_kernel_lays_out(size: int) -> None:
    """The last line of weights ends where the allocation does."""
    run = run_kernel_of(
        described(Case(1, 1, 64, 70, size, "float32")), inputs(Case(1, 1, 64, 70, size, "float32"), RNG)
    )
    assert np.isfinite(run).all()
    rows = (64 + (64 if size <= 64 else 32)) * 4 * ((size + 3) // 4 | 1)
    keys = 64 if size <= 64 else 32
    needed = rows + keys * -(-size // 32) * 32 + 64 * (keys + 4)
    check(described(Case(1, 1, 64, 70, size, "float32")), 4 * needed)
    with pytest.raises(Refusal, match="shared memory"):
        check(described(Case(1, 1, 64, 70, size, "float32")), 4 * needed - 1)
