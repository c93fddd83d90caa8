# SPDX-License-Identifier: Apache-2.0
"""Kernels that are launched while the kernel in front ends wait for it before they access memory, and only those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

from cuda_emulator.lowering import lower
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import H200, LOWERING, build, cuda_source, emulated
from tests.relax.few_rows.test_chains import block, in_float64
from tvm_stitch.codegen.gpu import dependent_launch
from tvm_stitch.codegen.gpu.dependent_launch import COOPERATIVE, launch_attributes
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS, device_model
from tvm_stitch.relax import pipeline

DEPENDENT, GRID = "tirx.use_programtic_dependent_launch", "tirx.use_cooperative_launch"
WAIT = "griddepcontrol.wait"


def attention() -> tvm.IRModule:
    """Return attention of one query over 64 keys."""

    def body(emit: Any, q: Any, k: Any, v: Any) -> Any:
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        return R.matmul(emit(R.nn.softmax(scores, -1)), v)

    keys = (1, 4, 64, 32), "float16"
    return build(body, ((1, 4, 1, 32), "float16"), keys, keys)


def softmax() -> tvm.IRModule:
    return build(lambda emit, x: R.nn.softmax(x, -1), ((64, 512), "float16"))


MODELS = {"products": lambda: block(128, 192, "float16"), "attention": attention, "softmax": softmax}


def launched(
    mod: tvm.IRModule, arch: str = "sm_90a", config: StitchConfig | None = None
) -> list[tuple[str, ...]]:
    """Return the launch parameters without a value of each kernel."""
    target = emulated_target()
    if arch != "sm_90a":
        target = tvm.target.Target({**target.export(), "arch": arch, "host": "llvm"})
    kernels = lower(mod, target, pipeline(target, config), LOWERING).kernels
    return [tuple(p for p in params if p in (DEPENDENT, GRID)) for params in kernels.values()]


def test_kernels_of_many_phases_and_attention_of_few_queries_begin_early() -> None:
    assert launched(MODELS["products"]()) == [(DEPENDENT, GRID)]
    assert launched(MODELS["attention"]()) == [(DEPENDENT,)]
    assert launched(MODELS["softmax"]()) == [()]


def test_rows_of_several_blocks_do_not() -> None:
    """They have a grid barrier without clusters, and do not wait at their start."""
    rows = build(lambda emit, x: R.nn.softmax(x, -1), ((2, 1 << 20), "float32"))
    assert launched(rows, config=StitchConfig(clusters=False)) == [(GRID,)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_older_devices_launch_kernels_one_behind_another(arch: str) -> None:
    assert all(DEPENDENT not in params for params in launched(MODELS["products"](), arch))


@pytest.mark.parametrize("name", MODELS)
def test_kernels_wait_if_they_begin_early(name: str) -> None:
    """Each kernel has the wait and the launch, or neither."""
    mod = MODELS[name]()
    early = sum(DEPENDENT in params for params in launched(mod))
    assert cuda_source(mod).count(WAIT) == early
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    emulated(mod, *(rng.standard_normal(shape).astype("float16") for shape in shapes))


@pytest.mark.parametrize("name", ["products", "attention"])
def test_a_launch_without_the_wait_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_launch.B, "evaluate", _without_waits(dependent_launch.B.evaluate))
    mod = MODELS[name]()
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    with pytest.raises(AssertionError, match="before griddepcontrol.wait"):
        emulated(mod, *(np.ones(shape, "float16") for shape in shapes))


def _without_waits(evaluate: Any) -> Any:
    def changed(value: Any) -> None:
        if WAIT.split(".")[0] not in str(value):
            evaluate(value)

    return changed


def test_attributes_of_devices() -> None:
    plain = replace(H200, dependent_launches=False)
    assert launch_attributes(plain, True) == COOPERATIVE and launch_attributes(plain, False) == {}
    names = {name for name, device in GPUS.items() if device.dependent_launches}
    assert names == {"h100", "h200", "b200", "rtx5090"}
    assert not device_model("vulkan").dependent_launches


def test_products_are_right() -> None:
    mod, rng = MODELS["products"](), np.random.default_rng(0)
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    arrays = [
        (rng.standard_normal(s) * (s[-1] ** -0.5 if len(s) > 1 else 1)).astype("float16") for s in shapes
    ]
    for found, wanted in zip(emulated(mod, *arrays), in_float64(arrays)):
        assert np.abs(found.astype("float64") - wanted).max() <= 4e-3 * np.abs(wanted).max()
