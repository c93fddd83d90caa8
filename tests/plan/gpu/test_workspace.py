# SPDX-License-Identifier: Apache-2.0
"""Values cross barriers as they are computed, or in their own type if matrix units alone read them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from tvm_stitch.plan.gpu import grid
from tvm_stitch.plan.gpu.workspace import with_workspace
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.verify import problems


def mapped(mod: tvm.IRModule) -> KernelPlan:
    """Return the last grid-wide plan of a module, as it gets its workspace: stages are mapped, and no more."""
    found: list[KernelPlan] = []

    def kept(plan: KernelPlan) -> KernelPlan:
        found.append(with_workspace(plan))
        return found[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grid, "with_workspace", kept)
        tvm_stitch.explain(mod, emulated_target())
    return found[-1]


def chain(rows: int, added: bool) -> KernelPlan:
    """Return the plan of two products, of which the second reads a gate of the first, and the result perhaps too."""
    return mapped(_module(rows, added))


def _module(rows: int, added: bool) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    shapes = {"x": (rows, 512), "first": (1024, 512), "second": (1024, 1024)}
    x, first, second = params = [relax.Var(n, relax.TensorType(s, "float16")) for n, s in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            gate = builder.emit(op.nn.silu(builder.emit(op.matmul(x, builder.emit(op.permute_dims(first))))))
            result = builder.emit(op.matmul(gate, builder.emit(op.permute_dims(second))))
            if added:
                result = builder.emit(op.add(result, gate))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return builder.get()


def dtypes(plan: KernelPlan) -> set[str]:
    return {buffer.dtype for buffer in plan.scratch}


def test_factors_of_matrix_units_cross_barriers_in_their_own_type() -> None:
    assert dtypes(chain(4, added=False)) == {"float16"}
    assert not [line for line in problems(chain(4, added=False)) if "fit" in line]


@pytest.mark.parametrize(("rows", "added"), [(1, False), (4, True)])
def test_others_cross_barriers_as_computed(rows: int, added: bool) -> None:
    """Lanes multiply what they read in float32, and so does what adds a value up."""
    assert dtypes(chain(rows, added)) == {"float32"}


def test_a_narrow_buffer_that_another_value_reads_is_a_problem() -> None:
    plan = chain(4, added=True)
    narrow = replace(plan, scratch=tuple(replace(buffer, dtype="float16") for buffer in plan.scratch))
    assert any("does not fit" in line for line in problems(narrow))
