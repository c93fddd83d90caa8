# SPDX-License-Identifier: Apache-2.0
"""Small models as importers emit them: kernels counted next to TVM's, and right on llvm and in the emulator.

zoo/kernels.json has the compute-intensive and the memory-intensive kernels for each model and target. It has TVM's and
this package's, and the reasons why operators are left to TVM. TVM's are null if it does not compile the model, or its
launches depend on sizes. To write it anew:

    STITCH_WRITE_ZOO=1 pytest -n 0 tests/models/test_zoo.py -k kernels
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from cuda_emulator import run_lowered
from cuda_emulator.lowering import lower
from stitch_testing.once import once
from stitch_testing.random.graphs import emulated_target
from tvm_stitch.execution.count import KernelCount, count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.relax.pipeline import Recorder

pytest.importorskip("torch")
models = pytest.importorskip("tests.models.zoo.models")

TABLE = Path(__file__).parent / "zoo" / "kernels.json"
WRITE = bool(os.environ.get("STITCH_WRITE_ZOO"))
KNOWN: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
TARGETS = {"llvm": tvm.target.Target("llvm"), "cuda": emulated_target()}
TOLERANCE = 2e-5
"""Of the largest element of a result: float32 through a layer or two."""
EMULATED_SIZES = 6
"""Of a model, at most. All sizes run on llvm, and lengths around the bounds of vectors in test_symbolic_rows."""
NOT_EMULATED = {
    "asr_encoder_dynamic": "TVM's kernel of a convolution of symbolic length allocates memory on the device",
}


WRITTEN_TWICE_BY_TVM = {"mobilenet"}
"""Models with a convolution of TVM's whose epilogue is broadcast: all threads of a block write what one should."""


class Named:
    """A model with its name. Tests that count its kernels and run them share the passes of each target."""

    def __init__(self, name: str):
        self.name, self.made = name, models.MODELS[name]()
        self.recorders = {kind: Recorder() for kind in TARGETS}
        self.passes = {
            kind: once(pipeline(target, recorder=self.recorders[kind])) for kind, target in TARGETS.items()
        }


@pytest.fixture(scope="module", params=models.MODELS)
def named(request: pytest.FixtureRequest) -> Iterator[Named]:
    """A model. One at a time is kept."""
    yield Named(request.param)


def _stock(made: Any, target: tvm.target.Target) -> KernelCount | None:
    try:
        return count_kernels(made.mod, target, entry=made.func)
    except Exception:  # TVM does not compile it, or its launches depend on sizes
        return None


@pytest.mark.parametrize("kind", TARGETS)
def test_kernels(named: Named, kind: str) -> None:
    name, made = named.name, named.made
    recorder, target = named.recorders[kind], TARGETS[kind]
    own = count_kernels(made.mod, target, named.passes[kind], entry=made.func)
    assert own.external == 0
    if WRITE:
        stock = _stock(made, target)
        KNOWN.setdefault(name, {})[kind] = {
            "tvm": None if stock is None else [stock.compute_intensive, stock.memory_intensive],
            "ours": [own.compute_intensive, own.memory_intensive],
            "left": dict(recorder.declined),
        }
        TABLE.write_text(json.dumps(KNOWN, indent=1) + "\n", encoding="utf-8")
    known = KNOWN[name][kind]
    assert [own.compute_intensive, own.memory_intensive] == known["ours"], own.names
    assert recorder.declined == known["left"]
    if known["tvm"] is not None:
        assert all(mine <= theirs for mine, theirs in zip(known["ours"], known["tvm"]))


def test_numbers_on_llvm(named: Named) -> None:
    made = named.made
    executable = tvm.compile(made.mod, TARGETS["llvm"], relax_pipeline=named.passes["llvm"])
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for size in made.sizes:
        inputs = made.draw(*size)
        result = vm[made.func](*made.arguments(inputs))
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        _compare([each.numpy() for each in outputs], made.reference(inputs), size)


def test_numbers_in_the_emulator(named: Named) -> None:
    name, made = named.name, named.made
    if name in NOT_EMULATED:
        pytest.skip(NOT_EMULATED[name])
    lowered = lower(made.mod, TARGETS["cuda"], named.passes["cuda"], LOWERING)
    for size in made.sizes[:: -(-len(made.sizes) // EMULATED_SIZES)]:
        inputs = made.draw(*size)
        packed = [list(inputs[-made.packed :])] if made.packed else []
        done = run_lowered(lowered, [*inputs[: len(inputs) - made.packed], *packed], made.func)
        assert [str(r) for r in done.reports if not (name in WRITTEN_TWICE_BY_TVM and _is_of_tvm(r))] == []
        _compare(done.outputs, made.reference(inputs), size)


def _is_of_tvm(report: Any) -> bool:
    """Several threads of a convolution that TVM schedules write to the same place."""
    return report.kernel.startswith("fused_conv") and report.kind in ("race", "double-write")


def _compare(outputs: list[np.ndarray], wanted: list[np.ndarray], note: object) -> None:
    assert len(outputs) == len(wanted)
    for i, (got, want) in enumerate(zip(outputs, wanted)):
        assert got.shape == want.shape
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want, err_msg=f"output {i} at {note}")
            continue
        assert np.isfinite(want).all()
        error = np.abs(got.astype("float64") - want).max() / np.abs(want).max()
        assert error < TOLERANCE, (i, note)
