# SPDX-License-Identifier: Apache-2.0
"""Operators that TVM cannot legalize: their numbers, their kernels, and calls that stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.reference.relax import evaluate
from tests.graph.helpers import build, emulated, on_llvm, symbol
from tests.repairs import faults
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.repairs.legalize.mend import MENDED, MendImports

torch = pytest.importorskip("torch")

N, H = symbol("n"), symbol("h")
IMAGES = [
    ((4, 3, 5), (4, 3, 5)),
    ((2, 8, 3, 5), (2, 8, 3, 5)),
    ((2, 1, 12, 3, 4), (2, 1, 12, 3, 4)),
    ((N, 4, H, 5), (3, 4, 7, 5)),
]


def shuffled(shape: Sequence[Any], factor: int = 2, dtype: str = "float32") -> tvm.IRModule:
    return build(lambda emit, x: R.nn.pixel_shuffle(x, factor), (shape, dtype))


def multiply_add(dtype: str, *shapes: tuple[int, ...]) -> tvm.IRModule:
    return build(lambda emit, x, y, z: R.ewise_fma(x, y, z), *((shape, dtype) for shape in shapes))


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize(("shape", "size"), IMAGES)
def test_pixels_are_where_pytorch_puts_them(
    run: Any, dtype: str, shape: tuple[Any, ...], size: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).integers(-99, 99, size).astype(dtype)
    wanted = torch.pixel_shuffle(torch.tensor(x), 2).numpy()
    np.testing.assert_array_equal(evaluate(shuffled(shape, dtype=dtype), [x])[0], wanted)
    np.testing.assert_array_equal(run(shuffled(shape, dtype=dtype), x)[0], wanted)


def test_images_without_elements() -> None:
    (found,) = on_llvm(shuffled((0, 9, 3, 5), 3), np.zeros((0, 9, 3, 5), "float32"))
    assert found.shape == (0, 1, 9, 15)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("float16", 2e-3), ("int32", 0)])
def test_sums_with_products(run: Any, dtype: str, error: float) -> None:
    rng = np.random.default_rng(0)
    operands = [rng.uniform(1, 9, (7, 13)).astype(dtype) for _ in range(3)]
    x, y, z = (each.astype("float64") for each in operands)
    (found,) = run(multiply_add(dtype, *[(7, 13)] * 3), *operands)
    np.testing.assert_allclose(found, x * y + z, rtol=error)


def test_each_is_one_kernel_with_its_neighbours() -> None:
    def body(emit: Any, x: Any, y: Any, z: Any) -> Any:
        image = emit(R.exp(emit(R.ewise_fma(x, y, z))))
        return R.nn.relu(emit(R.nn.pixel_shuffle(image, 2)))

    mod = build(body, *[((2, 8, 4, 6), "float32")] * 3)
    for target in (faults.LLVM, faults.CUDA):
        assert count_kernels(mod, target, faults.ours(target)).total == 1


def test_images_of_unknown_shape_stay() -> None:
    image = relax.Var("x", relax.TensorType(dtype="float32", ndim=4))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            result = builder.emit_output(R.nn.pixel_shuffle(image, 2))
        builder.emit_func_output(result)
    mod = builder.get()
    tvm.ir.assert_structural_equal(MendImports()(mod), mod)


MODULES = {
    "relax.nn.pixel_shuffle": shuffled((1, 4, 3, 5)),
    "relax.ewise_fma": multiply_add("float32", (4,), (4,), (4,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_fault(name: str) -> None:
    fails = faults.raises(lambda: tvm.compile(MODULES[name], faults.LLVM))
    faults.needed(fails, f"imports/unlegalized.py ({name})")


@pytest.mark.parametrize("name", MODULES)
def test_repair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not faults.raises(
        lambda: tvm.compile(MODULES[name], faults.LLVM, relax_pipeline=faults.ours(faults.LLVM))
    )
    monkeypatch.delitem(MENDED, name)
    assert faults.raises(
        lambda: tvm.compile(MODULES[name], faults.LLVM, relax_pipeline=faults.ours(faults.LLVM))
    )
