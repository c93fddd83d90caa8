# SPDX-License-Identifier: Apache-2.0
"""The ends of kernels are found by name, and by order and function where TVM's fusion has lost the name."""

from __future__ import annotations

from tvm_stitch.relax.report.fused_names import ends_of
from tvm_stitch.relax.report.kernel_calls import Call
from tvm_stitch.relax.rewriting.marked_names import marked
from tvm_stitch.report.data import Value
from tvm_stitch.report.flow import Flow, FlowNode


def name(number: int) -> str:
    return marked("v", number)


def flow(*functions: str) -> Flow:
    nodes = tuple(
        FlowNode((name(i),), f, "memory-intensive", "", (i - 1,) if i else ())
        for i, f in enumerate(functions)
    )
    return Flow(nodes, (), {})


def call(function: str, result: str) -> Call:
    return Call("main", function, False, False, results=[Value(result, "4", "float32", 16)])


def test_names_that_are_kept() -> None:
    assert ends_of(
        [call("exp", name(0)), None, call("fused_add_relu", name(2))], flow("exp", "add", "relu")
    ) == {
        0: 0,
        2: 2,
    }


def test_names_that_are_lost_are_found_between_neighbours() -> None:
    calls = [call("fused_conv_add_relu1_tiled", "lv"), call("conv2", name(3)), call("fused_add1_relu", "lv1")]
    assert ends_of(calls, flow("conv", "add", "relu1", "conv2", "add1", "relu")) == {2: 0, 3: 1, 5: 2}


def test_names_of_passes_are_not_taken_for_the_models() -> None:
    nodes = (FlowNode(("lv",), "exp", "", "", ()), FlowNode((name(1),), "log", "", "", (0,)))
    assert ends_of([call("fused_exp_log", "lv")], Flow(nodes, (), {})) == {1: 0}
    several = (FlowNode(("lv[0]", "lv[1]"), "split", "", "", ()), nodes[1])
    assert ends_of([call("fused_log", "lv[0]")], Flow(several, (), {})) == {1: 0}


def test_what_fits_nothing_is_left_out() -> None:
    assert ends_of([call("fused_something_else", "lv")], flow("exp")) == {}
