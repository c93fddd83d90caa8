# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose windows do not overlap as matrix products of patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, symbol
from tests.relax import cublaslt_stand_in
from tests.relax.library.matmul_calls import calls, operators
from tvm_stitch import StitchConfig, explain
from tvm_stitch.compute.cuda import library
from tvm_stitch.relax.constants.views import ConstantViews
from tvm_stitch.relax.library.patch_convolutions import PatchConvolutions
from tvm_stitch.relax.pipeline import planning_passes

F32 = "float32"
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
OPERATORS = {3: R.nn.conv1d, 4: R.nn.conv2d, 5: R.nn.conv3d}
TORCH = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}
MANY = CHOICES.fewest_patch_results + 1


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def product_of_patches(mod: tvm.IRModule) -> tvm.IRModule:
    return PatchConvolutions(lambda: True, CHOICES)(mod)


def last(emit: Any, x: Any) -> Any:
    """Channels from second to last."""
    rank = len(x.ty.shape.values)
    return emit(R.permute_dims(x, [0, *range(2, rank), 1]))


def second(emit: Any, x: Any) -> Any:
    """Channels from last to second."""
    rank = len(x.ty.shape.values)
    return emit(R.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))


CASES = [
    ((2, 3, 8, 12), (MANY, 3, 4, 4)),
    ((1, 5, 6, 3), (MANY, 5, 2, 3)),
    ((3, 5, 7, 11), (MANY, 5, 2, 3)),  # something is left behind the last patches
    ((1, 1, 4, 3), (MANY, 1, 1, 3)),
    ((2, 3, 17), (MANY, 3, 16)),
    ((1, 2, 4, 6, 5), (MANY, 2, 2, 3, 5)),
]


@pytest.mark.parametrize("lies_last", [False, True])
@pytest.mark.parametrize("parameter", [False, True])
@pytest.mark.parametrize(("data", "weight"), CASES, ids=str)
def test_it_means_the_same(data: Any, weight: Any, parameter: bool, lies_last: bool) -> None:
    w, x = draw(*weight), draw(*data)
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if lies_last else x

    def body(emit: Any, x: Any, *parameters: Any) -> list[Any]:
        weight_of = parameters[0] if parameter else relax.const(w)
        attrs = {"strides": list(w.shape[2:])}
        return [OPERATORS[w.ndim](second(emit, x) if lies_last else x, weight_of, **attrs)]

    types = [(given.shape, F32), *([(w.shape, F32)] if parameter else [])]
    mod = product_of_patches(build(body, *types))
    relax.analysis.well_formed(mod)
    assert "conv" not in mod.script() and "R.matmul" in mod.script()
    run = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    made = run(*map(tvm.runtime.tensor, [given, *([w] if parameter else [])])).numpy()
    wide = [torch.tensor(a.astype("float64")) for a in (x, w)]
    want, bound = (TORCH[w.ndim](a, b, None, w.shape[2:]).numpy() for a, b in (wide, [abs(v) for v in wide]))
    assert made.shape == want.shape and (np.abs(made - want) <= 1e-6 * bound).all()


def test_of_images() -> None:
    w = draw(MANY, 3, 4, 2)
    before = build(lambda emit, x: [R.nn.conv2d(x, relax.const(w), strides=[4, 2])], ((5, 3, 8, 6), F32))

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.permute_dims(emit(R.reshape(x, [5, 3, 2, 4, 3, 2])), [0, 2, 4, 1, 3, 5]))
        right = relax.const(np.ascontiguousarray(w.reshape(MANY, 24).T))
        y = emit(R.matmul(emit(R.reshape(y, [30, 24])), right, out_dtype=F32))
        return [R.permute_dims(emit(R.reshape(y, [5, 2, 3, MANY])), [0, 3, 1, 2])]

    tvm.ir.assert_structural_equal(product_of_patches(before), build(body, ((5, 3, 8, 6), F32)))


def test_patches_of_channels_that_lie_last_have_them_last() -> None:
    w = draw(2, 3, 4, 2)  # few results: no kernel is added
    before = build(
        lambda emit, x: [R.nn.conv2d(second(emit, x), relax.const(w), strides=[4, 2])], ((5, 8, 6, 3), F32)
    )

    def body(emit: Any, x: Any) -> list[Any]:
        second(emit, x)
        y = emit(R.permute_dims(emit(R.reshape(x, [5, 2, 4, 3, 2, 3])), [0, 1, 3, 2, 4, 5]))
        right = relax.const(np.ascontiguousarray(w.transpose(2, 3, 1, 0).reshape(24, 2)))
        y = emit(R.matmul(emit(R.reshape(y, [30, 24])), right, out_dtype=F32))
        return [R.permute_dims(emit(R.reshape(y, [5, 2, 3, 2])), [0, 3, 1, 2])]

    tvm.ir.assert_structural_equal(product_of_patches(before), build(body, ((5, 8, 6, 3), F32)))


