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
from tvm_stitch.compute.recurrent.cuda_kernel import cuda_recurrent
from tvm_stitch.compute.recurrent.cuda_plan import Division, division_of
from tvm_stitch.device import GPUS
from tvm_stitch.relax.loops.recurrent import recurrent
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.support.failures import Refusal

TARGET = emulated_target()
H200 = GPUS["h200"]
OF_GPUS = [
    *LAYERS,
    Layer(cell_of("gru", 40, linear_before_reset=True)),
    Layer(cell_of("lstm", 100), True, True),
    Layer(cell_of("gru", 113)),
]
"""The last two have several blocks."""


def close(run: EmulatedRun, layer: Layer, given: dict[str, Any], most: float = 1e-6) -> None:
    for found, wanted in zip(run.outputs, layer_in_float64(layer, given), strict=True):
        np.testing.assert_allclose(found.astype("float64"), wanted, rtol=0, atol=most)


def inputs_of(layer: Layer, given: dict[str, Any]) -> list[Any]:
    return [np.ascontiguousarray(given[n]) for n in layer.operands if n not in WEIGHTS]


@pytest.mark.parametrize("layer", OF_GPUS, ids=lambda layer: f"{layer.cell.kind}{layer.cell.hidden}")
def test_lengths_and_batches_of_one_artifact(layer: Layer) -> None:
    given = draw(layer, 3, 2, 5)
    lowered = lower(layer_module(layer, given), TARGET, tvm_stitch.relax.pipeline(TARGET), LOWERING)
    for steps, batch in ((1, 1), (4, 9), (7, 4), (0, 2), (3, 0)):
        drawn = draw(layer, steps, batch, 5, steps)
        own = given | {n: v for n, v in drawn.items() if n in ("x", "h", "c", "lengths")}
        run = run_lowered(lowered, inputs_of(layer, own)).check()
        close(run, layer, own)
        assert len([launch for launch in run.launches if launch.name.endswith("_kernel_kernel")]) == 1


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-3), ("bfloat16", 1.5e-2)])
def test_half_types(dtype: str, most: float) -> None:
    """States are added up in float32, and rounded for the results alone."""
    layer = Layer(cell_of("lstm", 128))
    given = {name: value.astype(dtype) for name, value in draw(layer, 5, 3, 8).items()}
    mod = layer_module(layer, given, 5)
    run = run_cuda(
        mod,
        inputs_of(layer, given),
        target=TARGET,
        relax_pipeline=tvm_stitch.relax.pipeline(TARGET),
        tir_pipeline=LOWERING,
    ).check()
    close(run, layer, {name: value.astype("float64") for name, value in given.items()}, most)


def run_divided(layer: Layer, division: Division, steps: int, batch: int) -> None:
    """Run a layer's kernel with a division of its own, and compare its results."""
    given = draw(layer, steps, batch, 5)
    projected = (given["x"] @ given["w"].T + given["bias"]).astype("float32")
    arguments = [projected, given["r"], *(given[name] for name in layer.operands[4:])]
    builder = relax.BlockBuilder()
    kernel = cuda_recurrent([layer], division, steps, batch, "float32").without_attr("global_symbol")
    gvar = builder.add_func(kernel, "the_kernel")
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arguments)]
    hidden = layer.cell.hidden
    with builder.function("main", params):
        with builder.dataflow():
            states = relax.TensorType([batch, hidden], "float32")
            results = [relax.TensorType([steps, batch, hidden], "float32"), states]
            results += [states] if layer.cell.has_cell_state else []
            made = builder.emit_output(relax.call_tir(gvar, params, results))
        builder.emit_func_output(made)
    pipeline = tvm_stitch.relax.pipeline(TARGET)
    close(
        run_cuda(
            builder.get(), arguments, target=TARGET, relax_pipeline=pipeline, tir_pipeline=LOWERING
        ).check(),
        layer,
        given,
    )


CLUSTERS = [
    Layer(cell_of("lstm", 24, peepholes=True), True, True),
    Layer(cell_of("gru", 19), masked=True),
    Layer(cell_of("gru", 26, linear_before_reset=True)),
    Layer(cell_of("rnn", 37), True),
]


