# SPDX-License-Identifier: Apache-2.0
"""Matrix products that cuBLASLt does not compute are left to TVM, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.relax import cublaslt_stand_in
from tests.relax.library.matmul_calls import CUDA, F32, LIBRARIES, calls, operators, rewritten
from tvm_stitch import StitchConfig, explain
from tvm_stitch.compute.cuda import library
from tvm_stitch.config import ASKED


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUBLASLT, "function", cublaslt_stand_in.NAME)
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: "cuBLASLt is not here")


# -- what is left to TVM --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "right", "dtype", "reason"),
    [
        ((2, 1, 4, 8), (2, 3, 8, 5), F32, "its matrices lie at distances of 2 kinds"),
        ((4, 8), (8, 5), "int32", "a product of int32 and int32 in int32"),
        ((4, 8), (8, 5), "float64", "a product of float64 and float64 in float64"),
    ],
)
def test_what_is_left_to_tvm(left: Any, right: Any, dtype: str, reason: str) -> None:
    mod = build(lambda emit, x, y: R.matmul(x, y), (left, dtype), (right, dtype))
    made, (how,) = rewritten(mod)
    assert how.startswith(f"TVM: {reason}")
    tvm.ir.assert_structural_equal(made["main"], mod["main"])


@pytest.mark.parametrize(("left", "right"), [((4, 0), (0, 5)), ((0, 4), (4, 5))])
def test_what_has_no_elements_is_no_product(left: Any, right: Any) -> None:
    mod = build(lambda emit, x, y: R.matmul(x, y), (left, F32), (right, F32))
    for asked in (LIBRARIES, StitchConfig()):
        assert rewritten(mod, config=asked) == (mod, [])


def test_extents_that_may_be_broadcast_are_left_to_tvm() -> None:
    n = symbol()
    mod = build(lambda emit, x, y: R.matmul(x, y), ((n, 4, 8), F32), ((3, 8, 5), F32))
    assert rewritten(mod)[1] == ["TVM: its shapes are not known"]


def test_one_product_that_is_refused_costs_no_other() -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        return [emit(R.matmul(x, x)), emit(R.matmul(y, y))]

    made, how = rewritten(build(body, ((4, 4), "float64"), ((4, 4), F32)))
    assert [h.split(":")[0] for h in how] == ["TVM", "cuBLASLt"]
    assert operators(made) == ["matmul", "call_dps_packed"]


def test_bfloat16_needs_a_device_that_has_it() -> None:
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), "bfloat16"))
    assert rewritten(mod, {"kind": "cuda", "arch": "sm_75"})[1] == [
        "TVM: bfloat16 needs compute capability 8.0"
    ]


def test_without_the_library_products_are_left_with_the_reason() -> None:
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    made, how = rewritten(mod, config=StitchConfig())
    assert how == ["TVM: cuBLASLt is not here"] and not calls(made)
    assert "TVM: cuBLASLt is not here" in str(explain(mod, CUDA))
    assert explain(mod, CUDA, StitchConfig(compute="tvm")).computed == {"1 matmul": f"TVM: {ASKED}"}
    assert "cuBLASLt" not in str(explain(mod, "llvm", LIBRARIES))


def test_with_the_library_auto_means_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    monkeypatch.setattr(library.CUBLASLT, "load", lambda: loaded.append(True))
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    assert len(calls(rewritten(mod, config=StitchConfig())[0])) == 1 and loaded


def test_a_library_that_does_not_load_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("it is broken")

    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    monkeypatch.setattr(library.CUBLASLT, "load", fail)
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    assert rewritten(mod, config=StitchConfig())[1] == ["TVM: it is broken"]


def test_interrupts_end_the_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library.CUBLASLT, "missing", interrupt)
    with pytest.raises(KeyboardInterrupt):
        explain(build(lambda emit, x: R.matmul(x, x), ((4, 4), F32)), CUDA)
