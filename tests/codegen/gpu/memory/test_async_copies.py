# SPDX-License-Identifier: Apache-2.0
"""Inputs that are kept in shared memory and copied there in the background: kernels that do so are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from cuda_emulator import lower, run_lowered
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import H200, build, graph
from tvm_stitch.device import GPUS
from tvm_stitch.plan import in_block
from tvm_stitch.plan.gpu.mapping import RowMapping, Storage
from tvm_stitch.plan.gpu.tile import kept_in_shared, read_again_from_cache
from tvm_stitch.plan.iteration.loops import Keep, schedule
from tvm_stitch.plan.rows.candidate import Candidate
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

TARGET = emulated_target()
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}


def softmax(emit: Any, x: Any, w: Any) -> Any:
    return emit(R.nn.softmax(emit(R.multiply(x, w))))


def layer_norm(emit: Any, x: Any, w: Any) -> Any:
    return emit(R.nn.layer_norm(x, w, w, axes=[-1]))


def two_inputs(emit: Any, x: Any, y: Any) -> Any:
    return emit(R.nn.softmax(emit(R.add(x, y))))


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Keeps every row's inputs in shared memory, a row in so many blocks of so many threads."""

    def chosen(splits: int, threads: int) -> None:
        def propose(alignment: Any, device: Any, _config: Any) -> Candidate:
            sched = schedule(alignment, Keep.LOADS)
            mapping = read_again_from_cache(alignment, sched, device, splits, threads)
            kept = kept_in_shared(sched, replace(mapping, blocks_per_sm=0), device)
            return Candidate(alignment, sched, kept, seconds=0.0)

        monkeypatch.setattr(in_block, "STRATEGIES", (propose,))

    return chosen


def checked(body: Callable[..., Any], *specs: Any) -> tuple[RowMapping, str]:
    """Return the mapping of the one kernel and its code, and check its results."""
    mod = build(body, *specs)
    rng = np.random.default_rng()
    inputs = [rng.standard_normal(shape).astype(np.dtype(dtype)) for shape, dtype in specs]
    recorder = Recorder()
    artifact = lower(mod, TARGET, pipeline(TARGET, None, recorder), LOWERING)
    run = run_lowered(artifact, inputs).check()
    assert len(run.launches) == 1
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []
    (plan,) = recorder.plans.values()
    assert plan.stage.row_mapping.storage is Storage.SHARED
    return plan.stage.row_mapping, artifact.source


@pytest.mark.parametrize("body", [softmax, layer_norm])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("splits", "threads", "columns"),
    [(1, 64, 1000), (1, 128, 4096), (2, 32, 776), (4, 64, 3000), (8, 64, 5008)],
)
def test_copied_rows(
    share: Callable[[int, int], None], body: Any, dtype: str, splits: int, threads: int, columns: int
) -> None:
    share(splits, threads)
    mapping, source = checked(body, ((3, columns), dtype), ((columns,), dtype))
    assert mapping.async_copies and mapping.row_splits == splits
    assert "cp.async.cg" in source and "cp.async.wait_all" in source


@pytest.mark.parametrize(("columns", "copied"), [(1002, True), (1001, False)])
def test_rows_of_half_types_that_begin_anywhere(
    share: Callable[[int, int], None], columns: int, copied: bool
) -> None:
    """Two elements are the least that is copied: single ones go through registers."""
    share(1, 64)
    _, source = checked(softmax, ((5, columns), "float16"), ((columns,), "float16"))
    assert ("cp.async.ca" in source) == copied


def test_two_inputs_are_kept(share: Callable[[int, int], None]) -> None:
    share(2, 64)
    spec = ((4, 1111), "float32")
    mapping, source = checked(two_inputs, spec, spec)
    assert mapping.async_copies and source.count("cp.async.wait_all") == 1


def test_vectors_of_several_copies(share: Callable[[int, int], None]) -> None:
    """Eight elements of float16 are one copy, of float32 two."""

    def body(emit: Any, x: Any, y: Any) -> Any:
        return emit(R.nn.softmax(emit(R.add(emit(R.astype(x, "float32")), y))))

    share(1, 64)
    mapping, _ = checked(body, ((4, 2048), "float16"), ((4, 2048), "float32"))
    assert mapping.async_copies and mapping.of(2048).vector == 8


@pytest.mark.parametrize(("device", "copied"), [(GPUS["a100"], True), (GPUS["t4"], False), (H200, True)])
def test_devices_that_copy(share: Callable[[int, int], None], device: Any, copied: bool) -> None:
    share(1, 256)
    kernel_plan = in_block.plan_in_block(
        graph(build(softmax, ((64, 8192), "float32"), ((8192,), "float32"))), device
    )
    assert kernel_plan.stage.row_mapping.async_copies == copied
