# SPDX-License-Identifier: Apache-2.0
"""Weights arrive in a ring: for steps fewer and more than it holds, several tasks, idle blocks and odd extents."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.random.graphs import emulated_target
from tests.choices import change_choices
from tests.codegen.gpu.matrix.checked import check
from tests.graph.helpers import emulated
from tests.relax.few_rows import models
from tests.relax.few_rows.test_chains import block, in_float64
from tvm_stitch import explain

SHARES = "tvm_stitch.plan.rows.matrix._shares"


@pytest.mark.parametrize(("chunks", "steps"), [(1, 1), (1, 2), (1, 3), (1, 7), (2, 4), (4, 1)])
def test_steps_fewer_and_more_than_the_ring_holds(
    chunks: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk has 128 columns. Pairs of chunks become two steps."""
    change_choices(monkeypatch, ring_steps=3)
    monkeypatch.setattr(SHARES, lambda *sizes: (1, chunks, steps))
    text = check("4 bits of 32", 2, 20, 128 * chunks * steps, 32, "float16")
    halves = 1 if chunks == 1 else 2
    assert f"a ring of {min(3, max(2, halves * steps))} steps" in text


def test_chunks_past_the_end_of_a_row_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four warps of three steps share nine chunks."""
    change_choices(monkeypatch, ring_steps=3)
    monkeypatch.setattr(SHARES, lambda *sizes: (4, 1, 3))
    assert "a ring of 3 steps" in check("4 bits of 32", 1, 12, 128 * 9, 32, "bfloat16")


@pytest.mark.parametrize("name", ["8 bits of 32", "4 bits of 8", "2 bits of 32"])
@pytest.mark.parametrize("columns", [6, 131])
def test_forms_and_odd_numbers_of_rows(name: str, columns: int) -> None:
    assert "a ring of" in check(name, 3, columns, 1536, 128, "bfloat16")


@pytest.mark.parametrize("steps", [1, 2])
def test_blocks_of_several_tasks_copy_for_the_next_one(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHARES, lambda *sizes: (4, 1, steps))
    case = 1, 9_000, 128 * 4 * steps, 4, "float16"
    mod = models.layer(*case, group=32)
    arrays, wanted = models.drawn(*case, group=32)
    (found,) = emulated(mod, *arrays)
    assert np.abs(found.astype("float64") - wanted).max() <= 2e-3 * np.abs(wanted).max()
    assert "a ring of" in explain(mod, emulated_target()).verbose()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_phases_of_float_weights_with_idle_blocks(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four products of different sizes in one kernel: most blocks have no rows of the smaller ones."""
    change_choices(monkeypatch, ring_bits=16)
    mod, rng = block(256, 512, dtype, 4), np.random.default_rng(0)
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    arrays = [(rng.standard_normal(s) * (s[-1] ** -0.5 if len(s) > 1 else 1)).astype(dtype) for s in shapes]
    found = emulated(mod, *arrays)
    tolerance = 4e-3 if dtype == "float16" else 3e-2
    for result, wanted in zip(found, in_float64(arrays)):
        assert np.abs(result.astype("float64") - wanted).max() <= tolerance * np.abs(wanted).max()
    assert explain(mod, emulated_target()).verbose().count("a ring of") >= 4
