# SPDX-License-Identifier: Apache-2.0
"""Constant masks of attention: those that hide later keys are not read, others are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tests.relax.attention.attention_graphs import TARGET, fused, kernels
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.target import resolve_target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("least", [-1.0, 1.0])
def test_masks_of_the_least_number(dtype: str, least: float) -> None:
    """Finite, however great: a query of which all keys have it sees all alike."""
    case = Case(1, 2, 16, 20, 16, "bfloat16", (1, 1, 16, 20), dtype)
    arrays = inputs(case, np.random.default_rng())
    arrays[3] = np.zeros((1, 1, 16, 20), arrays[3].dtype)
    arrays[3][..., 7, :] = least * float(ml_dtypes.finfo(arrays[3].dtype).max)
    run = run_cuda(
        module(case),
        arrays,
        relax_pipeline=tvm_stitch.relax.pipeline(TARGET),
        target=TARGET,
        tir_pipeline=LOWERING,
    ).check()
    np.testing.assert_allclose(run.outputs[0].astype("float64"), reference(case, arrays), rtol=0, atol=3e-2)


def hiding(rows: int, columns: int, seen: int, hides: float = -np.inf) -> np.ndarray:
    """Return a mask by which the first query sees ``seen`` keys, and each other one more than the query before."""
    return np.where(np.tri(rows, columns, seen - 1, dtype=bool), 0, hides).astype("float32")


def with_mask(case: Case, mask: np.ndarray) -> tvm.IRModule:
    return relax.transform.BindParams("main", {"mask": tvm.runtime.tensor(mask.astype(case.dtype))})(
        module(case)
    )


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "seen"), [(20, 20, 1), (20, 24, 5), (20, 16, 1), (20, 20, 20), (20, 20, 3)]
)
def test_a_constant_mask_that_hides_later_keys_is_not_read(
    queries: int, keys: int, seen: int, safe: bool
) -> None:
    case = Case(2, 3, queries, keys, 16, "float32", (1, 1, queries, keys), safe=safe)
    mask = hiding(queries, keys, seen).reshape(case.mask or ())
    mod, target = with_mask(case, mask), resolve_target("native")
    made, told = fused(mod, target)
    assert kernels(made) == 1 and next(iter(told.values())).endswith("keys, causal")
    arrays = [*inputs(case, np.random.default_rng(1))[:3], mask]
    executable = tvm.compile(mod, target, relax_pipeline=tvm_stitch.relax.pipeline(target))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays[:3])).numpy()
    np.testing.assert_allclose(found, reference(case, arrays), rtol=0, atol=1e-5)


def changed_mask(place: tuple[int, int], value: float) -> np.ndarray:
    mask = hiding(20, 20, 1)
    mask[place] = value
    return mask


@pytest.mark.parametrize(
    "mask",
    [
        hiding(20, 20, 0),  # a query that sees no key
        hiding(20, 20, 1, np.finfo("float32").min),
        changed_mask((7, 3), 0.5),
        changed_mask((7, 3), -np.inf),
        changed_mask((7, 9), 0),
        np.repeat(hiding(20, 20, 1)[None], 3, 0),
    ],
    ids=["none", "finite", "another number", "a hole", "a later key", "of heads"],
)
def test_other_constant_masks_are_read(mask: np.ndarray) -> None:
    shape = (1, *([1] * (3 - mask.ndim)), *mask.shape)
    case = Case(2, 3, 20, 20, 16, "float32", shape)
    made, told = fused(with_mask(case, mask.reshape(shape)), resolve_target("native"))
    assert kernels(made) == 1 and next(iter(told.values())).endswith("with a mask")
