# SPDX-License-Identifier: Apache-2.0
"""Each element-wise reader of a cast to a wider type has one of its own, and kernels hand on the narrower type."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from tests.graph.helpers import build
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.legalize.widening_casts import WideningCasts
from tvm_stitch.relax.stitch.dataflow import is_call_tir
from tvm_stitch.relax.stitch.stitch_ops import StitchOps

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
SHAPE = (8, 16)
Emit = Callable[..., Any]


LOWERED = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.CanonicalizeBindings(),
    ]
)


def lowered(mod: tvm.IRModule, *more: Any) -> tvm.IRModule:
    return tvm.transform.Sequential([LOWERED, WideningCasts(), *more])(mod)


def calls(mod: tvm.IRModule) -> list[Any]:
    blocks = mod["main"].body.blocks
    return [b for block in blocks for b in block.bindings if is_call_tir(b.value)]


def reads(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    """Return the function that each call calls, and the makers of its operands."""
    made = {b.var: b.value.args[0].name_hint for b in calls(mod)}
    return [
        (b.value.args[0].name_hint, *(made.get(arg, arg.name) for arg in b.value.args[1].fields))
        for b in calls(mod)
    ]


def residual(emit: Emit, x: Any, w: Any) -> list[Any]:
    """Build a residual of half type that is read on either side of a product."""
    wide = emit(R.astype(emit(R.astype(emit(R.exp(x)), "float16")), "float32"))
    first = emit(R.astype(emit(R.tanh(wide)), "float16"))
    return [R.add(wide, emit(R.matmul(first, w, out_dtype="float32")))]


RESIDUAL = (SHAPE, "float32"), ((16, 16), "float16")


def test_before_and_after() -> None:
    """The first reader keeps the cast, which sums read, too. Every other element-wise one has its own."""

    def body(emit: Emit, x: Any, own: bool) -> list[Any]:
        wide = emit(R.astype(x, "float32"))
        first = emit(R.exp(wide))
        again = emit(R.astype(x, "float32")) if own else wide
        return [first, R.tanh(again), R.sum(wide, axis=1)]

    before, after = (
        build(lambda emit, x, own=own: body(emit, x, own), (SHAPE, "float16")) for own in (False, True)
    )
    tvm.ir.assert_structural_equal(lowered(before), LOWERED(after))
    tvm.ir.assert_structural_equal(lowered(after), LOWERED(after))


def test_no_cast_is_left_without_a_reader() -> None:
    mod = lowered(build(residual, *RESIDUAL))
    tvm.ir.assert_structural_equal(relax.transform.DeadCodeElimination()(mod), mod)
    assert [name for name, *_ in reads(mod)].count("cast1") == 2
    assert reads(mod)[-1] == ("add", "cast1", "matmul")


def test_a_reader_that_reads_a_cast_twice_has_one() -> None:
    def body(emit: Emit, x: Any) -> list[Any]:
        wide = emit(R.astype(x, "float32"))
        return [R.exp(wide), R.multiply(wide, wide)]

    mod = lowered(build(body, (SHAPE, "float16")))
    assert sorted(reads(mod)) == [
        ("cast", "x0"),
        ("cast", "x0"),
        ("multiply", "cast", "cast"),
        ("tir_exp", "cast"),
    ]


NO_COPIES = {
    "narrowing": (lambda emit, x: emit(R.astype(x, "float16")), "float32"),
    "no cast": (lambda emit, x: emit(R.negative(x)), "float32"),
    "another order": (lambda emit, x: emit(R.permute_dims(emit(R.astype(x, "float32")))), "float16"),
}


@pytest.mark.parametrize("name", NO_COPIES)
def test_what_is_no_widening_cast_is_computed_once(name: str) -> None:
    made, dtype = NO_COPIES[name]

    def body(emit: Emit, x: Any) -> list[Any]:
        value = made(emit, x)
        return [R.exp(value), R.tanh(value)]

    mod = lowered(build(body, (SHAPE, dtype)))
    assert len(calls(mod)) == 4 if name == "another order" else 3


def test_a_cast_that_is_a_result_is_computed_once() -> None:
    def body(emit: Emit, x: Any) -> list[Any]:
        wide = emit(R.astype(x, "float32"))
        return [wide, R.exp(wide), R.tanh(wide)]

    assert len(calls(lowered(build(body, (SHAPE, "float16"))))) == 3


def test_several_blocks() -> None:
    """A cast that another block reads stays one. In each block, readers have their own."""

    @I.ir_module
    class Module:
        @RS.function
        def main(x: RS.Tensor((8, 16), "float16")):
            with RS.dataflow():
                wide = RS.astype(x, "float32")
                inner = RS.astype(RS.tanh(x), "float32")
                a = RS.exp(wide)
                b = RS.add(RS.exp(inner), RS.tanh(inner))
                RS.output(wide, a, b)
            e = RS.nn.softmax(a)
            with RS.dataflow():
                c = RS.tanh(wide)
                again = RS.astype(RS.exp(x), "float32")
                d = RS.multiply(RS.exp(again), RS.tanh(again))
                RS.output(c, d)
            return (e, b, c, d)

    mod = lowered(Module)
    assert [name for name, *_ in reads(mod)].count("cast") == 1 + 2 + 2
    relax.analysis.well_formed(mod)
    x = np.random.default_rng(1).uniform(-1, 1, SHAPE).astype("float16")
    for found, expected in zip(*(run(each, None, x) for each in (mod, Module)), strict=True):
        np.testing.assert_array_equal(found, expected)


def run(mod: tvm.IRModule, relax_pipeline: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    options = {} if relax_pipeline is None else {"relax_pipeline": relax_pipeline}
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET, **options), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [each.numpy() for each in (result if hasattr(result, "__len__") else [result])]


# -- what scopes make of it ------------------------------------------------------------------------------------------
def without_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = importlib.import_module("tvm_stitch.relax.pass_table")
    monkeypatch.setattr(passes, "WideningCasts", lambda: tvm.transform.Sequential([]))


def kernels(mod: tvm.IRModule, config: StitchConfig | None = None) -> int:
    return count_kernels(mod, TARGET, pipeline(TARGET, config)).total


@pytest.mark.parametrize("epilogues", [True, False])
def test_the_half_type_is_between_the_kernels(epilogues: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mod, config = build(residual, *RESIDUAL), StitchConfig(epilogues=epilogues)
    stitched = lowered(mod, StitchOps(config))
    bindings = [b for block in stitched["main"].body.blocks for b in block.bindings]
    first = next(b.var.ty for b in bindings if isinstance(getattr(b.value, "op", None), tvm.ir.GlobalVar))
    assert {str(ty.dtype) for ty in getattr(first, "fields", [first])} == {"float16"}
    rng = np.random.default_rng(0)
    x, w = rng.uniform(-2, 1, SHAPE).astype("float32"), rng.standard_normal((16, 16)).astype("float16")
    (found,) = run(mod, pipeline(TARGET, config), x, w)
    half = np.exp(x.astype("float64")).astype("float16").astype("float64")
    expected = half + np.tanh(half).astype("float16").astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(found, expected, rtol=0, atol=16 * 2.0**-11)
    with_pass = kernels(mod, config)
    without_the_pass(monkeypatch)
    assert with_pass <= kernels(mod, config)


def test_a_reader_that_no_scope_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cast stays with its producer: on its own it would be one kernel more."""

    def body(emit: Emit, x: Any) -> list[Any]:
        wide = emit(R.astype(emit(R.astype(emit(R.exp(x)), "float16")), "float32"))
        return [R.sort(wide, axis=1)]

    mod = build(body, (SHAPE, "float32"))
    with_pass = kernels(mod)
    assert with_pass <= count_kernels(mod, TARGET, None).total
    without_the_pass(monkeypatch)
    assert with_pass == kernels(mod)


