# SPDX-License-Identifier: Apache-2.0
"""The kernel of a recurrent layer on a GPU, in the emulator: all cells, lengths and batches, and weights read again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch.relax
from cuda_emulator import EmulatedRun, lower, run_cuda, run_lowered
from stitch_testing.random.graphs import emulated_target
from tests.compute.recurrent.reference import LAYERS, cell_of, draw, layer_in_float64
from tests.relax.loops.modules import WEIGHTS, layer_module
from tvm_stitch.compute.recurrent.cell import Layer
from tvm_stitch.compute.recurrent.cuda_kernel import Division, cuda_recurrent, division_of
from tvm_stitch.device import GPUS
from tvm_stitch.support.failures import Refusal

TARGET = emulated_target()
H200 = GPUS["h200"]
OF_GPUS = [*LAYERS, Layer(cell_of("gru", 40, linear_before_reset=True))]


def close(run: EmulatedRun, layer: Layer, given: dict[str, Any], most: float = 1e-6) -> None:
    for found, wanted in zip(run.outputs, layer_in_float64(layer, given), strict=True):
        np.testing.assert_allclose(found.astype("float64"), wanted, rtol=0, atol=most)


def inputs_of(layer: Layer, given: dict[str, Any]) -> list[Any]:
    return [np.ascontiguousarray(given[n]) for n in layer.operands if n not in WEIGHTS]


@pytest.mark.parametrize("layer", OF_GPUS, ids=lambda layer: f"{layer.cell.kind}{layer.cell.hidden}")
def test_lengths_and_batches_of_one_artifact(layer: Layer) -> None:
    given = draw(layer, 3, 2, 5)
    lowered = lower(layer_module(layer, given), TARGET, tvm_stitch.relax.pipeline(TARGET))
    for steps, batch in ((1, 1), (4, 9), (7, 4), (0, 2), (3, 0)):
        drawn = draw(layer, steps, batch, 5, steps)
        own = given | {n: v for n, v in drawn.items() if n in ("x", "h", "c", "lengths")}
        run = run_lowered(lowered, inputs_of(layer, own)).check()
        close(run, layer, own)
        assert len([launch for launch in run.launches if launch.name.endswith("_kernel_kernel")]) == 1


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-3), ("bfloat16", 1.5e-2)])
def test_half_types(dtype: str, most: float) -> None:
    """States are added up in float32, and rounded for the results alone."""
    layer = Layer(cell_of("lstm", 64))
    given = {name: value.astype(dtype) for name, value in draw(layer, 5, 3, 8).items()}
    mod = layer_module(layer, given, 5)
    run = run_cuda(
        mod, inputs_of(layer, given), target=TARGET, relax_pipeline=tvm_stitch.relax.pipeline(TARGET)
    ).check()
    close(run, layer, {name: value.astype("float64") for name, value in given.items()}, most)


@pytest.mark.parametrize("kept", [0, 3, 7])
def test_weights_that_do_not_stay_are_read_in_each_step(kept: int) -> None:
    layer = Layer(cell_of("gru", 20))
    steps, batch = 3, 2
    given = draw(layer, steps, batch, 5)
    division = Division(blocks=3, units=7, kept=kept, rows=2, warps=4)
    builder = relax.BlockBuilder()
    kernel = cuda_recurrent(layer, division, steps, batch, "float32").without_attr("global_symbol")
    gvar = builder.add_func(kernel, "gru_kernel")
    projected = (given["x"] @ given["w"].T + given["bias"]).astype("float32")
    arguments = [projected, given["r"], given["h"]]
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(arguments)]
    with builder.function("main", params):
        with builder.dataflow():
            states = relax.TensorType([batch, 20], "float32")
            results = [relax.TensorType([steps, batch, 20], "float32"), states]
            made = builder.emit_output(relax.call_tir(gvar, params, results))
        builder.emit_func_output(made)
    pipeline = tvm_stitch.relax.pipeline(TARGET)
    close(run_cuda(builder.get(), arguments, target=TARGET, relax_pipeline=pipeline).check(), layer, given)


def test_code_does_not_grow_with_steps_or_units() -> None:
    def source(steps: int, hidden: int) -> str:
        layer = Layer(cell_of("lstm", hidden))
        mod = layer_module(layer, draw(layer, 1, 2, 4), steps)
        return lower(mod, TARGET, tvm_stitch.relax.pipeline(TARGET)).source

    lengths = [len(source(*sizes)) for sizes in ((8, 64), (128, 64), (8, 256))]
    assert max(lengths) < 1.1 * min(lengths)


def test_divisions() -> None:
    lstm = cell_of("lstm", 256)
    assert division_of(lstm, "float32", 1, H200) == Division(8, 32, 32, 1, 8)
    assert division_of(lstm, "float32", 16, H200).rows == 1
    assert division_of(lstm, "float32", 33, H200).rows == 3
    assert division_of(lstm, "float32", None, H200).rows == 4
    assert division_of(cell_of("gru", 12), "float16", 1, H200).blocks == 2
    large = division_of(cell_of("lstm", 512), "bfloat16", 4, H200)
    assert large.units == 64 and 0 < large.kept < 64
    small = replace(H200, shared_per_block=32 * 1024)
    assert division_of(lstm, "float32", 1, small).kept == 7


@pytest.mark.parametrize(
    ("cell", "dtype", "device", "reason"),
    [
        (cell_of("lstm", 256), "float32", GPUS["a100"], "the device has no clusters"),
        (cell_of("lstm", 256), "float64", H200, "its weights are of type float64"),
        (cell_of("lstm", 8, projection=4), "float32", H200, "its state is projected"),
        (cell_of("lstm", 2048), "float32", H200, "would read [0-9]+ bytes of weights in each step"),
    ],
)
def test_refusals(cell: Any, dtype: str, device: Any, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        division_of(cell, dtype, 1, device)


def test_a_layer_without_a_kernel_is_a_loop() -> None:
    layer = Layer(cell_of("lstm", 16))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    report = tvm_stitch.explain(layer_module(layer, draw(layer, 3, 2, 4)), target)
    assert "the device has no clusters" in str(report.verbose())
