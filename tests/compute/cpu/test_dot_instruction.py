# SPDX-License-Identifier: Apache-2.0
"""Instructions that multiply groups of elements: where they are used, and what a kernel is compiled to."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

from tests.graph.helpers import build
from tvm_stitch import compat
from tvm_stitch.compute.cpu.dot_instruction import BITS, bits, dot_instruction
from tvm_stitch.compute.cpu.tiles import lanes_of
from tvm_stitch.relax import pipeline
from tvm_stitch.target import llvm_version, resolve_target

pytestmark = pytest.mark.skipif(llvm_version() < 17, reason="LLVM has no name for it")
BFLOAT16 = ("bfloat16", "bfloat16")


def code(target: str, dtype: str, body: Any, *shape: int) -> str:
    """Return the assembly of a model of one input."""
    made = resolve_target(target)
    mod = build(body, (shape, dtype))
    executable = tvm.compile(mod, made, relax_pipeline=pipeline(made))
    found = [executable.mod, *executable.mod.imports]
    return "\n".join(m.inspect_source("asm") for m in found if m.kind == "llvm")


def weight(dtype: str, *shape: int) -> relax.Constant:
    values = np.random.default_rng(0).standard_normal(shape)
    return relax.const(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), dtype)


@pytest.mark.parametrize("target", ["llvm -mcpu=cooperlake", "llvm -mcpu=skylake-avx512 -mattr=+avx512bf16"])
@pytest.mark.parametrize("kind", ["product", "convolution"])
def test_a_kernel_has_the_instruction(target: str, kind: str) -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        if kind == "product":
            return [R.matmul(x, weight("bfloat16", 64, 48))]
        return [R.nn.conv2d(x, weight("bfloat16", 48, 3, 3, 3), padding=1)]

    shape = (16, 64) if kind == "product" else (1, 3, 16, 16)
    lines = code(target, "bfloat16", body, *shape).splitlines()
    found = [line for line in lines if "vdpbf16ps" in line]
    assert found and all("zmm" in line for line in found)
    assert not any("call" in line and "tvm_stitch_dot" in line for line in lines)


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("llvm -mcpu=skylake-avx512", "bfloat16"),
        ("llvm -mcpu=haswell", "bfloat16"),
        ("llvm -mcpu=cooperlake", "float16"),
        ("llvm -mcpu=cooperlake", "float32"),
    ],
)
def test_others_have_not(target: str, dtype: str) -> None:
    found = code(target, dtype, lambda emit, x: [R.matmul(x, weight(dtype, 64, 48))], 16, 64)
    assert "vdpbf16ps" not in found and "tvm_stitch_dot" not in found


def test_which_targets_and_types() -> None:
    known = resolve_target("llvm -mcpu=cooperlake")
    for lanes in (4, 8, 16):
        made = dot_instruction(known, BFLOAT16, lanes)
        assert made is not None and (made.group, made.lanes) == (2, lanes)
        assert f"dpbf16ps.{32 * lanes}(" in made.source
    assert dot_instruction(known, BFLOAT16, 2) is None
    assert dot_instruction(known, ("float32", "bfloat16"), 16) is None
    assert dot_instruction(resolve_target("llvm -mtriple=aarch64-linux-gnu"), BFLOAT16, 4) is None


@pytest.mark.parametrize(
    ("target", "dtypes", "instruction"),
    [
        ("llvm -mcpu=cascadelake", ("uint8", "int8"), "vpdpbusd.512"),
        ("llvm -mcpu=cascadelake", ("int8", "int8"), "pmaddw.d.512"),
        ("llvm -mcpu=cascadelake", ("uint8", "uint8"), "pmaddw.d.512"),
        ("llvm -mcpu=skylake-avx512", ("uint8", "int8"), "pmaddw.d.512"),
        ("llvm -mcpu=alderlake", ("uint8", "int8"), "vpdpbusd.256"),
        ("llvm -mcpu=haswell", ("uint8", "int8"), "avx2.pmadd.wd"),
        ("llvm -mcpu=x86-64", ("uint8", "int8"), "sse2.pmadd.wd"),
        ("llvm -mcpu=sandybridge", ("uint8", "int8"), None),
        ("llvm -mtriple=aarch64-linux-gnu", ("uint8", "int8"), None),
        ("llvm -mcpu=cascadelake", ("float16", "int8"), None),
    ],
)
def test_integers(target: str, dtypes: tuple[str, str], instruction: str | None) -> None:
    made = resolve_target(target)
    found = dot_instruction(made, dtypes, lanes_of(made))
    assert (found is None) is (instruction is None)
    if found is not None and instruction is not None:
        assert f"{instruction}(" in found.source and found.sums == "int32"
        assert found.group == (4 if found.reads == "uint8" else 2)


@pytest.mark.parametrize(("depth", "steps"), [(0, 0), (1, 1), (2, 1), (7, 4)])
def test_the_last_group_is_filled_up(depth: int, steps: int) -> None:
    made = dot_instruction(resolve_target("llvm -mcpu=cooperlake"), BFLOAT16, 16)
    assert made is not None and made.steps(depth) == steps


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, float("inf")])
def test_bits_of_a_number(value: float) -> None:
    found = bits(compat.const(value, "bfloat16"))
    assert compat.dtype_of(found) == BITS
    assert compat.int_value(found) == np.array(value, ml_dtypes.bfloat16).view(np.uint16)


def test_bits_of_an_element() -> None:
    found = bits(T.Cast("bfloat16", T.float32(1)))
    assert compat.dtype_of(found) == BITS and compat.kind(found) == "Call"