def test_casts_behind_a_transposition_are_repeated_before_it() -> None:
    w = draw(2, 3, 4, 2).astype("float16")

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.relu(emit(R.astype(second(emit, x), "float16"))))
        return [R.nn.conv2d(y, relax.const(w), strides=[4, 2])]

    def expected(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.relu(emit(R.astype(x, "float16"))))
        y = emit(R.permute_dims(emit(R.reshape(y, [5, 2, 4, 3, 2, 3])), [0, 1, 3, 2, 4, 5]))
        right = relax.const(np.ascontiguousarray(w.transpose(2, 3, 1, 0).reshape(24, 2)))
        y = emit(R.matmul(emit(R.reshape(y, [30, 24])), right, out_dtype="float16"))
        return [R.permute_dims(emit(R.reshape(y, [5, 2, 3, 2])), [0, 3, 1, 2])]

    made = relax.transform.DeadCodeElimination()(product_of_patches(build(body, ((5, 8, 6, 3), F32))))
    tvm.ir.assert_structural_equal(made, build(expected, ((5, 8, 6, 3), F32)))


LEFT = [
    ((1, 3, 8, 8), (MANY, 3, 4, 4), {"strides": [2, 4]}),
    ((1, 3, 8, 8), (MANY, 3, 2, 2), {"strides": [2, 4]}),
    ((1, 3, 8, 8), (MANY, 3, 4, 4), {"strides": 4, "padding": 1}),
    ((1, 3, 8, 8), (MANY, 3, 4, 4), {"strides": 4, "padding": [0, 0, 0, 1]}),
    ((1, 3, 9, 9), (MANY, 3, 2, 2), {"strides": 2, "dilation": 3}),
    ((1, 4, 8, 8), (2 * MANY, 2, 4, 4), {"strides": 4, "groups": 2}),
    ((1, 3, 8, 8), (MANY, 3, 1, 1), {}),
    ((0, 3, 8, 8), (MANY, 3, 4, 4), {"strides": 4}),
    ((1, 3, 8, 8), (CHOICES.fewest_patch_results - 1, 3, 4, 4), {"strides": 4}),
    ((1, 8, 8, 3), (MANY, 3, 4, 4), {"strides": 4, "data_layout": "NHWC"}),
]


@pytest.mark.parametrize(("data", "weight", "attrs"), LEFT, ids=str)
def test_others_stay(data: Any, weight: Any, attrs: dict[str, Any]) -> None:
    mod = build(lambda emit, x: [R.nn.conv2d(x, relax.const(draw(*weight)), **attrs)], (data, F32))
    tvm.ir.assert_structural_equal(product_of_patches(mod), mod)


@pytest.mark.parametrize("channels", [3, 4, 5])
@pytest.mark.parametrize(
    ("dtype", "tf32"), [(F32, False), (F32, True), ("float16", False), ("bfloat16", False)]
)
def test_what_tensor_cores_convolve_is_copied_for_images_alone(channels: int, dtype: str, tf32: bool) -> None:
    w = relax.const(draw(MANY, channels, 4, 4), F32)

    def body(emit: Any, x: Any, lies_last: bool) -> list[Any]:
        weight = w if dtype == F32 else emit(R.astype(w, dtype))
        return [R.nn.conv2d(second(emit, x) if lies_last else x, weight, strides=4)]

    def is_product(lies_last: bool) -> bool:
        shape = (1, 8, 8, channels) if lies_last else (1, channels, 8, 8)
        mod = ConstantViews()(build(lambda emit, x: body(emit, x, lies_last), (shape, dtype)))
        return "R.matmul" in PatchConvolutions(lambda: True, CHOICES, tf32)(mod).script()

    assert is_product(lies_last=True)
    assert is_product(lies_last=False) == (channels <= 4 or (dtype == F32 and not tf32))


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_types_that_no_library_multiplies_stay(dtype: str) -> None:
    w = relax.const(draw(MANY, 3, 4, 4).astype(dtype))
    out = "int32" if dtype == "int8" else dtype
    mod = build(lambda emit, x: [R.nn.conv2d(x, w, strides=4, out_dtype=out)], ((1, 3, 8, 8), dtype))
    tvm.ir.assert_structural_equal(product_of_patches(mod), mod)


