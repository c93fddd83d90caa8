# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan of ONNX against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import parser

import tvm_stitch
from tests.importers.onnx.converters.test_recurrent import given_to
from tests.relax.loops.modules import run
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.importers.onnx.importer import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx
from tvm_stitch.relax import pipeline

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
TRUE = "cond = Constant<value = bool {1}>()\n"
X = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")


def model_of(text: str) -> onnx.ModelProto:
    model = parser.parse_model(HEAD + text)
    onnx.checker.check_model(model)
    return model


def check(text: str, *cases: dict[str, Any]) -> tvm.IRModule:
    """Compare a model, compiled once, with ONNX Runtime."""
    model = model_of(text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mod = from_onnx(model)
    executable = tvm_stitch.compile(mod)
    for values in cases:
        wanted = session.run(None, values)
        for a, b in zip(run(executable, given_to(mod, values)), wanted, strict=True):
            if b.size:  # ONNX Runtime has no sizes for results of no steps
                assert a.shape == b.shape
                assert np.allclose(a.numpy(), b, rtol=1e-5, atol=1e-5)
            else:
                assert 0 in a.shape
    return mod


def test_if_with_results_of_different_sizes() -> None:
    mod = check(
        """agraph (float[n,4] x, bool c) => (float[n,4] y, float[m,4] z) {
            w = Exp(x)
            y, z = If (c) <
                then_branch = yes () => (float[n,4] a, float[m,4] b) { a = Add(x, w) b = Concat<axis=0>(x, w) },
                else_branch = no () => (float[n,4] d, float[m,4] e) { d = Mul(x, w) e = Tanh(x) }>
        }""",
        {"x": X, "c": np.array(True)},
        {"x": X[:2], "c": np.array(False)},
    )
    assert any(gvar.name_hint == "if_then" for gvar in mod.functions)


def test_a_branch_that_is_known() -> None:
    mod = check(
        """agraph (float[n,4] x) => (float[n,4] y) {
            c = Constant<value = bool {0}>()
            y = If (c) <then_branch = yes () => (float[n,4] a) { a = Exp(x) },
                        else_branch = no () => (float[n,4] b) { b = Tanh(x) }>
        }""",
        {"x": X},
    )
    assert len(mod.functions) == 1


def test_a_trip_count() -> None:
    text = (
        "agraph (float[n,4] x, int64 M) => (float[n,4] y, float[k,n,4] z) {"
        + TRUE
        + """y, z = Loop (M, cond, x) <
            body = b (int64 i, bool c, float[n,4] s) => (bool again, float[n,4] after, float[n,4] out) {
                again = Identity(c)
                number = Cast<to=1>(i)
                sum = Add(s, number)
                after = Tanh(sum)
                out = Mul(after, x) }>
        }"""
    )
    cases = [{"x": X, "M": np.array(count)} for count in (0, 1, 5, 100)]
    mod = check(text, *cases)
    target = tvm_stitch.target.resolve_target("native")
    assert count_kernels(mod, target, pipeline(target)).total <= 6


def test_a_condition() -> None:
    check(
        "agraph (float[n,4] x, int64 M, float limit) => (float[n,4] y, float[k,n,4] z) {"
        + TRUE
        + """y, z = Loop (M, cond, x) <
            body = b (int64 i, bool c, float[n,4] s) => (bool again, float[n,4] after, float[n,4] out) {
                after = Add(s, s)
                size = Abs(after)
                most = ReduceMax<keepdims=0>(size)
                again = Less(most, limit)
                out = Mul(after, x) }>
        }""",
        *(
            {"x": X, "M": np.array(most), "limit": np.array(limit, "float32")}
            for most, limit in ((0, 5), (1, 100), (50, 1000), (4, 1e9))
        ),
    )


def test_a_loop_that_only_its_condition_ends() -> None:
    check(
        "agraph (float[n,4] x, float limit) => (float[n,4] y) {"
        + TRUE
        + """y = Loop (, cond, x) <
            body = b (int64 i, bool c, float[n,4] s) => (bool again, float[n,4] after) {
                after = Add(s, s)
                size = Abs(after)
                most = ReduceMax<keepdims=0>(size)
                again = Less(most, limit) }>
        }""",
        *({"x": X, "limit": np.array(value, "float32")} for value in (1, 1000, 1e9)),
    )


def test_loops_and_branches_within_a_loop() -> None:
    check(
        "agraph (float[n,4] x, int64 M) => (float[n,4] y, int64 q) {"
        + TRUE
        + """zero = Constant<value = int64 {0}>()
        limit = Constant<value = int64 {7}>()
        two = Constant<value = int64 {2}>()
        y, q = Loop (M, cond, x, zero) <
            body = b (int64 i, bool c, float[n,4] s, int64 k) => (bool again, float[n,4] after, int64 next) {
                next = Add(k, two)
                again = Less(next, limit)
                row = Gather<axis=0>(x, zero)
                t = Loop (two, c, s) <
                    body = inner (int64 j, bool d, float[n,4] u) => (bool e, float[n,4] v) {
                        e = Identity(d)
                        number = Cast<to=1>(i)
                        scaled = Mul(u, number)
                        moved = Add(scaled, row)
                        v = Add(moved, x) }>
                same = Equal(next, limit)
                after = If (same) <then_branch = yes () => (float[n,4] a) { a = Neg(t) },
                                   else_branch = no () => (float[n,4] f) { f = Tanh(t) }> }>
        }""",
        *({"x": X, "M": np.array(count)} for count in (1, 3, 9)),
    )


def test_scan_over_other_axes_and_backwards() -> None:
    generator = np.random.default_rng(1)
    check(
        """agraph (float[n,4] first, float[n,t,4] x, float[t] w) => (float[n,4] y, float[n,t,4] z, float[t] q) {
            y, z, q = Scan <num_scan_inputs=2, scan_input_axes=[1,0], scan_output_axes=[1,0],
                            scan_input_directions=[1,0], scan_output_directions=[1,0],
                body = b (float[n,4] s, float[n,4] r, float v) => (float[n,4] after, float[n,4] out, float m) {
                    sum = Add(s, r)
                    scaled = Mul(sum, v)
                    after = Tanh(scaled)
                    out = Identity(after)
                    m = ReduceSum<keepdims=0>(after) }> (first, x, w)
        }""",
        *(
            {
                "first": X,
                "x": generator.standard_normal((3, steps, 4)).astype("float32"),
                "w": generator.standard_normal(steps).astype("float32"),
            }
            for steps in (1, 7, 33)
        ),
    )


def _refused(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        from_onnx(model_of(text))


def test_refused_loops_are_named() -> None:
    _refused(
        "agraph (float[n,4] x, int64 M) => (float[m,4] y) {"
        + TRUE
        + """y = Loop (M, cond, x) <body = b (int64 i, bool c, float[k,4] s) => (bool d, float[l,4] after) {
            d = Identity(c) after = Concat<axis=0>(s, x) }>
        }""",
        r"\(Loop .*state 0 of loop is float32 \[n, .* before a step and float32 \[",
    )
    _refused(
        "agraph (float[n,4] x, bool go) => (float[n,4] y, float[k,n,4] z) {"
        + """y, z = Loop (, go, x) <body = b (int64 i, bool c, float[n,4] s) => (bool d, float[n,4] e, float[n,4] f) {
            d = Not(c) e = Exp(s) f = Neg(s) }>
        }""",
        "stacks results and has no trip count",
    )


def test_a_sequence_in_a_loop_is_refused() -> None:
    _refused(
        "agraph (float[2,4] x, int64 M) => (float[m,4] y) {"
        + TRUE
        + """s = SequenceEmpty () t = Loop (M, cond, s) <body = b (int64 i, bool c, seq(float[2,4]) u)
            => (bool d, seq(float[2,4]) after) { d = Identity(c) after = SequenceInsert(u, x) }>
            y = ConcatFromSequence<axis=0>(t)
        }""",
        "an input is a sequence of tensors",
    )
