# SPDX-License-Identifier: Apache-2.0
"""Float32 models in mixed precision of a half type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.recorder import Recorder
from tvm_stitch.relax import in_half_precision, pipeline
from tvm_stitch.testing.count import count_kernels

HALF = {"float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("products", ["float32", "half"])
def test_inputs_and_products(dtype: str, products: str) -> None:
    weight = np.ones((3, 4), np.float32)

    def body(emit: Any, x: Any, tokens: Any) -> list[Any]:
        return [R.take(emit(R.matmul(x, relax.const(weight))), tokens, axis=0)]

    main = in_half_precision(build(body, ((2, 3), "float32"), ((2,), "int64")), dtype, products)["main"]
    assert [str(var.ty.dtype) for var in main.params] == [dtype, "int64"]
    bindings = [binding.value for block in main.body.blocks for binding in block.bindings]
    (made,) = [b for b in bindings if getattr(getattr(b, "op", None), "name", "") == "relax.matmul"]
    assert str(made.ty.dtype) == (dtype if products == "half" else "float32")
    assert {str(arg.ty.dtype) for arg in made.args} == {dtype}


def test_only_casts_that_lose_nothing_are_dropped() -> None:
    """A float64 that the model rounds to float32 does not become a float16 at once."""
    mod = build(
        lambda emit, x, y: [R.matmul(emit(R.astype(x, "float32")), y)],
        ((2, 3), "float64"),
        ((3, 4), "float32"),
    )
    main = in_half_precision(mod, "float16")["main"]
    casts = [b.value for block in main.body.blocks for b in block.bindings]
    casts = [c for c in casts if getattr(getattr(c, "op", None), "name", "") == "relax.astype"]
    assert [(str(c.args[0].ty.dtype), str(c.ty.dtype)) for c in casts][:2] == [
        ("float64", "float32"),
        ("float32", "float16"),
    ]


SHAPE = (2, 4, 3, 8)

OPERATORS = {  # that TVM's pass writes anew
    "attention": (
        lambda emit, x, y: R.nn.attention(x, x, x, scale=0.3, causal_mask="BottomRight"),
        [(SHAPE, "float32"), ((1,), "float32")],
    ),
    "attention with a bias": (
        lambda emit, x, y: R.nn.attention(x, x, x, y, scale=0.3),
        [(SHAPE, "float32"), ((2, 1, 4, 4), "float32")],
    ),
    "conv1d": (
        lambda emit, x, y: R.nn.conv1d(x, y, 2, 1, 2, 2),
        [((2, 4, 9), "float32"), ((6, 2, 3), "float32")],
    ),
    "conv2d": (
        lambda emit, x, y: R.nn.conv2d(x, y, [2, 1], [1, 0, 2, 1], 2, 2),
        [((2, 4, 9, 8), "float32"), ((6, 2, 3, 2), "float32")],
    ),
    "conv3d": (
        lambda emit, x, y: R.nn.conv3d(x, y, 1, 1, 1, 2),
        [((1, 4, 3, 4, 5), "float32"), ((2, 2, 3, 3, 3), "float32")],
    ),
    "conv2d_transpose": (
        lambda emit, x, y: R.nn.conv2d_transpose(x, y, 2, 1, 1, 1, 2),
        [((2, 4, 5, 5), "float32"), ((4, 3, 3, 3), "float32")],
    ),
    "conv1d_transpose": (
        lambda emit, x, y: R.nn.conv1d_transpose(x, y, 2, 1, 1, 1, 2),
        [((2, 4, 5), "float32"), ((4, 3, 3), "float32")],
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("products", ["float32", "half"])
def test_results_stay(name: str, products: str) -> None:
    """Nothing of an operator gets lost: results are the float32 model's to within the half type's digits."""
    body, specs = OPERATORS[name]
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(shape).astype("float16") for shape, _ in specs]
    mod = build(lambda emit, *xs: emit(body(emit, *xs)), *specs)
    found = []
    for made, dtype in ((mod, "float32"), (in_half_precision(mod, "float16", products), "float16")):
        machine = relax.VirtualMachine(tvm_stitch.compile(made, TARGET), tvm.cpu())
        found.append(machine["main"](*(tvm.runtime.tensor(a.astype(dtype)) for a in arrays)).numpy())
    np.testing.assert_allclose(found[1].astype("float32"), found[0], rtol=0, atol=5e-3 * abs(found[0]).max())


def test_other_types_are_refused() -> None:
    mod = build(lambda emit, x: [R.exp(x)], ((2, 3), "float32"))
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        in_half_precision(mod, "float64")
    with pytest.raises(ValueError, match="products are 'float32' or 'half', not 'float16'"):
        in_half_precision(mod, "float16", "float16")


@pytest.mark.parametrize("dtype", HALF)
def test_a_model_from_pytorch(dtype: str) -> None:
    """Convolutions, a norm, attention and a linear layer: all by templates or stitched, within the type's rounding."""
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import from_exported_program

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 32, 4, 4)
            self.norm = torch.nn.LayerNorm(32)
            self.attention = torch.nn.Linear(32, 96)
            self.head = torch.nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            q, k, v = self.attention(self.norm(x)).chunk(3, -1)
            x = x + torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1) @ v
            return self.head(torch.nn.functional.gelu(x))

    torch.manual_seed(1)
    model, image = Model().eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        program = torch.export.export(model, (image,))
    mod = from_exported_program(program, keep_params_as_input=False, unwrap_unit_return_tuple=True)
    with torch.no_grad():
        expected = model.double()(image.double()).numpy()
    half, recorder = in_half_precision(mod, dtype), Recorder()
    executable = tvm.compile(half, TARGET, relax_pipeline=pipeline(TARGET, None, recorder))
    assert all(how.startswith("our template") for how in recorder.computed.values())
    x = tvm.runtime.tensor(image.numpy().astype(HALF[dtype]))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](x).numpy()
    epsilon = 2.0**-11 if dtype == "float16" else 2.0**-8
    assert np.abs(result.astype("float64") - expected).max() < 4 * epsilon * np.abs(expected).max()
    if dtype == "float16":  # of bfloat16 TVM does not lower the norm
        ours, stock = (count_kernels(half, TARGET, p) for p in (pipeline(TARGET), None))
        assert ours.total <= stock.total and ours.memory_intensive <= stock.memory_intensive


