# SPDX-License-Identifier: Apache-2.0
"""Passes note implementations by variables, and no note takes the place of another variable's."""

from __future__ import annotations

import tvm
from tvm import relax

from tests.relax.test_planted_failures import three_scopes
from tvm_stitch.records.decisions import decided, decisions_of
from tvm_stitch.relax.rewriting.compute_pass import ChoosingPass, Implementations
from tvm_stitch.support.module_pass import module_pass


def variable(name: str = "lv5") -> relax.Var:
    return relax.Var(name, relax.TensorType((4,), "float32"))


@module_pass
class Chooses(ChoosingPass):
    """Note some implementations."""

    def __init__(self, noted: Implementations):
        self.noted = noted

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        self.computed |= self.noted
        return mod


def noted(mod: tvm.IRModule, computed: Implementations) -> dict[str, str]:
    return dict(decisions_of(Chooses(computed)(mod)).computed)


def test_variables_of_one_name() -> None:
    """Two functions of a module may each have one."""
    one, other = variable(), variable()
    assert noted(three_scopes(), {("matmul", one): "a", ("matmul", other): "b", ("conv2d", one): "c"}) == {
        "matmul lv5": "a", "matmul lv5 (2)": "b", "conv2d lv5": "c",
    }  # fmt: skip


def test_names_of_functions_and_of_values_alone() -> None:
    assert noted(three_scopes(), {"3 matmuls": "a", ("", variable()): "b"}) == {"3 matmuls": "a", "lv5": "b"}


def test_an_earlier_pass_had_another_variable_of_the_name() -> None:
    before = decided(three_scopes(), computed={"conv2d lv5": "our kernel"})
    assert noted(before, {("conv2d", variable()): "cuDNN"}) == {
        "conv2d lv5": "our kernel", "conv2d lv5 (2)": "cuDNN",
    }  # fmt: skip


def test_the_last_decision_about_an_operator_counts() -> None:
    before = decided(three_scopes(), computed={"conv2d lv5": "TVM: it has no phases"})
    assert noted(before, {("conv2d", variable()): "cuDNN"}) == {"conv2d lv5": "cuDNN"}
