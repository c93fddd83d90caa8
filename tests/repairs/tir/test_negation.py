# SPDX-License-Identifier: Apache-2.0
"""Negations of int32 in kernels: right values, and none that ptxas could lose among minima and maxima."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import CHECKS, emulated_target, random_graph, stitched_pipeline
from tests.repairs import faults
from tvm_stitch.repairs.tir.negation import FUNCTION, NEGATED

Operation = Callable[..., Any]


def int32(value: int) -> relax.Constant:
    return relax.const(value, "int32")


#: (in Relax, in NumPy) of values that are, or may become, a negation of x.
NEGATIONS: dict[str, tuple[Operation, Operation]] = {
    "negative": (R.negative, np.negative),
    "subtract from zero": (lambda x: R.subtract(int32(0), x), np.negative),
    "times -1": (lambda x: R.multiply(x, int32(-1)), np.negative),
    "-4 times": (lambda x: R.multiply(int32(-4), x), lambda x: -4 * x),
    "by -1": (lambda x: R.floor_divide(x, int32(-1)), np.negative),
    "cancelled constants": (lambda x: R.subtract(R.subtract(int32(3), x), int32(3)), np.negative),
    "cancelled terms": (lambda x: R.subtract(R.subtract(x, x), x), np.negative),
}


def build(negation: Operation) -> tvm.IRModule:
    """Return the least and the greatest of a negation of x, a and b, with sums of rows.

    The sums keep it one memory-bound kernel.
    """
    builder = relax.BlockBuilder()
    x, a, b = (relax.Var(n, relax.TensorType((61, 67), "int32")) for n in "xab")
    with builder.function("main", [x, a, b]):
        with builder.dataflow():
            value = builder.emit(negation(x))
            least = builder.emit(R.minimum(R.minimum(a, value), b))
            greatest = builder.emit(R.maximum(R.maximum(a, value), b))
            result = builder.emit_output(
                relax.Tuple(
                    [least, greatest, builder.emit(R.max(value, axis=1)), builder.emit(R.sum(least, axis=1))]
                )
            )
        builder.emit_func_output(result)
    return builder.finalize()


def sources(mod: tvm.IRModule) -> list[str]:
    target = emulated_target()
    executable = tvm.compile(mod, target, relax_pipeline=tvm_stitch.relax.pipeline(target))
    found, left = [], [executable.mod]
    while left:
        module = left.pop()
        left.extend(module.imports)
        if module.kind == "cuda":
            found.append(str(module.inspect_source()))
    return found


@pytest.mark.parametrize("name", NEGATIONS)
def test_values(name: str) -> None:
    in_relax, in_numpy = NEGATIONS[name]
    rng = np.random.default_rng(1)
    x, a, b = (rng.integers(-50, 50, (61, 67), "int32") for _ in range(3))
    mod = build(in_relax)
    target = emulated_target()
    done = run_cuda(mod, [x, a, b], target=target, relax_pipeline=tvm_stitch.relax.pipeline(target))
    assert not done.reports
    value = in_numpy(x)
    least = np.minimum(np.minimum(a, value), b)
    expected = [least, np.maximum(np.maximum(a, value), b), value.max(1), least.sum(1)]
    for actual, wanted in zip(done.outputs, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", NEGATIONS)
def test_ptxas_sees_no_negation(name: str, tmp_path: Path) -> None:
    for source in sources(build(NEGATIONS[name][0])):
        assert NEGATED in source
        ptx = compiled(source, tmp_path)
        assert "not.b32" in ptx and "min.s32" in ptx
        assert not lost_negations(ptx)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_plain_source_has_what_ptxas_loses(tmp_path: Path) -> None:
    """The loss that the test above looks for is there without the care taken."""
    for source in sources(build(R.negative)):
        plain = re.sub(rf"\b{NEGATED}\(", "-(", source.replace(f"int {NEGATED}(", "int unused("))
        assert lost_negations(compiled(plain, tmp_path))


def test_seed_with_minima_of_negations() -> None:
    graph = random_graph(600077)
    assert CHECKS["emulated-cuda"](graph, stitched_pipeline("emulated-cuda")).ok
    assert all(NEGATED in source for source in sources(graph.mod))


def compiled(source: str, folder: Path) -> str:
    """Return the PTX of CUDA C."""
    (folder / "kernel.cu").write_text(source)
    command = ["nvcc", "-w", "-arch=sm_90", "-ptx", "-o", f"{folder}/kernel.ptx", f"{folder}/kernel.cu"]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "kernel.ptx").read_text()


def lost_negations(ptx: str) -> set[str]:
    """Registers that hold the negation of an int32 and are an operand of a minimum or maximum."""
    negations = set(re.findall(r"neg\.s32\s+(%\w+),", ptx))
    operands = re.findall(r"(?:min|max)\.s32\s+%\w+, (%?\w+), (%?\w+);", ptx)
    return negations & {register for pair in operands for register in pair}


def machine_code(kernel: str, folder: Path) -> bytes:
    """Return the machine code of a kernel for sm_90, by ptxas."""
    (folder / "kernel.cu").write_text(kernel)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-o", folder / "kernel.cubin", folder / "kernel.cu"]
    subprocess.run(command, check=True)
    return (folder / "kernel.cubin").read_bytes()


def least(negation: str) -> str:
    return (
        'extern "C" __global__ void kernel(const int* a, const int* x, const int* b, int* y) {\n'
        f"  int i = threadIdx.x; y[i] = min(min(a[i], {negation}), b[i]);\n}}\n"
    )


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_fault(tmp_path: Path) -> None:
    same = machine_code(least("-x[i]"), tmp_path) == machine_code(least("x[i]"), tmp_path)
    faults.needed(same, "tir/negation.py")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_repair(tmp_path: Path) -> None:
    hidden = machine_code(FUNCTION + least(f"{NEGATED}(x[i])"), tmp_path)
    assert hidden != machine_code(FUNCTION + least("x[i]"), tmp_path)
    assert machine_code(FUNCTION + least("-x[i]"), tmp_path) == machine_code(
        FUNCTION + least("x[i]"), tmp_path
    )