def test_a_norm_that_tvm_does_not_even_build_of_bfloat16() -> None:
    scale, shift = (np.random.default_rng(i).standard_normal(4).astype("float32") for i in (1, 2))

    def body(emit: Any, x: Any) -> list[Any]:
        options: dict[str, Any] = {"num_groups": 2, "channel_axis": 1, "axes": [2, 3]}
        return [R.nn.relu(emit(R.nn.group_norm(x, relax.const(scale), relax.const(shift), **options)))]

    x = np.random.default_rng(3).standard_normal((2, 4, 5, 6)).astype(HALF["bfloat16"])
    mod = in_half_precision(build(body, (x.shape, "float32")), "bfloat16")
    result = relax.VirtualMachine(tvm_stitch.compile(mod), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    grouped = x.astype("float64").reshape(2, 2, -1)
    grouped = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    wide = grouped.reshape(x.shape) * scale.reshape(4, 1, 1) + shift.reshape(4, 1, 1)
    assert np.abs(result.astype("float64") - np.maximum(wide, 0)).max() < 2.0**-6 * np.abs(wide).max()


def test_strict_takes_it() -> None:
    weight = np.ones((3, 4), np.float32)
    mod = build(lambda emit, x: [R.nn.softmax(emit(R.matmul(x, relax.const(weight))))], ((2, 3), "float32"))
    tvm_stitch.compile(in_half_precision(mod, "float16"), TARGET, tvm_stitch.StitchConfig(strict=True))
