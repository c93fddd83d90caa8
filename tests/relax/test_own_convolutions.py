# SPDX-License-Identifier: Apache-2.0
"""Which convolutions our CUDA kernel takes, what comes out, and that models with them are right in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import relax as R

from cuda_emulator import run_cuda
from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.own_convolutions import OwnConvolutions
from tvm_stitch.testing.random_graphs import emulated_target

TARGET = emulated_target()
RNG = np.random.default_rng()


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def conv(shape: Any, weight: Any, dtype: str = "float32", **attrs: Any) -> tvm.IRModule:
    constant = relax.const(draw(*weight).astype(dtype))
    operator = R.nn.conv1d if len(weight) == 3 else R.nn.conv2d
    return build(lambda emit, x: operator(x, constant, **attrs), (list(shape), dtype))


def rewritten(mod: tvm.IRModule, config: StitchConfig | None = None, target: Any = TARGET) -> Any:
    computed: dict[str, str] = {}
    return OwnConvolutions(target, config, computed)(mod), computed


def calls(mod: tvm.IRModule) -> list[str]:
    values = relax.analysis.get_var2val(mod["main"]).values()
    return [
        v.args[0].name_hint if v.op.name == "relax.call_tir" else v.op.name
        for v in values
        if isinstance(v, relax.Call)
    ]


def test_before_and_after() -> None:
    """Sums are divided, and added up by a function that fuses with what follows."""
    made, computed = rewritten(conv((1, 128, 14, 14), (128, 128, 3, 3), padding=1))
    assert calls(made) == ["convolution", "added_up"]
    (told,) = computed.values()
    assert told.startswith("our kernel: tiles of 64 channels x 64 places") and told.endswith("splits")
    relax.analysis.well_formed(made)


def test_undivided() -> None:
    made, _ = rewritten(conv((16, 64, 56, 56), (64, 64, 3, 3), padding=1))
    assert calls(made) == ["convolution"]


def test_convolutions_that_differ_in_sizes_share_a_kernel() -> None:
    def body(emit: Any, x: Any) -> Any:
        for channels in (64, 128, 256):
            weight = relax.const(draw(128 if channels < 256 else 64, 64 if channels == 64 else 128, 3, 3))
            x = emit(R.nn.conv2d(x, weight, padding=1))
        return x

    made, computed = rewritten(build(body, ([1, 64, 28, 28], "float32")))
    assert len(computed) == 3
    assert sum("convolution" in g.name_hint for g in made.get_global_vars()) < 3


@pytest.mark.parametrize(
    ("mod", "config"),
    [
        (conv((1, 64, 28, 28), (64, 64, 3, 3), "float16"), None),
        (conv((1, 28, 28, 64), (64, 3, 3, 64), data_layout="NHWC", kernel_layout="OHWI"), None),
        (conv((1, 64, 28, 28), (64, 64, 3, 3), padding=(0, 1, 1, 1)), None),
        (conv((1, 64, 28, 28), (64, 1, 3, 3), groups=64), None),
        (conv((symbol("n"), 64, 28, 28), (64, 64, 3, 3)), None),
        (conv((0, 64, 28, 28), (64, 64, 3, 3)), None),
        (conv((1, 64, 28, 28), (64, 64, 3, 3)), StitchConfig(tf32=True)),
        (conv((1, 64, 28, 28), (64, 64, 3, 3)), StitchConfig(compute="tvm")),
        (conv((1, 64, 28, 28), (64, 64, 3, 3)), StitchConfig(compute="libraries")),
        (
            build(
                lambda emit, x, w: R.nn.conv2d(x, w), ([1, 64, 9, 9], "float32"), ([64, 64, 3, 3], "float32")
            ),
            None,
        ),
    ],
)
def test_others_stay(mod: tvm.IRModule, config: StitchConfig | None) -> None:
    made, computed = rewritten(mod, config)
    assert not computed
    tvm.ir.assert_structural_equal(made, mod)


def test_devices_without_copies_in_the_background() -> None:
    mod = conv((1, 64, 28, 28), (64, 64, 3, 3))
    made, _ = rewritten(mod, target=tvm.target.Target({"kind": "cuda", "arch": "sm_75"}))
    tvm.ir.assert_structural_equal(made, mod)


@pytest.mark.parametrize("images", [1, 3])
def test_a_residual_block_in_the_emulator(images: int) -> None:
    """One kernel for each convolution, whether its sums are divided or not."""
    first, second, bias = draw(64, 64, 3, 3), draw(64, 64, 1, 1), draw(1, 64, 1, 1)

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, relax.const(first), padding=1))
        y = emit(R.nn.relu(emit(R.add(y, relax.const(bias)))))
        y = emit(R.nn.conv2d(y, relax.const(second)))
        return emit(R.nn.relu(emit(R.add(y, x))))

    x = draw(images, 64, 9, 7)
    recorder = Recorder()
    made = pipeline(TARGET, None, recorder)
    run = run_cuda(build(body, (list(x.shape), "float32")), [x], relax_pipeline=made, target=TARGET).check()
    assert [told.split(":")[0] for told in recorder.computed.values()] == ["our kernel", "our kernel"]
    assert any("splits" in told for told in recorder.computed.values()) and len(run.launches) == 2
    exact = torch.tensor(x).double()
    inner = torch.relu(
        torch.conv2d(exact, torch.tensor(first).double(), padding=1) + torch.tensor(bias).double()
    )
    wanted = torch.relu(torch.conv2d(inner, torch.tensor(second).double()) + exact).numpy()
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=0, atol=3e-6 * abs(wanted).max())
