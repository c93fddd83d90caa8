# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers as kernels of a CPU, and as loops elsewhere: numbers for all lengths, and the number of kernels."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch
from tests.compute.recurrent.reference import LAYERS, cell_of, draw, layer_in_float64, same
from tests.relax.loops.modules import arguments, layer_module, run
from tvm_stitch.compute.recurrent.cell import Layer
from tvm_stitch.device import device_model
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.loops.recurrent_layers import RecurrentLayers, tiling_of
from tvm_stitch.target import resolve_target

HERE = resolve_target("native")
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


@pytest.mark.parametrize("layer", LAYERS)
def test_lengths_from_one_artifact(layer: Layer) -> None:
    given = draw(layer, 3, 2, 5)
    executable = tvm_stitch.compile(layer_module(layer, given), HERE)
    for steps, batch in ((1, 1), (2, 9), (37, 4), (300, 3), (0, 2), (3, 0)):
        drawn = draw(layer, steps, batch, 5, steps)
        own = given | {n: v for n, v in drawn.items() if n in ("x", "h", "c", "lengths")}
        assert same(run(executable, arguments(layer, own)), layer_in_float64(layer, own), 1e-5)


def test_an_architecture_without_wide_vectors() -> None:
    layer = LAYERS[1]
    given = draw(layer, 6, 3, 5)
    executable = tvm_stitch.compile(layer_module(layer, given), "llvm")
    assert same(run(executable, arguments(layer, given)), layer_in_float64(layer, given), 1e-5)


def test_a_divided_layer() -> None:
    """Weights beyond a cache are divided between threads, which wait for each other in each step."""
    layer = Layer(cell_of("lstm", 400))
    assert tiling_of(layer.cell, HERE, device_model(HERE, tvm_stitch.StitchConfig()).choices).by_units
    given = draw(layer, 9, 2, 8)
    given["r"] /= 4
    executable = tvm_stitch.compile(layer_module(layer, given), HERE)
    for _ in range(3):
        assert same(run(executable, arguments(layer, given)), layer_in_float64(layer, given), 1e-5)


@pytest.mark.parametrize("target", [HERE, CUDA])
def test_kernels_do_not_grow_with_steps(target: tvm.target.Target) -> None:
    layer = Layer(cell_of("lstm", 16))
    given = draw(layer, 1, 2, 4)
    counts = [
        count_kernels(layer_module(layer, given, steps), target, pipeline(target)).total
        for steps in (20, 200)
    ]
    assert counts[0] == counts[1] <= 4


def test_256_steps_compile_soon() -> None:
    layer = Layer(cell_of("lstm", 64))
    mod = layer_module(layer, draw(layer, 1, 1, 16), 256)
    start = time.process_time()
    tvm_stitch.compile(mod, HERE)
    assert time.process_time() - start < 15  # less than 3 s alone, and unrolled steps took 60 s


def test_weights_are_packed_when_compiled() -> None:
    layer = LAYERS[0]
    mod = layer_module(layer, draw(layer, 3, 2, 5))
    assert count_kernels(mod, HERE, pipeline(HERE)).total == 2  # the product of the inputs, and the steps


@pytest.mark.usefixtures("children_without_torch")
def test_an_exported_library_in_another_process(tmp_path: Path) -> None:
    layer = LAYERS[3]
    given = draw(layer, 12, 3, 5)
    path = tmp_path / "layer.so"
    tvm_stitch.export_library(tvm_stitch.compile(layer_module(layer, given), HERE), path, HERE)
    for number, argument in enumerate(arguments(layer, given)):
        np.save(tmp_path / f"{number}.npy", argument.numpy())
    script = f"""
import numpy as np, tvm
from tvm import relax
vm = relax.VirtualMachine(tvm.runtime.load_module({str(path)!r}), tvm.cpu())
given = [tvm.runtime.tensor(np.load(f"{tmp_path}/{{i}}.npy")) for i in range({len(arguments(layer, given))})]
for i, each in enumerate(vm["main"](*given)):
    np.save(f"{tmp_path}/result{{i}}.npy", each.numpy())
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    found = [tvm.runtime.tensor(np.load(tmp_path / f"result{i}.npy")) for i in range(2)]
    assert same(found, layer_in_float64(layer, given), 1e-5)


def test_a_function_without_its_attribute_stays() -> None:
    layer = LAYERS[0]
    mod = layer_module(layer, draw(layer, 3, 2, 5))
    bare = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs and "tvm_stitch.recurrent_layer" in func.attrs:
            bare.update_func(gvar, func.without_attr("tvm_stitch.recurrent_layer"))
    assert RecurrentLayers(HERE)(bare).same_as(bare)
    assert not RecurrentLayers(HERE)(mod).same_as(mod)