def test_a_symbolic_batch_is_multiplied() -> None:
    n, w, x = symbol("n"), draw(MANY, 3, 4, 4), draw(3, 3, 8, 8)
    mod = product_of_patches(
        build(lambda emit, x: [R.nn.conv2d(x, relax.const(w), strides=4)], ((n, 3, 8, 8), F32))
    )
    assert "R.matmul" in mod.script()
    run = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    want = torch.conv2d(torch.tensor(x), torch.tensor(w), None, 4).numpy()
    np.testing.assert_allclose(run(tvm.runtime.tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)


def test_images_of_symbolic_size_stay() -> None:
    w = relax.const(draw(MANY, 3, 4, 4))
    mod = build(lambda emit, x: [R.nn.conv2d(x, w, strides=4)], ((1, 3, 4 * symbol("h"), 8), F32))
    tvm.ir.assert_structural_equal(product_of_patches(mod), mod)


def test_the_library_is_not_opened_for_other_models() -> None:
    def called() -> bool:
        raise AssertionError("asked")

    mod = build(lambda emit, x: [R.exp(x)], ((3,), F32))
    tvm.ir.assert_structural_equal(PatchConvolutions(called, CHOICES)(mod), mod)


# -- in the pipeline -----------------------------------------------------------------------------------------------
@pytest.fixture
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUBLASLT, "function", cublaslt_stand_in.NAME)
    for each in (library.CUBLASLT, library.CUDNN):
        monkeypatch.setattr(each, "missing", lambda: None)
        monkeypatch.setattr(each, "load", lambda: None)


def planned(mod: tvm.IRModule, config: StitchConfig | None = None) -> tvm.IRModule:
    with CUDA:
        passes = planning_passes(CUDA, config or StitchConfig())
        return tvm.transform.Sequential(passes)(mod)


def downsampled(emit: Any, x: Any) -> list[Any]:
    """Build a ConvNeXt's layer between two stages: a norm over channels, and a convolution, both channels second."""
    channels = 32
    ones, weight = relax.const(np.ones(channels, F32)), relax.const(draw(16, channels, 2, 2))
    y = emit(R.nn.layer_norm(last(emit, x), ones, ones, axes=[-1]))
    y = emit(R.nn.conv2d(second(emit, y), weight, strides=2))
    y = emit(R.add(y, relax.const(draw(1, 16, 1, 1))))
    return [emit(R.nn.softmax(last(emit, y)))]


@pytest.mark.usefixtures("_libraries")
def test_between_norms_nothing_is_transposed_by_a_kernel_of_its_own() -> None:
    mod = planned(build(downsampled, ((2, 32, 8, 8), F32)))
    assert [str(call.args[0].global_symbol) for call in calls(mod)] == [cublaslt_stand_in.NAME]
    kernels = [name for name in operators(mod) if name == "call_tir"]
    assert len(kernels) == 2  # the norm that writes patches, and the bias with the softmax


@pytest.mark.usefixtures("_libraries")
@pytest.mark.parametrize("compute", ["convolution=libraries", "matmul=tvm", "convolution=tvm"])
def test_others_may_be_asked(compute: str) -> None:
    mod = planned(build(downsampled, ((2, 32, 8, 8), F32)), StitchConfig(compute=compute))
    assert cublaslt_stand_in.NAME not in mod.script()


def test_data_of_another_block_is_taken_as_it_is() -> None:
    """The tensor that it is a transposition of is not seen there."""
    w, builder = draw(MANY, 3, 4, 4), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((5, 8, 8, 3), F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(R.exp(x))
            turned = builder.emit_output(R.permute_dims(y, [0, 3, 1, 2]))
        with builder.dataflow():
            out = builder.emit_output(R.nn.conv2d(turned, relax.const(w), strides=4))
        builder.emit_func_output(out)
    mod = product_of_patches(builder.get())
    relax.analysis.well_formed(mod)
    assert "R.matmul" in mod.script() and "axes=[0, 2, 4, 1, 3, 5]" in mod.script()


@pytest.mark.usefixtures("_libraries")
def test_names_that_passes_give_are_not_those_of_the_model() -> None:
    """A call's own variable may have the name of a value of the model.

    Decisions of that name are about the value's own kernel.
    """
    w, k = draw(MANY, 3, 4, 4), draw(MANY, 1, 3, 3)

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.conv2d(x, relax.const(w), strides=4))
        for _ in range(3):
            z = emit(R.nn.conv2d(y, relax.const(k), padding=1, groups=MANY))
            y = emit(R.add(second(emit, emit(R.nn.softmax(last(emit, z)))), y))
        return [emit(R.exp(y))]

    told = str(explain(build(body, ((2, 3, 16, 16), F32)), CUDA))
    assert told.count("cuBLASLt: ") == 1 and "3 x depthwise_convolution" in told
    assert told.count("our kernel: depthwise") == 1


@pytest.mark.usefixtures("_libraries")
def test_a_report_says_what_computes_it() -> None:
    mod = build(downsampled, ((2, 32, 8, 8), F32))
    assert "cuBLASLt: 32 x 16 x 128" in str(explain(mod, CUDA))