@pytest.mark.parametrize("layer", CLUSTERS, ids=lambda layer: f"{layer.cell.kind}{layer.cell.hidden}")
@pytest.mark.parametrize(
    ("blocks", "warps", "lanes", "own", "kept", "rows"),
    [(2, 2, 8, 9, 0, 1), (4, 1, 16, 1, 1, 2), (2, 2, 16, 0, 1, 3), (4, 1, 4, 0, 0, 4)],
    ids=["registers", "registers, shared memory and no room", "shared memory and no room", "no room"],
)
def test_weights_that_do_not_stay_are_read_in_each_step(
    layer: Layer, blocks: int, warps: int, lanes: int, own: int, kept: int, rows: int
) -> None:
    """In clusters whose last warps and blocks have fewer units, or no units."""
    units = -(-layer.cell.hidden // blocks)
    division = Division(blocks, units, warps, lanes, own, kept, rows, 2, 4 if own > 1 else 2, 4)
    division = replace(division, own=min(own, division.turns), rows=rows)
    for steps, batch in ((5, 2), (2, 7), (0, 1)):
        run_divided(layer, replace(division, rows=min(division.rows, batch)), steps, batch)


def test_more_rows_than_clusters_run_at_once() -> None:
    """Of a batch of symbolic size, a cluster then has several rows: an odd number, or as many as fit."""
    layer = Layer(cell_of("lstm", 100))
    given = draw(layer, 2, 1, 3)
    lowered = lower(layer_module(layer, given), TARGET, tvm_stitch.relax.pipeline(TARGET), LOWERING)
    clusters = H200.clusters_at_once(8)
    for batch, launched in ((2, 2), (clusters * 3, clusters), (clusters * 24 + 3, 25)):
        drawn = draw(layer, 2, batch, 3)
        own = given | {n: drawn[n] for n in ("x", "h", "c")}
        run = run_lowered(lowered, inputs_of(layer, own)).check()
        close(run, layer, own)
        (launch,) = [each for each in run.launches if each.name == "lstm_kernel_kernel"]
        assert launch.grid[0] == 8 * launched


def test_code_does_not_grow_with_steps_or_units() -> None:
    def source(steps: int, hidden: int) -> str:
        layer = Layer(cell_of("lstm", hidden))
        mod = layer_module(layer, draw(layer, 1, 2, 4), steps)
        return lower(mod, TARGET, tvm_stitch.relax.pipeline(TARGET), LOWERING).source

    lengths = [len(source(*sizes)) for sizes in ((8, 128), (128, 128), (8, 256), (8, 64))]
    assert max(lengths) < 1.1 * min(lengths)


def test_divisions() -> None:
    lstm = cell_of("lstm", 256)
    one = division_of(lstm, "float32", 1, H200)
    assert one == Division(
        8, 32, warps=8, lanes=16, own=2, kept=0, rows=1, clusters=13, together=2, at_once=4
    )
    assert one.registers(lstm) == 128 and one.streamed_bytes(lstm, 4) == 0
    assert [division_of(lstm, "float32", batch, H200).rows for batch in (13, 14, 64, None)] == [1, 2, 5, 24]
    assert division_of(cell_of("lstm", 64), "float32", 1, H200).blocks == 1
    assert division_of(cell_of("gru", 12), "float16", 1, H200).lanes == 4
    few = H200.with_choices(recurrent_register_weights=0)
    assert division_of(cell_of("rnn", 20), "float32", 1, few).blocks == 4  # of 8, the last would have no unit


def test_divisions_whose_weights_do_not_fit_in_registers() -> None:
    large = cell_of("lstm", 512)
    single, half = (division_of(large, dtype, 4, H200) for dtype in ("float32", "bfloat16"))
    assert single.own == half.own == 2 and single.turns == 8
    assert half.streamed_bytes(large, 2) == 0 < single.streamed_bytes(large, 4) < 512 * 1024
    small = replace(H200, shared_per_block=48 * 1024)
    assert division_of(large, "bfloat16", 1, small).kept < half.kept
    # More rows would cost room for weights.
    rows = division_of(large, "float32", None, H200).rows
    assert 1 < rows < 16 and single.kept == division_of(large, "float32", None, H200).kept
    for division in (single, half):
        assert division.shared_bytes(large, 4 if division is single else 2) <= H200.shared_per_block


@pytest.mark.parametrize(
    ("cell", "dtype", "device", "reason"),
    [
        (cell_of("lstm", 256), "float32", GPUS["a100"], "the device has no clusters"),
        (cell_of("lstm", 256), "float64", H200, "its weights are of type float64"),
        (cell_of("lstm", 8, projection=4), "float32", H200, "its state is projected"),
        (cell_of("lstm", 2048), "float32", H200, "would read [0-9]+ bytes of weights in each step"),
        (cell_of("rnn", 5000), "float16", H200, "5000 units are too many for the warps of a cluster"),
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


@pytest.mark.parametrize("states", ["0", "given", "from one tensor"])
@pytest.mark.parametrize(("kind", "hidden"), [("lstm", 20), ("gru", 113)])
def test_both_directions_are_one_kernel(kind: str, hidden: int, states: str) -> None:
    """Unless the second one's first states are computed behind the first layer."""
    layers = [Layer(cell_of(kind, hidden), backwards, True) for backwards in (False, True)]
    steps, batch, features = 4, 3, 5
    given = [draw(layer, steps, batch, features, seed) for seed, layer in enumerate(layers)]
    given[1] |= {name: given[0][name] for name in ("x", "lengths")}
    names = [name for name in ("h", "c") if name in given[0]]
    zeros = np.zeros((batch, hidden), "float32")
    for own in given:
        own |= {name: zeros for name in names if states == "0"}
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(given[0][name].shape, str(given[0][name].dtype)))
        for name in ("x", "lengths")
    ]
    pairs = [np.stack([own[name] for own in given]) for name in names]
    tensors = [
        relax.Var(f"both_{name}", relax.TensorType(pair.shape, "float32"))
        for name, pair in zip(names, pairs, strict=True)
    ]
    singles = [
        relax.Var(f"{name}{i}", relax.TensorType(zeros.shape, "float32")) for i in range(2) for name in names
    ]
    more = {"0": [], "given": singles, "from one tensor": tensors}[states]
    arguments = [given[0]["x"], given[0]["lengths"]]
    arguments += {"0": [], "given": [own[name] for own in given for name in names], "from one tensor": pairs}[
        states
    ]
    with builder.function("main", [*params, *more]):
        with builder.dataflow():
            results = []
            for number, layer in enumerate(layers):
                operands = {
                    name: relax.const(value) for name, value in given[number].items() if name in WEIGHTS
                }
                operands |= dict(zip(("x", "lengths"), params, strict=True))
                for at, name in enumerate(names):
                    if states == "0":
                        operands[name] = builder.emit(relax.op.zeros(zeros.shape, "float32"))
                    elif states == "given":
                        operands[name] = singles[number * len(names) + at]
                    else:
                        taken = relax.op.strided_slice(tensors[at], [0], [number], [number + 1])
                        operands[name] = builder.emit(relax.op.squeeze(builder.emit(taken), [0]))
                results += recurrent(builder, layer, operands)
            made = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(made)
    run = run_cuda(
        builder.get(),
        arguments,
        target=TARGET,
        relax_pipeline=tvm_stitch.relax.pipeline(TARGET),
        tir_pipeline=LOWERING,
    ).check()
    wanted = [
        result for layer, own in zip(layers, given, strict=True) for result in layer_in_float64(layer, own)
    ]
    for found, exact in zip(run.outputs, wanted, strict=True):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)
    launched = [launch for launch in run.launches if f"{kind}_kernel" in launch.name]
    assert len(launched) == (2 if states == "from one tensor" else 1)
    if states == "0":  # they are not written
        assert not [launch for launch in run.launches if "zeros" in launch.name or "full" in launch.name]
