# SPDX-License-Identifier: Apache-2.0
"""Early loads: inputs that are loaded before the reductions that their readers wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import H200, build, plan, symbol
from tests.plan.gpu.test_workspace import mapped
from tvm_stitch.plan.gpu.early_loads import with_early_loads
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction, Storage
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.verify import problems

F32 = "float32"


def norm(rows: Any, columns: int = 768, dtype: str = F32) -> tvm.IRModule:
    """Return a layer norm of a sum, with a residual that is added behind it."""

    def body(emit: Any, x: Any, bias: Any, scale: Any, offset: Any, residual: Any) -> list[Any]:
        y = emit(R.nn.layer_norm(emit(R.add(x, bias)), scale, offset, axes=[-1]))
        return [R.add(y, residual)]

    of_row, of_all = ((columns,), dtype), ((rows, columns), dtype)
    return build(body, of_all, of_row, of_row, of_row, of_all)


def early(mod: tvm.IRModule, device: Any = H200) -> list[str]:
    kernel_plan = plan(mod, device)
    assert problems(kernel_plan) == []
    return [tensor.name for tensor, _ in kernel_plan.stage.early]


def test_what_follows_a_reduction_is_loaded_before_it() -> None:
    assert early(norm(197)) == ["x2", "x3", "x4"]


def test_what_is_read_before_as_well_is_not() -> None:
    def body(emit: Any, x: Any, scale: Any) -> list[Any]:
        y = emit(R.nn.softmax(emit(R.multiply(x, scale))))
        return [R.multiply(y, scale)]

    assert early(build(body, ((197, 768), F32), ((768,), F32))) == []


def test_where_blocks_do_not_run_at_once_others_hide_the_time() -> None:
    most = H200.sms * H200.threads_per_sm // plan(norm(197)).stage.row_mapping.threads
    assert early(norm(most)) and not early(norm(most + 1))
    assert not early(norm(197), replace(H200, name="slice", sms=1))


@pytest.mark.parametrize("rows", [symbol("n"), 197])
def test_symbolic_rows_and_flat_domains_have_none(rows: Any) -> None:
    mod = norm(rows) if not isinstance(rows, int) else build(lambda emit, x: [R.exp(x)], ((rows,), F32))
    assert early(mod) == []


def test_as_many_as_registers_allow() -> None:
    stage = plan(norm(4, 32768)).stage
    mapping = replace(stage.row_mapping, threads=256, row_splits=1, exchange=CrossBlockReduction.NONE)
    (columns,) = stage.schedule.spaces

    def held(chunks: int, blocks_per_sm: int) -> int:
        m = replace(mapping.of(columns), chunks=chunks)
        wide = replace(mapping, columns=type(mapping.columns)([(columns, m)]), blocks_per_sm=blocks_per_sm)
        return len(with_early_loads(replace(stage, mapping=wide, early=()), H200).early)

    for blocks_per_sm in (0, 1, 4):
        counts = [held(chunks, blocks_per_sm) for chunks in range(1, 40)]
        assert counts == sorted(counts, reverse=True) and {0, 3} < set(counts) <= {0, 1, 2, 3}
    own = H200.registers_per_sm // (256 * 4) - CHOICES.overhead_registers
    assert held(4, 0) == 3 and held(4, 4) == 0 and own < 4 * mapping.of(columns).vector * 2


@pytest.mark.parametrize("storage", [Storage.SHARED, Storage.CACHE, Storage.NOWHERE])
def test_rows_that_leave_registers_have_none(storage: Storage) -> None:
    stage = plan(norm(197)).stage
    moved = replace(stage, mapping=replace(stage.row_mapping, storage=storage), early=())
    assert with_early_loads(moved, H200).early == ()


def test_steps_have_none() -> None:
    stage = plan(norm(197)).stage
    columns = ((e, replace(m, steps=2)) for e, m in stage.row_mapping.columns.items())
    stepped = replace(stage.row_mapping, columns=type(stage.row_mapping.columns)(columns))
    assert with_early_loads(replace(stage, mapping=stepped, early=()), H200).early == ()


def decoder_layer(rows: int) -> KernelPlan:
    """Return the plan of two products with a norm of their own, the second of a residual sum."""

    def body(emit: Any, x: Any, first: Any, gain: Any, second: Any) -> list[Any]:
        y = emit(R.add(x, emit(R.matmul(x, emit(R.permute_dims(first))))))
        normed = emit(R.nn.rms_norm(y, gain, axes=[-1]))
        return [R.add(y, emit(R.matmul(normed, emit(R.permute_dims(second)))))]

    square = ((512, 512), F32)
    return mapped(build(body, ((rows, 512), F32), square, ((512,), F32), square))


def test_a_norm_of_every_block_loads_its_inputs_before_the_barrier() -> None:
    made = decoder_layer(1)
    (norm,) = [stage for stages in made.phases[1:] for stage in stages if stage.slice.replicated]
    inputs = {copy for tensor, copy in norm.slice.tensors.items() if tensor in made.graph.inputs}
    assert {tensor for tensor, _ in norm.early} == inputs and len(inputs) == 2


def test_a_residual_is_loaded_before_the_sums_of_a_product() -> None:
    stages = [stage for stages in decoder_layer(1).phases for stage in stages if stage.row_mapping.weights]
    last = stages[-1]
    (sums,) = [p for p in last.schedule.passes if p.reduces]
    behind = {leaf for p in last.schedule.passes if p is not sums for leaf in p.loads}
    assert behind and set(last.early) == behind - set(sums.loads)
