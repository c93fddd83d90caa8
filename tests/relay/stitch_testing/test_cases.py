# SPDX-License-Identifier: Apache-2.0
"""The named workloads in Relay: right through stock TVM, and the same as in Relax by name and size."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relay

from stitch_testing.reference.bounds import violations
from stitch_testing.reference.values import mismatches
from stitch_testing.relay import cases
from stitch_testing.relay.reference import evaluate, evaluate_bounds
from stitch_testing.relay.run import build_stock, run
from tvm_stitch.testing.workloads import cases as named
from tvm_stitch.testing.workloads import grid_cases as named_grid
from tvm_stitch.testing.workloads.case import Case

ALL = [*cases.cases("test"), *cases.grid_cases("test")]
LLVM = tvm.target.Target("llvm")


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_stock_llvm_agrees_with_the_reference(case: Case) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(1))
    outputs = run(build_stock(mod, LLVM), inputs)
    assert mismatches(outputs, evaluate(mod, inputs), case.tolerance) == []
    assert [(out.shape, str(out.dtype)) for out in outputs] == [(s.shape, s.dtype) for s in case.results]
    if case.name != "cross_entropy":  # picking by targets has no bounds
        assert violations(outputs, evaluate_bounds(mod, inputs, half_arithmetic=True)) == []


def test_names_and_kernels_are_those_of_relax() -> None:
    relax = {case.name: case for case in named.cases("test") if case.body is not None}
    found = {case.name: case for case in cases.cases("test")}
    assert set(found) == set(relax) and len(found) == 11
    assert all(found[name].kernels == relax[name].kernels for name in relax)
    grid = [case.name for case in named_grid.grid_cases("test")]
    missing = {"batch_norm_training_nchw"}
    assert [case.name for case in cases.grid_cases("test")] == [name for name in grid if name not in missing]


def test_softmax_against_a_closed_form() -> None:
    """The reference itself, of something that can be written down."""
    case = next(case for case in ALL if case.name == "softmax")
    (x,) = case.inputs(np.random.default_rng(3))
    wide = np.exp(x.astype(np.float64))
    (found,) = evaluate(case.build(), [x])
    np.testing.assert_allclose(found, wide / wide.sum(-1, keepdims=True), rtol=1e-14)


X = np.random.default_rng(0).uniform(0.2, 2.0, (4, 6, 8)).astype("float32")
IMAGE = np.random.default_rng(1).standard_normal((2, 6, 9, 8)).astype("float32")


def _const(*shape: int, low: float = 0.2) -> relay.Expr:
    return relay.const(np.random.default_rng(len(shape)).uniform(low, 1.5, shape).astype("float32"))


#: Operators that no workload uses, on x <4, 6, 8> or an image <2, 6, 9, 8>.
OPERATORS = {
    "softmax": lambda x: relay.nn.softmax(x, axis=1),
    "log_softmax": lambda x: relay.nn.log_softmax(x),
    "layer_norm": lambda x: relay.nn.layer_norm(x, _const(8), _const(8)),
    "instance_norm": lambda x: relay.nn.instance_norm(x, _const(6), _const(6)),
    "batch_norm": lambda x: relay.nn.batch_norm(x, _const(6), _const(6), _const(6), _const(6))[0],
    "group_norm": lambda x: relay.nn.group_norm(x, _const(6), _const(6), 3),
    "bias_add": lambda x: relay.nn.bias_add(x, _const(6), axis=1),
    "prelu": lambda x: relay.nn.prelu(relay.subtract(x, relay.const(1.0)), _const(6)),
    "leaky_relu": lambda x: relay.nn.leaky_relu(relay.subtract(x, relay.const(1.0)), 0.1),
    "log2": lambda x: relay.log2(x),
    "excluded": lambda x: relay.sum(x, axis=[1], exclude=True),
    "variance": lambda x: relay.variance(x, axis=[1], keepdims=True, unbiased=True),
    "argmax": lambda x: relay.argmax(x, axis=1),
    "cumsum": lambda x: relay.cumsum(x, axis=2),
    "tile": lambda x: relay.tile(x, (1, 2, 1)),
    "repeat": lambda x: relay.repeat(x, 3, 1),
    "reverse": lambda x: relay.reverse(x, 1),
    "stack": lambda x: relay.stack([x, x], 1),
    "split": lambda x: relay.add(relay.split(x, 2, 1)[0], relay.split(x, [3], 1)[1]),
    "slice_to_the_end": lambda x: relay.strided_slice(
        x, [1, 2], [-1, 2], [1, 1], axes=[0, 1], slice_mode="size"
    ),
    "slice_backwards": lambda x: relay.strided_slice(x, [5], [0], [-2], [1]),
    "gather_nd": lambda x: relay.gather_nd(x, relay.const(np.array([[0, 3, 1], [5, 0, 2]]))),
    "gather": lambda x: relay.gather(x, 1, relay.const(np.zeros((4, 2, 8), "int64") + 3)),
    "take_all": lambda x: relay.take(x, relay.const(np.array([5, 191, 300]))),
    "one_hot": lambda x: relay.one_hot(
        relay.cast(relay.multiply(x, relay.const(2.0)), "int32"),
        relay.const(1.0),
        relay.const(0.0),
        4,
        -1,
        "float32",
    ),
    "trilu": lambda x: relay.trilu(x, relay.const(1), upper=False),
    "full_like": lambda x: relay.add(relay.full_like(x, relay.const(2.5)), relay.zeros_like(x)),
    "collapse": lambda x: relay.collapse_sum_to(x, (6, 1)),
    "dense": lambda x: relay.nn.dense(relay.reshape(x, (24, 8)), _const(5, 8)),
    "batch_matmul": lambda x: relay.nn.batch_matmul(x, _const(4, 7, 8)),
    "cross_entropy": lambda x: relay.nn.cross_entropy(relay.reshape(x, (24, 8)), _const(24, 8)),
    "round": lambda x: relay.round(relay.multiply(x, relay.const(2.0))),
}
IMAGE_OPERATORS = {
    "conv2d": lambda x: relay.nn.conv2d(
        x, _const(4, 6, 3, 3, low=-1.0), padding=(1, 0, 2, 1), strides=(2, 1)
    ),
    "grouped": lambda x: relay.nn.conv2d(x, _const(6, 2, 3, 1, low=-1.0), groups=3, dilation=(2, 1)),
    "average": lambda x: relay.nn.global_avg_pool2d(x),
}


@pytest.mark.parametrize("name", [*OPERATORS, *IMAGE_OPERATORS])
def test_operators_mean_what_tvm_computes(name: str) -> None:
    data = X if name in OPERATORS else IMAGE
    x = relay.var("x", shape=data.shape)
    mod = tvm.IRModule.from_expr(relay.Function([x], {**OPERATORS, **IMAGE_OPERATORS}[name](x)))
    outputs = run(build_stock(mod, LLVM), [data])
    assert mismatches(outputs, evaluate(mod, [data]), {"float32": (1e-5, 1e-5)}) == []
    if name not in ("argmax", "cumsum"):
        assert violations(outputs, evaluate_bounds(mod, [data])) == []


def test_unknown_operators_are_named() -> None:
    x = relay.var("x", shape=(4, 6))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.sort(x)))
    with pytest.raises(NotImplementedError, match="Relay operator sort"):
        evaluate(mod, [X[0, :4, :6]])


def test_inputs_that_do_not_fit_are_refused() -> None:
    mod = cases.cases("test")[0].build()
    with pytest.raises(ValueError, match=r"takes 1 arguments \(x\), got 2"):
        evaluate(mod, [X, X])
    with pytest.raises(ValueError, match="is of shape"):
        evaluate(mod, [X])


def test_lets_functions_and_branches_are_evaluated() -> None:
    mod = tvm.relay.fromtext(
        '#[version = "0.0.5"]\n'
        "def @double(%x: Tensor[(3), float32]) { add(%x, %x) }\n"
        "def @main(%x: Tensor[(3), float32], %c: Tensor[(), bool]) {\n"
        "  let %a = @double(%x);\n"
        "  let %b = (fn (%y: Tensor[(3), float32]) { multiply(%y, %y) })(%a);\n"
        "  if (%c) { %b } else { negative(%a) }\n"
        "}"
    )
    x = np.array([1.0, 2.0, -3.0], "float32")
    assert evaluate(mod, [x, np.array(True)])[0].tolist() == [4, 16, 36]
    assert evaluate(mod, [x, np.array(False)])[0].tolist() == [-2, -4, 6]


def test_deep_graphs_do_not_exhaust_the_stack() -> None:
    x = relay.var("x", shape=(2,))
    value = x
    for _ in range(1500):
        value = relay.add(value, relay.const(1.0))
    mod = tvm.IRModule.from_expr(relay.Function([x], value))
    assert evaluate(mod, [np.zeros(2, "float32")])[0].tolist() == [1500.0, 1500.0]
