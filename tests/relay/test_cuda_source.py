# SPDX-License-Identifier: Apache-2.0
"""CUDA C completed, and compiled by nvcc or NVRTC."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relay

from cuda_emulator import default_target
from tvm_stitch.codegen.gpu.launch_bounds import RESIDENT_BLOCKS
from tvm_stitch.relay.cuda_source import COMPILE, POSTPROC, compile_with_nvrtc, fix_source, fixed_cuda_source

NOTE = RESIDENT_BLOCKS.format(3)
KERNELS = f"""
#include <cuda_fp16.h>
#define CUDA_UNSUPPORTED_HALF_MATH_UNARY(HALF, SINGLE) static inline __device__ half HALF(half x) {{ return x; }}
CUDA_UNSUPPORTED_HALF_MATH_UNARY(htanh, tanhf)
extern "C" __global__ void __launch_bounds__(128) first(half* __restrict__ a);
extern "C" __global__ void __launch_bounds__(64) second(half* __restrict__ a);
extern "C" __global__ void __launch_bounds__(128) first(half* __restrict__ a) {{
  a[0] = htanh(a[0]);
}}
extern "C" __global__ void __launch_bounds__(64) second(half* __restrict__ a) {{
  half whtanh = a[1];
  static_assert((bool)1, "{NOTE}");
  a[0] = whtanh;
}}
"""


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Sources that reach the compiler, in place of compiling them."""
    seen: list[str] = []
    before = tvm.get_global_func(COMPILE)
    tvm.register_func(COMPILE, lambda code, _: seen.append(code) or code, override=True)
    yield seen
    tvm.register_func(COMPILE, before, override=True)


def build(dtype: str = "float16") -> Any:
    x = relay.var("x", shape=(8, 64), dtype=dtype)
    return relay.build(tvm.IRModule.from_expr(relay.Function([x], relay.tanh(x))), target=default_target())


def test_what_was_registered_is_restored_when_the_last_one_leaves() -> None:
    before = tvm.get_global_func(COMPILE), tvm.get_global_func(POSTPROC, allow_missing=True)
    first, second = fixed_cuda_source(), fixed_cuda_source()  # as two threads may open them
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "resident" not in tvm.get_global_func(POSTPROC)(KERNELS, default_target())
    second.__exit__(None, None, None)
    assert tvm.get_global_func(COMPILE).handle.value == before[0].handle.value
    assert before[1] is None and tvm.get_global_func(POSTPROC, allow_missing=True) is None


def test_own_functions_have_own_names() -> None:
    fixed = fix_source(KERNELS)
    assert "UNARY(tvm_stitch_htanh, tanhf)" in fixed
    assert "a[0] = tvm_stitch_htanh(a[0]);" in fixed
    assert "half whtanh = a[1];" in fixed


def test_notes_become_launch_bounds_of_their_kernel() -> None:
    """The declaration has them as well as the definition."""
    fixed = fix_source(KERNELS)
    found = re.findall(r"__launch_bounds__\(([^)]*)\) (\w+)\([^)]*\)( \{|;)", fixed)
    bounds = [("128", "first"), ("64, 3", "second")]
    assert found == [(*b, end) for end in (";", " {") for b in bounds]
    assert "static_assert" not in fixed


def test_twice_is_once() -> None:
    assert fix_source(fix_source(KERNELS)) == fix_source(KERNELS)


def test_nothing_to_do() -> None:
    text = 'extern "C" __global__ void __launch_bounds__(128) k(float* a) {\n  a[0] = 1.0f;\n}\n'
    assert fix_source(text) == text


def test_the_note_is_legal_where_nobody_reads_it() -> None:
    """Without the fix the kernel compiles as well, under the bound that TVM gave it."""
    pytest.importorskip("nvidia.cuda_nvrtc")
    assert compile_with_nvrtc(KERNELS.replace("htanh", "own_tanh")).startswith(b"\x7fELF")
    assert compile_with_nvrtc(fix_source(KERNELS)).startswith(b"\x7fELF")


def test_callbacks_are_there_only_while_active(compiled: list[str]) -> None:
    build()
    with fixed_cuda_source():
        build()
    build()
    assert [("tvm_stitch_htanh" in code) for code in compiled] == [False, True, False]
    assert tvm.get_global_func(POSTPROC, allow_missing=True) is None


def test_nesting(compiled: list[str]) -> None:
    with fixed_cuda_source():
        with fixed_cuda_source():
            build()
        build()
    assert ["tvm_stitch_htanh" in code for code in compiled] == [True, True]
    assert tvm.get_global_func(POSTPROC, allow_missing=True) is None


def test_an_error_leaves_nothing_behind() -> None:
    with pytest.raises(KeyError), fixed_cuda_source():
        raise KeyError
    assert tvm.get_global_func(POSTPROC, allow_missing=True) is None


def test_the_users_callback_has_the_last_word(compiled: list[str]) -> None:
    tvm.register_func(POSTPROC, lambda code, _: code + "// mine\n")
    try:
        with fixed_cuda_source():
            build()
        build()
    finally:
        tvm._ffi.registry.remove_global_func(POSTPROC)
    assert [("tvm_stitch_htanh" in code, code.endswith("// mine\n")) for code in compiled] == [
        (True, True),
        (False, True),
    ]


def test_nvrtc_takes_over_where_there_is_no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    for tool in ("sh", "which", "gcc", "cc", "ld"):
        if found := shutil.which(tool):
            os.symlink(found, tmp_path / tool)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("nvcc") is None
    with pytest.raises(Exception, match="nvcc"):
        build()
    with fixed_cuda_source():
        assert build().get_lib().imported_modules[0].type_key == "cuda"


def test_a_compiler_that_fails_is_not_replaced() -> None:
    before = tvm.get_global_func(COMPILE)

    def fail(code: str, target: Any) -> str:
        raise FileNotFoundError("my compiler's own file")

    tvm.register_func(COMPILE, fail, override=True)
    try:
        with pytest.raises(FileNotFoundError, match="my compiler's own file"), fixed_cuda_source():
            build()
    finally:
        tvm.register_func(COMPILE, before, override=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nvcc(dtype: str) -> None:
    with fixed_cuda_source():
        build(dtype)


def test_code_that_does_not_compile() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    with pytest.raises(RuntimeError, match="NVRTC rejected a module:(.|\n)*identifier"):
        compile_with_nvrtc("__global__ void k(float* a) { a[0] = b; }")


def test_arrays_are_aligned_as_vectors_once() -> None:
    code = "  float tile[8];\n  __shared__ float own[24];\n  int one[1];\n  half x = tile[3];\n"
    fixed = fix_source(code)
    assert "  __align__(16) float tile[8];" in fixed and "  __shared__ __align__(16) float own[24];" in fixed
    assert "  int one[1];" in fixed and "half x = tile[3];" in fixed
    assert fix_source(fixed) == fixed


def test_constants_in_bits_have_no_address() -> None:
    code = "a = max(b, (*(float *)(&(841731191)))) + (*(double *)(&(-4417330534712344320LL)));"
    assert (
        fix_source(code)
        == "a = max(b, __int_as_float(841731191)) + __longlong_as_double(-4417330534712344320);"
    )