@pytest.mark.parametrize("seed", range(6))
def test_random_layers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals, norms and activations around products: no more kernels, and results within the roundings."""
    rng = np.random.default_rng(seed)
    weights = [rng.uniform(-0.3, 0.3, (16, 16)).astype("float16") for _ in range(3)]
    kinds = [str(rng.choice(["tanh", "softmax", "double"])) for _ in weights]

    def body(emit: Emit, x: Any) -> list[Any]:
        wide = emit(R.astype(emit(R.astype(x, "float16")), "float32"))
        for weight, kind in zip(weights, kinds):
            y = emit({"tanh": R.tanh, "softmax": R.nn.softmax, "double": lambda v: R.add(v, v)}[kind](wide))
            y = emit(R.matmul(emit(R.astype(y, "float16")), relax.const(weight), out_dtype="float32"))
            wide = emit(R.astype(emit(R.astype(emit(R.add(wide, y)), "float16")), "float32"))
        return [wide]

    x = rng.standard_normal(SHAPE).astype("float32")
    expected = x.astype("float64")
    for weight, kind in zip(weights, kinds):
        spread = np.exp(expected - expected.max(-1, keepdims=True))
        y = {
            "tanh": np.tanh(expected),
            "softmax": spread / spread.sum(-1, keepdims=True),
            "double": 2 * expected,
        }
        expected = expected + y[kind] @ weight.astype("float64")
    mod = build(body, (SHAPE, "float32"))
    (found,) = run(mod, pipeline(TARGET), x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=16 * 2.0**-11 * abs(expected).max())
    with_pass = kernels(mod)
    without_the_pass(monkeypatch)
    assert with_pass <= kernels(mod)
