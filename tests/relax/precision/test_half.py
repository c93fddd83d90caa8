# SPDX-License-Identifier: Apache-2.0
"""Float32 models in mixed precision of a half type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.script import ir as I
from tvm.script import relax as RS

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import in_half_precision, pipeline
from tvm_stitch.relax.rewriting.operators import operator_name

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
    """Convolutions, a norm, attention and linear layers: by templates, one kernel or stitched, right to the type."""
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
    computed = dict(recorder.computed)
    (attention,) = [computed.pop(name) for name in list(computed) if name.startswith("attention ")]
    assert attention.startswith("our kernel")
    assert len(computed) == 3 and all(how.startswith("our template") for how in computed.values())
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


# -- which operators follow ------------------------------------------------------------------------------------------
Emit = Callable[..., Any]
SQUARE = ((4, 4), "float32")


def values(mod: tvm.IRModule) -> list[Any]:
    """Return the values bound in a module's ``main``, in order."""
    return [b.value for block in mod["main"].body.blocks for b in block.bindings]


def types(mod: tvm.IRModule, name: str) -> list[str]:
    """Return the types of the results of an operator."""
    made = [v.ty for v in values(mod) if operator_name(v) == f"relax.{name}"]
    return [str(ty.dtype) for each in made for ty in getattr(each, "fields", [each])]


def run(mod: tvm.IRModule, *arrays: np.ndarray, planned: bool = True) -> list[np.ndarray]:
    """Return the results.

    ``planned=False`` omits TVM's memory plan, which takes what one branch allocates for others.
    """
    relax.analysis.well_formed(mod)
    if planned:
        executable = tvm_stitch.compile(mod, TARGET)
    else:
        passes = [
            *cpu.legalize_passes(TARGET),
            *cpu.dataflow_lower_passes(TARGET),
            *cpu.finalize_passes(TARGET),
        ]
        passes = [each for each in passes if each.info.name != "StaticPlanBlockMemory"]
        executable = tvm.compile(mod, TARGET, relax_pipeline=tvm.transform.Sequential(passes))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [each.numpy() for each in (result if hasattr(result, "__len__") else [result])]


LEAST = float(np.finfo("float32").min)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("products", ["float32", "half"])
def test_masks_stay_finite(dtype: str, products: str) -> None:
    """A row that a mask hides wholly is evenly spread. With infinities it would be no numbers."""
    mask = np.triu(np.full((4, 4), LEAST, np.float32), 1)
    mask[2] = LEAST

    def body(emit: Emit, x: Any, y: Any) -> list[Any]:
        scores = emit(R.matmul(emit(R.matmul(x, y)), y))
        return [R.nn.softmax(emit(R.maximum(emit(R.add(scores, relax.const(mask))), relax.const(LEAST))))]

    mod = in_half_precision(build(body, SQUARE, SQUARE), dtype, products)
    assert types(mod, "add") == types(mod, "maximum") == ["float32"]
    x, y = (np.random.default_rng(i).uniform(-1, 1, (4, 4)).astype(HALF[dtype]) for i in (1, 2))
    (found,) = run(mod, x, y)
    scores = x.astype("float64") @ y.astype("float64") @ y.astype("float64") + mask
    spread = np.exp(np.maximum(scores, LEAST) - np.maximum(scores, LEAST).max(-1, keepdims=True))
    np.testing.assert_allclose(found, spread / spread.sum(-1, keepdims=True), atol=0.05)
    np.testing.assert_array_equal(found[2], 0.25)


SCALARS = {  # and whether float16 and bfloat16 hold them
    0.5: (True, True),
    0.1: (False, False),
    1.001953125: (True, False),
    1e5: (False, False),
    2.0**100: (False, True),
    float("nan"): (False, False),
}


@pytest.mark.parametrize("number", SCALARS)
@pytest.mark.parametrize("dtype", HALF)
def test_numbers_that_a_half_type_holds(number: float, dtype: str) -> None:
    """An operator next to others is computed of float32."""
    mod = build(lambda emit, x: [R.multiply(emit(R.nn.relu(x)), relax.const(number))], SQUARE)
    held = SCALARS[number][dtype == "bfloat16"]
    found = in_half_precision(mod, dtype)
    assert types(found, "nn.relu") == [dtype]
    assert types(found, "multiply") == [dtype if held else "float32"]


def test_infinities_that_are_meant() -> None:
    mask = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype("float32")
    mod = in_half_precision(build(lambda emit, x: [R.add(x, relax.const(mask))], SQUARE), "float16")
    assert types(mod, "add") == ["float16"]


@pytest.mark.parametrize("bounds", [(0.0, 6.0), (-0.1, 0.1), (-1e30, 1e30)])
@pytest.mark.parametrize("products", ["float32", "half"])
@pytest.mark.parametrize("dtype", HALF)
def test_clip(bounds: tuple[float, float], products: str, dtype: str) -> None:
    def body(emit: Emit, x: Any, y: Any) -> list[Any]:
        return [R.clip(emit(R.matmul(emit(R.clip(x, *bounds)), y)), *bounds)]

    mod = in_half_precision(build(body, SQUARE, SQUARE), dtype, products)
    x, y = (np.random.default_rng(i).uniform(-2, 2, (4, 4)).astype(HALF[dtype]) for i in (1, 2))
    clipped = np.clip(x.astype("float64"), *bounds)
    (found,) = run(mod, x, y)
    np.testing.assert_allclose(
        found, np.clip(clipped @ y.astype("float64"), *bounds), atol=8 * EPSILON[dtype]
    )


EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def test_results_in_tuples_follow() -> None:
    def body(emit: Emit, x: Any) -> list[Any]:
        parts = emit(R.split(x, 2, axis=1))
        first, second = emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1))
        return [R.matmul(emit(R.nn.relu(second)), emit(R.permute_dims(emit(R.concat([first, second], 0)))))]

    mod = in_half_precision(build(body, SQUARE), "float16")
    for name in ("split", "nn.relu", "concat", "permute_dims"):
        assert set(types(mod, name)) == {"float16"}
    assert "float16" not in types(mod, "astype")  # nothing is cast to it: all of it is
    x = np.random.default_rng(1).uniform(-2, 2, (4, 4)).astype("float16")
    wide = x.astype("float64")
    expected = np.maximum(wide[:, 2:], 0) @ np.concatenate([wide[:, :2], wide[:, 2:]]).T
    np.testing.assert_allclose(run(mod, x)[0], expected, atol=8 * EPSILON["float16"])


@pytest.mark.parametrize("dtype", HALF)
def test_tables_become_half(dtype: str) -> None:
    table = np.random.default_rng(1).uniform(-1, 1, (5, 4)).astype("float32")

    def body(emit: Emit, tokens: Any, w: Any) -> list[Any]:
        return [R.matmul(emit(R.take(relax.const(table), tokens, axis=0)), w)]

    mod = in_half_precision(build(body, ((3,), "int64"), SQUARE), dtype)
    assert types(mod, "take") == [dtype] and dtype not in types(mod, "astype")
    w = np.random.default_rng(2).uniform(-1, 1, (4, 4)).astype(HALF[dtype])
    tokens = np.array([4, 0, 2])
    expected = table[tokens].astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(run(mod, tokens, w)[0], expected, atol=8 * EPSILON[dtype])


def test_a_value_is_cast_once() -> None:
    """For however many products read it, and whatever else reads it as half."""

    def body(emit: Emit, x: Any, w: Any) -> list[Any]:
        y = emit(R.nn.softmax(x))
        return [R.matmul(y, w), R.matmul(w, y), R.matmul(y, y), R.nn.relu(y)]

    mod = in_half_precision(build(body, SQUARE, SQUARE), "float16")
    assert types(mod, "astype").count("float16") == 1
    assert set(types(mod, "nn.relu")) == {"float16"}


def test_what_is_rounded_to_integers_stays_rounded() -> None:
    """A cast to a half type is of what it was of, not of what that was made from."""

    def body(emit: Emit, x: Any) -> list[Any]:
        return [R.astype(emit(R.astype(emit(R.astype(x, "int32")), "float16")), "float32")]

    x = np.array([-1.75, 0.5, 2.25], "float16")
    (found,) = run(in_half_precision(build(body, ((3,), "float32")), "float16"), x)
    np.testing.assert_array_equal(found, [-1, 0, 2])


@I.ir_module
class Branches:
    @RS.function
    def main(c: RS.Tensor((), "bool"), x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
        y = RS.nn.softmax(RS.matmul(x, w))
        u = RS.nn.relu(RS.matmul(w, x))
        if c:
            z = RS.matmul(y, w)
        else:
            z = RS.add(RS.matmul(y, y), y)
        v = RS.matmul(y, z)
        return RS.add(RS.multiply(v, u), y)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("products", ["float32", "half"])
def test_branches(dtype: str, products: str) -> None:
    """A cast that one of them makes, or a block before them, is made again where it is not seen."""
    mod = in_half_precision(Branches, dtype, products)
    x, w = (np.random.default_rng(i).uniform(-1, 1, (4, 4)).astype(HALF[dtype]) for i in (1, 2))
    wide_x, wide_w = x.astype("float64"), w.astype("float64")
    y = np.exp(wide_x @ wide_w)
    y /= y.sum(-1, keepdims=True)
    for condition in (True, False):
        z = y @ wide_w if condition else y @ y + y
        expected = (y @ z) * np.maximum(wide_w @ wide_x, 0) + y
        (found,) = run(mod, np.array(condition), x, w, planned=False)
        np.testing.assert_allclose(found, expected, atol=24 * EPSILON[dtype])


def test_several_blocks() -> None:
    @I.ir_module
    class Module:
        @RS.function
        def main(x: RS.Tensor((4, 4), "float32"), w: RS.Tensor((4, 4), "float32")):
            with RS.dataflow():
                y = RS.nn.relu(x)
                z = RS.nn.softmax(RS.matmul(y, w))
                u = RS.matmul(z, w)
                RS.output(y, z, u)
            e = RS.call_pure_packed("vm.builtin.copy", u, ty_args=RS.Tensor((4, 4), "float32"))
            with RS.dataflow():
                v = RS.add(RS.matmul(z, e), RS.nn.relu(y))
                RS.output(v)
            return v

    x, w = (np.random.default_rng(i).uniform(-1, 1, (4, 4)).astype("float16") for i in (1, 2))
    y, wide_w = np.maximum(x.astype("float64"), 0), w.astype("float64")
    z = np.exp(y @ wide_w)
    z /= z.sum(-1, keepdims=True)
    for products in ("float32", "half"):
        (found,) = run(in_half_precision(Module, "float16", products), x, w)
        np.testing.assert_allclose(found, z @ (z @ wide_w) + y, atol=16 * EPSILON["float16"])


def test_a_half_value_that_was_truncated_to_integers_stays_so() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        whole = emit(R.astype(emit(R.astype(x, "float16")), "int32"))
        return [R.astype(whole, "float16")]

    half = in_half_precision(build(body, ((4,), "float32")), "float16")
    x = tvm.runtime.tensor(np.array([0.5, 1.75, -2.5, 3], "float16"))
    result = relax.VirtualMachine(tvm_stitch.compile(half, TARGET), tvm.cpu())["main"](x).numpy()
    np.testing.assert_array_equal(result, np.array([0, 1, -2, 3], "float16"))
