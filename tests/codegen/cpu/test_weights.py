# SPDX-License-Identifier: Apache-2.0
"""Rows of weights against float64: every kind of weight, tails, blocks, and the code that LLVM gets."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from models.narrow_weights import KINDS, product
from tvm import relax

from tvm_stitch.device import DeviceModel
from tvm_stitch.plan.cpu import tile
from tvm_stitch.plan.cpu.weights import weight_lanes
from tvm_stitch.relax.pipeline import Recorder, pipeline

TOLERANCE = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}
"""Most error, relative to the largest element of a result."""
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


def built(
    kind: str, rows: int, columns: int, inner: int, target: tvm.target.Target
) -> tuple[tvm.relax.VMExecutable, Recorder]:
    """Compile a product. Nothing may be left to TVM."""
    recorder = Recorder()
    mod = product(KINDS[kind], rows, columns, inner)
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, None, recorder))
    assert not recorder.declined, recorder.declined
    assert any(plan.stage.mapping.weights is not None for plan in recorder.plans.values())  # type: ignore[union-attr]
    return executable, recorder


def check(kind: str, rows: int, columns: int, inner: int, target: str = "llvm") -> None:
    """Compare a product with that in float64."""
    executable, _ = built(kind, rows, columns, inner, tvm.target.Target(target))
    weight = KINDS[kind]
    tensors, wide = weight.drawn(columns, inner)
    x = np.random.default_rng(1).standard_normal((rows, inner)).astype(weight.dtype)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = main(*[tvm.runtime.tensor(each) for each in (x, *tensors)]).numpy().astype("float64")
    wanted = x.astype("float64") @ wide.T
    assert np.abs(found - wanted).max() <= TOLERANCE[weight.dtype] * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "inner"),
    [
        ("float16", 1, 3600, 37),  # vectors of 32, 4 and 1
        ("float16", 3, 1900, 70),
        ("bfloat16", 2, 4002, 33),
        ("int8", 1, 24, 160),
        ("int8", 16, 8, 96),
        ("int8-channel", 2, 12, 96),
        ("4bit-words", 1, 20, 224),  # a chunk of 128 columns, and shorter ones
        ("4bit-words", 5, 7, 96),  # a prime number of columns
        ("4bit-words", 16, 6, 64),
        ("4bit-bytes", 1, 12, 96),
        ("4bit-zeros", 2, 12, 160),
    ],
)
def test_products_are_those_of_float64(kind: str, rows: int, columns: int, inner: int) -> None:
    check(kind, rows, columns, inner)


@pytest.mark.parametrize(("kind", "rows"), [("bfloat16", 6), ("4bit-words", 4), ("int8", 5)])
def test_blocks_of_columns_add_up(monkeypatch: pytest.MonkeyPatch, kind: str, rows: int) -> None:
    """Rows of a task take a block of the columns before the next one. The last block is shorter."""
    blocks = []

    def small(alignment: object, sched: object, device: DeviceModel) -> object:
        tiny = replace(device, shared_per_block=1024).with_choices(block_bytes=3 * 4 * rows * 256)
        found = weight_lanes(alignment, sched, tiny)  # type: ignore[arg-type]
        blocks.append(found.block if found is not None else 0)
        return found

    monkeypatch.setattr(tile, "weight_lanes", small)
    check(kind, rows, 300, 2144)
    assert any(blocks)


@pytest.mark.parametrize("kind", ["4bit-words", "4bit-bytes", "int8", "bfloat16"])
def test_weights_are_read_and_converted_by_vectors(kind: str) -> None:
    executable, _ = built(kind, 1, 512, 512, AVX2)
    source = executable.mod.imports[0].inspect_source("ll") if executable.mod.imports else ""
    source = source or executable.mod.inspect_source("ll")
    loops = _loops_of(source)
    assert loops
    for loop in loops:
        assert not re.search(r"insertelement .*, i(32|64) [1-9]|llvm\.masked\.gather", loop)
        assert not re.search(r" = f(mul|add) (contract )?float ", loop)


def _loops_of(source: str) -> list[str]:
    """Return the loops over chunks behind the start of the parallel tasks, as text of LLVM."""
    blocks = re.split(r"\n(?=[\w.]+:)", source)
    return [
        block
        for block in blocks
        if "fadd" in block and re.search(r"x (i8|i16|i32)>, ptr", block) and "br i1" in block
    ]
