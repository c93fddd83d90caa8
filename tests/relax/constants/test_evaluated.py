# SPDX-License-Identifier: Apache-2.0
"""Calls of constants are evaluated by one library, and equal what each function computes alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.constants.evaluated import with_evaluated_calls
from tvm_stitch.relax.rewriting.operators import operator_name

RNG = np.random.default_rng(5)
SPEC = ((4, 6), "float32")


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def legalized(body: Any) -> tvm.IRModule:
    return relax.transform.LegalizeOps()(build(body, SPEC))


def called(mod: tvm.IRModule) -> list[str]:
    """Return the functions that the module calls, in order."""
    values = relax.analysis.get_var2val(mod["main"]).values()
    return [v.args[0].name_hint for v in values if operator_name(v) == "relax.call_tir"]


def constants_of(mod: tvm.IRModule) -> list[np.ndarray]:
    """Return the constants that the remaining calls read."""
    values = relax.analysis.get_var2val(mod["main"]).values()
    calls = [v for v in values if operator_name(v) == "relax.call_tir"]
    return [a.value.numpy() for c in calls for a in c.args[1].fields if isinstance(a, tvm.ir.GenericConst)]


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of functions of the libraries that are built."""
    built: list[int] = []
    build_library = tvm.tirx.build

    def counted(mod: tvm.IRModule, target: Any) -> Any:
        built.append(len(mod.get_global_vars()))
        return build_library(mod, target)

    monkeypatch.setattr(tvm.tirx, "build", counted)
    return built


def test_one_library_has_each_function_once(libraries: list[int]) -> None:
    a, b, c = weight(4, 6), weight(4, 6), weight(1, 6)

    def body(emit: Any, x: Any) -> Any:
        for given in (a, b, c):
            x = emit(R.add(x, emit(R.exp(emit(R.negative(relax.const(given)))))))
        return x

    found = with_evaluated_calls(legalized(body))
    assert libraries == [4]  # negative and exp, for two shapes
    assert len(called(found)) == 3  # the sums
    for got, given in zip(constants_of(found), (a, b, c), strict=True):
        np.testing.assert_allclose(got, np.exp(-given.astype("float64")), rtol=1e-6)


def test_reshapes_need_no_function(libraries: list[int]) -> None:
    given = weight(2, 12)

    def body(emit: Any, x: Any) -> Any:
        return R.multiply(x, emit(R.reshape(relax.const(given), (4, 6))))

    (got,) = constants_of(with_evaluated_calls(legalized(body)))
    np.testing.assert_array_equal(got, given.reshape(4, 6))
    assert libraries == []


def test_a_value_of_a_reshaped_value() -> None:
    given = weight(6, 4)

    def body(emit: Any, x: Any) -> Any:
        rows = emit(R.reshape(emit(R.abs(relax.const(given))), (4, 6)))
        return R.multiply(x, emit(R.negative(rows)))

    (got,) = constants_of(with_evaluated_calls(legalized(body)))
    np.testing.assert_array_equal(got, -np.abs(given).reshape(4, 6))


@pytest.mark.parametrize(("extent", "calls"), [(4, ["add"]), (400, ["full", "tir_negative", "add"])])
def test_only_small_filled_tensors_are_evaluated(extent: int, calls: list[str]) -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.add(x, emit(R.negative(emit(R.full((extent, 6), relax.const(2.0), "float32")))))

    mod = relax.transform.LegalizeOps()(build(body, ((extent, 6), "float32")))
    after = called(with_evaluated_calls(relax.transform.DeadCodeElimination()(mod)))
    assert after == calls


def test_functions_that_cannot_be_built_leave_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise tvm.error.InternalError("no code for this function")

    monkeypatch.setattr(tvm.tirx, "build", fails)
    mod = legalized(lambda emit, x: R.add(x, emit(R.negative(relax.const(weight(4, 6))))))
    assert with_evaluated_calls(mod).same_as(mod)


def test_a_module_without_calls_of_constants_stays() -> None:
    mod = legalized(lambda emit, x: R.add(x, relax.const(weight(4, 6))))
    assert with_evaluated_calls(mod).same_as(mod)


def test_functions_with_several_results(libraries: list[int]) -> None:
    given, ones, zeros = weight(4, 6), np.ones(6, "float32"), np.zeros(6, "float32")

    def body(emit: Any, x: Any) -> Any:
        parameters = [relax.const(array) for array in (ones, zeros, zeros, ones)]
        normalized = emit(R.nn.batch_norm(relax.const(given), *parameters, 1, epsilon=0.5, training=True))
        return R.add(x, emit(R.negative(emit(relax.TupleGetItem(normalized, 0)))))

    found = with_evaluated_calls(legalized(body))
    assert (libraries, len(called(found))) == ([2], 1)
    exact = given.astype("float64")
    exact = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 0.5)
    np.testing.assert_allclose(constants_of(found)[0], -exact, rtol=1e-5, atol=1e-6)
