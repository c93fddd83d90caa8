# SPDX-License-Identifier: Apache-2.0
"""The check of products on a GPU, as far as it runs without one: its cases are products of the library's, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import cublaslt_stand_in
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.matmuls import LibraryMatmuls

torch = pytest.importorskip("torch")

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
SMALL = 1000
"""Extents above it are for a GPU."""

import _gpu_encoder as encoder  # noqa: E402
import gpu_matmul_check as check  # noqa: E402


class OnCPU:
    """TVM with this machine's CPU in the place of a GPU."""

    runtime = tvm.runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(tvm, name)

    @staticmethod
    def cuda() -> Any:
        return tvm.cpu()

    @staticmethod
    def compile(mod: tvm.IRModule, _target: Any, relax_pipeline: Any) -> Any:
        return tvm.compile(mod, "llvm", relax_pipeline=relax_pipeline)


def products_on_cpu(_target: Any, config: StitchConfig, recorder: Recorder) -> Any:
    return tvm.transform.Sequential([LibraryMatmuls(CUDA, config), pipeline("llvm", None, recorder)])


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUBLASLT, "function", cublaslt_stand_in.NAME)
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    monkeypatch.setattr(library.CUBLASLT, "load", lambda: None)
    monkeypatch.setattr(check, "tvm", OnCPU())
    monkeypatch.setattr(check, "pipeline", products_on_cpu)


def small(case: Any) -> bool:
    extents = [e for e in (*case.left, *case.right) if e != "n"]
    return max(extents) <= SMALL and case.dtype != "bfloat16" and not case.tf32


def test_cases_are_the_librarys_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in check.cases() if small(case)]
    assert len(cases) > 40
    monkeypatch.setattr(check, "cases", lambda: cases)
    assert check.check_products() == []


def test_a_wrong_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> None:
        cublaslt_stand_in.matmul(*args)
        args[-2].copyfrom(args[-2].numpy() * np.float32(1 + 1e-5))

    tvm.register_global_func("tests.cublaslt.wrong", wrong, override=True)
    monkeypatch.setattr(library.CUBLASLT, "function", "tests.cublaslt.wrong")
    monkeypatch.setattr(check, "cases", lambda: [check.Case((3, 8), (8, 5))])
    (found,) = check.check_products()
    assert "error 1.0e-05" in found


def test_a_product_that_tvm_computes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "cases", lambda: [check.Case((2, 1, 4, 8), (3, 8, 5))])
    (found,) = check.check_products()
    assert "left to TVM" in found


def test_the_encoders_agree() -> None:
    sizes = encoder.Sizes(layers=2, batch=2, sequence=5, hidden=16, heads=4, ffn=24)
    weights = encoder.weights_of(sizes)
    x = np.random.default_rng(0).standard_normal(sizes.shape, dtype=np.float32)
    with torch.no_grad():
        expected = encoder.torch_encoder(sizes, weights, "cpu").double()(torch.from_numpy(x).double()).numpy()
    executable = tvm.compile(encoder.relax_encoder(sizes, weights), "llvm", relax_pipeline=pipeline("llvm"))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), expected, 1e-4, 1e-5)
