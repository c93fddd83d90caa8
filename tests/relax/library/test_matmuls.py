# SPDX-License-Identifier: Apache-2.0
"""Products become calls of cuBLASLt that mean the same, or are left with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import Spec, build, symbol
from tests.relax import cublaslt_stand_in
from tvm_stitch import StitchConfig, explain
from tvm_stitch.compute.cuda import library
from tvm_stitch.config import ASKED
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.matmuls import LibraryMatmuls
from tvm_stitch.testing.workloads.cases import cases

F32 = "float32"
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
LIBRARIES = StitchConfig(compute="libraries")
Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUBLASLT, "function", cublaslt_stand_in.NAME)
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: "cuBLASLt is not here")


def rewritten(
    mod: tvm.IRModule, target: Any = CUDA, config: StitchConfig = LIBRARIES
) -> tuple[Any, list[str]]:
    made = LibraryMatmuls(target, config)(mod)
    return without_decisions(made), list(decisions_of(made).computed.values())


def calls(mod: tvm.IRModule) -> list[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(
        mod["main"],
        lambda e: (
            found.append(e)
            if getattr(getattr(e, "op", None), "name", "") == "relax.call_dps_packed"
            else None
        ),
    )
    return found


def operators(mod: tvm.IRModule) -> list[str]:
    """The Relax operators that are left, in order."""
    return [
        b.value.op.name.removeprefix("relax.")
        for block in mod["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call)
    ]


def numbers(call: Any) -> list[str]:
    return [re.sub(r"T\.int64\((\d+)\)", r"\1", str(v)) for v in call.args[1].fields[-2].values]


def mode(call: Any) -> str:
    """What is asked of a product, but for the timing of algorithms, which static shapes have."""
    words = str(call.args[1].fields[-1].value).split()
    numbers = call.args[1].fields[-2].values
    assert ("timed" in words) == all(isinstance(number, tvm.tirx.IntImm) for number in numbers)
    return " ".join(word for word in words if word != "timed")


def draw(shape: tuple[int, ...], dtype: str = F32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32).astype(dtype)


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm"))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def check(
    body: Body, expected: Body, *specs: Spec, sizes: tuple[int, ...] = (), weights: int = 0, products: int = 1
) -> Any:
    """Rewrite, run with every size of a symbol, compare with NumPy, and return the rewritten module.

    ``specs`` may have the extent "n". The last ``weights`` of them are constants.
    """
    n = symbol()
    shapes = [[n if e == "n" else e for e in s] for s, _ in specs]
    fixed = [draw(tuple(s), d) for s, d in specs[len(specs) - weights :]]
    params = list(zip(shapes, [d for _, d in specs]))[: len(specs) - weights]
    mod = build(lambda emit, *xs: body(emit, *xs, *map(relax.const, fixed)), *params)
    made, how = rewritten(mod)
    assert len(calls(made)) == products and "matmul" not in operators(made)
    assert all(h.startswith("cuBLASLt: ") for h in how)
    for size in sizes or (1,):
        arrays = [draw(tuple(size if e == "n" else e for e in s), d) for s, d in specs[: len(params)]]
        wide = [a.astype("float64") for a in (*arrays, *fixed)]
        result, wanted = run(made, *arrays), expected(*wide)
        assert result.shape == wanted.shape
        np.testing.assert_allclose(
            result.astype("float64"), wanted, 2e-2 if result.itemsize == 2 else 1e-5, 1e-5
        )
    return made


MATMULS = [
    ((8,), (8,)), ((8,), (8, 5)), ((3, 8), (8,)), ((1, 1), (1, 1)), ((1, 8), (8, 5)), ((3, 8), (8, 1)),
    ((3, 1), (1, 5)), ((2, 3, 8), (8, 5)), ((2, 3, 4, 8), (8, 5)), ((2, 3, 8), (2, 8, 5)),
    ((2, 3, 4, 8), (2, 3, 8, 5)), ((1, 4, 8), (6, 8, 5)), ((6, 4, 8), (1, 8, 5)), ((4, 8), (6, 8, 5)),
    ((6, 1, 8), (6, 8, 5)), ((8,), (6, 8, 5)), ((6, 4, 8), (8,)), ((2, 3, 1, 8), (8, 5)), ((3, 4, 8), (2, 1, 8, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_any_rank(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(lambda emit, x, y: R.matmul(x, y), np.matmul, (left, F32), (right, F32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("out", [None, F32])
def test_half_types(dtype: str, out: str | None) -> None:
    made = check(
        lambda emit, x, y: R.matmul(x, y, out_dtype=out), np.matmul, ((3, 8), dtype), ((8, 5), dtype)
    )
    assert str(made["main"].ret_ty.dtype) == (out or dtype)


def test_leading_axes_are_rows_where_the_right_side_is_a_weight() -> None:
    made = check(
        lambda emit, x, w: R.matmul(x, w),
        np.matmul,
        (("n", 3, 8), F32),
        ((8, 5), F32),
        sizes=(0, 1, 4),
        weights=1,
    )
    (call,) = calls(made)
    assert (numbers(call), mode(call)) == (["n * 3", "5", "8", "1", "8", "5", "5", "0", "0", "0"], "")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((24, "n"), ("n", 40)),
        ((16, 40), (40, "n")),
        (("n", 5, 8), ("n", 8, 3)),
        (("n", "n"), ("n", "n")),
        (("n",), ("n",)),
    ],
)
def test_symbolic_extents(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    check(lambda emit, x, y: R.matmul(x, y), np.matmul, (left, F32), (right, F32), sizes=(0, 1, 2, 7))


def transposed(emit: Any, x: Any) -> Any:
    axes = list(range(x.ty.ndim))
    return emit(R.permute_dims(x, [*axes[:-2], axes[-1], axes[-2]]))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("sides", ["left", "right", "left right"])
def test_transposes_are_read_as_they_lie(batch: tuple[int, ...], sides: str) -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.matmul(
            transposed(emit, x) if "left" in sides else x, transposed(emit, y) if "right" in sides else y
        )

    def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x.swapaxes(-1, -2) if "left" in sides else x) @ (
            y.swapaxes(-1, -2) if "right" in sides else y
        )

    left, right = ((8, 4) if "left" in sides else (4, 8)), ((5, 8) if "right" in sides else (8, 5))
    made = check(body, expected, ((*batch, *left), F32), ((*batch, *right), F32))
    assert operators(made) == ["call_dps_packed"]
    assert mode(calls(made)[0]).split() == [f"{side}_transposed" for side in sides.split()]


def test_a_weight_that_the_graph_transposes() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return R.matmul(x, emit(R.permute_dims(w)))

    made = check(body, lambda x, w: x @ w.T, (("n", 8), F32), ((5, 8), F32), sizes=(0, 1, 3), weights=1)
    assert operators(made) == ["call_dps_packed"]


def heads(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(x, [0, 2, 1, 3]))


def attention_scores(emit: Any, q: Any, k: Any) -> Any:
    return R.matmul(heads(emit, q), emit(R.permute_dims(heads(emit, k), [0, 1, 3, 2])))


def expected_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("bshd,bthd->bhst", q, k)


def test_heads_of_one_sequence_are_a_batch_with_strides() -> None:
    made = check(
        attention_scores, expected_scores, ((1, "n", 3, 4), F32), ((1, 7, 3, 4), F32), sizes=(0, 1, 5)
    )
    assert operators(made) == ["call_dps_packed"]
    assert numbers(calls(made)[0]) == ["n", "7", "4", "3", "12", "12", "7", "4", "4", "n * 7"]


def test_heads_of_several_sequences_stay_permuted() -> None:
    made = check(attention_scores, expected_scores, ((2, 5, 3, 4), F32), ((2, 7, 3, 4), F32))
    assert operators(made) == ["permute_dims", "permute_dims", "call_dps_packed"]
    assert mode(calls(made)[0]) == "right_transposed"


def test_what_importers_wrap_products_in() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        left = emit(R.reshape(emit(R.broadcast_to(x, (2, 3, 4, 8))), (6, 4, 8)))
        right = emit(R.reshape(emit(R.broadcast_to(transposed(emit, y), (2, 3, 8, 5))), (6, 8, 5)))
        return R.reshape(emit(R.matmul(left, right)), (2, 3, 4, 5))

    made = check(body, lambda x, y: x @ y.swapaxes(-1, -2), ((2, 3, 4, 8), F32), ((2, 3, 5, 8), F32))
    assert operators(made) == ["call_dps_packed", "reshape"]


def test_a_broadcast_side_is_read_once_a_batch() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.matmul(x, emit(R.broadcast_to(y, (6, 8, 5))))

    made = check(body, lambda x, y: x @ y, ((6, 4, 8), F32), ((1, 8, 5), F32))
    assert operators(made) == ["call_dps_packed"] and numbers(calls(made)[0])[0] == "24"


@pytest.mark.parametrize(
    ("left", "right"),
    [((6, 1), (8, 5)), ((6, 8), (1, 5)), ((1, 1), (8, 5)), ((3, 6, 1), (3, 8, 5))],
    ids=["left", "right", "row", "batch"],
)
def test_what_is_repeated_along_the_depth_is_written(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """The library reads as many elements as are summed over."""
    wide = (*left[:-1], 8), (*right[:-2], 8, 5)

    def body(emit: Any, x: Any, y: Any) -> Any:
        x, y = (emit(R.broadcast_to(v, s)) for v, s in zip((x, y), wide, strict=True))
        return R.matmul(x, y)

    def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, wide[0]) @ np.broadcast_to(y, wide[1])

    made = check(body, expected, (left, F32), (right, F32))
    assert "broadcast_to" in operators(made)


def test_a_view_is_not_looked_through_where_its_source_is_out_of_sight() -> None:
    """A dataflow variable is none outside its block."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 4], F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(R.exp(x))
            turned = builder.emit_output(R.permute_dims(hidden))
        between = builder.emit(R.negative(x))
        with builder.dataflow():
            out = builder.emit_output(R.add(builder.emit(R.matmul(turned, turned)), between))
        builder.emit_func_output(out)
    made, _ = rewritten(builder.get())
    relax.analysis.well_formed(made)  # raises what is wrong
    a = draw((4, 4))
    np.testing.assert_allclose(run(made, a), np.exp(a).T @ np.exp(a).T - a, 1e-5)


def test_an_operand_with_other_readers_stays() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        turned = transposed(emit, x)
        return [emit(R.matmul(x, turned)), emit(R.exp(turned))]

    mod = build(body, ((4, 8), F32))
    made, _ = rewritten(mod)
    assert sorted(operators(made)) == ["call_dps_packed", "exp", "permute_dims"]


def test_heads_are_merged_by_the_product() -> None:
    """The values of one sequence: stored as the next product reads them."""

    def body(emit: Any, p: Any, v: Any) -> Any:
        return R.reshape(heads(emit, emit(R.matmul(p, heads(emit, v)))), (1, 5, 12))

    def expected(p: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.einsum("bhst,bthd->bshd", p, v).reshape(1, 5, 12)

    made = check(body, expected, ((1, 3, 5, 7), F32), ((1, 7, 3, 4), F32))
    assert operators(made) == ["call_dps_packed", "reshape"]
    assert numbers(calls(made)[0]) == ["5", "4", "7", "3", "7", "12", "12", "35", "4", "4"]


def test_a_transposed_result_swaps_the_sides() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return transposed(emit, emit(R.matmul(x, transposed(emit, y))))

    made = check(
        body, lambda x, y: (x @ y.swapaxes(1, 2)).swapaxes(1, 2), ((2, "n", 8), F32), ((2, 5, 8), F32),
        sizes=(0, 1, 3),
    )  # fmt: skip
    assert operators(made) == ["call_dps_packed"] and mode(calls(made)[0]) == "right_transposed"
    assert numbers(calls(made)[0])[:3] == ["5", "n", "8"]


def test_a_product_that_another_one_reads_as_it_lies_is_not_permuted_for_it() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.matmul(transposed(emit, emit(R.matmul(x, y))), x)

    made = check(body, lambda x, y: (x @ y).T @ x, ((4, 8), F32), ((8, 5), F32), products=2)
    assert [mode(c) for c in calls(made)] == ["", "left_transposed"]


# -- what is computed with a product --------------------------------------------------------------------------
def relu(emit: Any, x: Any) -> Any:
    return emit(R.nn.relu(x))


EPILOGUES: dict[str, tuple[Body, Body]] = {
    "bias": (lambda emit, y, b, r: R.add(y, b), lambda y, b, r: y + b),
    "bias first": (lambda emit, y, b, r: R.add(b, y), lambda y, b, r: y + b),
    "relu": (lambda emit, y, b, r: R.nn.relu(y), lambda y, b, r: np.maximum(y, 0)),
    "residual": (lambda emit, y, b, r: R.add(r, y), lambda y, b, r: y + r),
    "bias relu": (lambda emit, y, b, r: R.nn.relu(emit(R.add(y, b))), lambda y, b, r: np.maximum(y + b, 0)),
    "bias residual": (lambda emit, y, b, r: R.add(emit(R.add(y, b)), r), lambda y, b, r: y + b + r),
    "bias residual relu": (
        lambda emit, y, b, r: relu(emit, emit(R.add(emit(R.add(b, y)), r))),
        lambda y, b, r: np.maximum(y + b + r, 0),
    ),
}


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("rows", [(4,), (2, 3), ("n",)])
def test_epilogues(name: str, rows: tuple[Any, ...]) -> None:
    body, expected = EPILOGUES[name]
    made = check(
        lambda emit, x, b, r, w: body(emit, emit(R.matmul(x, w)), b, r),
        lambda x, b, r, w: expected(x @ w, b, r),
        ((*rows, 8), F32), ((5,), F32), ((*rows, 5), F32), ((8, 5), F32), sizes=(0, 1, 6), weights=1,
    )  # fmt: skip
    assert operators(made) == ["call_dps_packed"]
    assert mode(calls(made)[0]).split() == [w for w in ("bias", "residual", "relu") if w in name]


def linear(emit: Any, x: Any, w: Any, b: Any) -> Any:
    """As PyTorch's importer writes a linear layer of three axes."""
    (*leading, inputs), outputs = (int(e) for e in x.ty.shape), int(w.ty.shape[1])
    flat = emit(R.reshape(x, (int(np.prod(leading)), inputs)))
    return emit(R.reshape(emit(R.add(b, emit(R.matmul(flat, w)))), (*leading, outputs)))


def test_an_epilogue_between_two_products() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return emit(R.add(emit(R.matmul(relu(emit, linear(emit, x, w, b)), w)), x))

    made = check(
        body, lambda x, w, b: np.maximum(x @ w + b, 0) @ w + x, ((2, 3, 8), F32), ((8, 8), F32), ((8,), F32),
        weights=2, products=2,
    )  # fmt: skip
    assert [mode(c) for c in calls(made)] == ["bias relu", "residual"]
    assert "add" not in operators(made) and "relu" not in operators(made)


def test_a_bias_before_heads_is_computed_where_they_need_no_kernel() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        batch, sequence, _ = (int(e) for e in x.ty.shape)
        split = emit(R.reshape(linear(emit, x, w, b), (batch, sequence, 2, 4)))
        return attention_scores(emit, split, split)

    def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        split = (x @ w + b).reshape(*x.shape[:2], 2, 4)
        return expected_scores(split, split)

    for batch, modes in ((1, ["bias", "right_transposed"]), (3, ["", "right_transposed"])):
        specs = ((batch, 5, 8), F32), ((8, 8), F32), ((8,), F32)
        made = check(body, expected, *specs, weights=2, products=2)
        assert [mode(c) for c in calls(made)] == modes


def test_a_bias_before_keys_that_are_permuted_stays_with_the_permutation() -> None:
    """The product reads the keys' heads in the stead of their transpose, and so they are made by a kernel."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        query, key = (emit(R.reshape(linear(emit, x, w, b), (3, 5, 2, 4))) for _ in range(2))
        return attention_scores(emit, query, key)

    def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        split = (x @ w + b).reshape(3, 5, 2, 4)
        return expected_scores(split, split)

    made = check(body, expected, ((3, 5, 8), F32), ((8, 8), F32), ((8,), F32), weights=2, products=3)
    assert [mode(c) for c in calls(made)] == ["", "", "right_transposed"]


def test_what_a_kernel_behind_a_product_computes_anyway_stays_there() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return R.nn.softmax(relu(emit, emit(R.add(emit(R.matmul(x, w)), b))))

    def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = np.exp(np.maximum(x @ w + b, 0))
        return found / found.sum(-1, keepdims=True)

    made = check(body, expected, ((4, 8), F32), ((8, 5), F32), ((5,), F32), weights=2)
    assert operators(made) == ["call_dps_packed", "add", "nn.relu", "nn.softmax"]


@pytest.mark.parametrize("reader", ["product", "result", "reshaped"])
def test_a_bias_is_computed_with_a_product_whose_result_is_written_anyway(reader: str) -> None:
    """A kernel that reads it as well has less to read and write then."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> list[Any]:
        y = emit(R.add(emit(R.matmul(x, w)), b))
        seen = emit(R.reshape(y, (2, 2, 8))) if reader == "reshaped" else y
        return [seen if reader == "result" else R.matmul(seen, w), R.nn.softmax(y)]

    mod = build(body, ((4, 8), F32), ((8, 8), F32), ((8,), F32))
    made, _ = rewritten(mod)
    assert [mode(c) for c in calls(made)] == (["bias"] if reader == "result" else ["bias", ""])
    assert "add" not in operators(made) and "nn.softmax" in operators(made)


def test_a_residual_is_not_where_a_kernel_reads_the_sum_as_well() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> list[Any]:
        y = emit(R.add(emit(R.add(emit(R.matmul(x, w)), b)), x))
        return [R.matmul(y, w), R.nn.softmax(y)]

    made, _ = rewritten(build(body, ((4, 8), F32), ((8, 8), F32), ((8,), F32)))
    assert [mode(c) for c in calls(made)] == ["", ""] and operators(made).count("add") == 2


def test_a_residual_is_computed_with_a_product_if_its_other_reader_runs_later() -> None:
    """The second sum waits for two more products, so its kernel could not compute the first one."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.add(emit(R.matmul(x, w)), x))
        z = emit(R.matmul(emit(R.nn.relu(emit(R.matmul(y, w)))), w))
        return R.add(z, y)

    made, _ = rewritten(build(body, ((4, 8), F32), ((8, 8), F32)))
    assert [mode(c) for c in calls(made)] == ["residual", "relu", "residual"]


@pytest.mark.parametrize("activation", [False, True])
def test_the_sum_of_two_products_is_computed_with_one_of_them(activation: bool) -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        first = emit(R.add(emit(R.matmul(x, w)), b))
        total = R.add(first, emit(R.add(emit(R.matmul(w, x)), b)))
        return R.nn.relu(emit(total)) if activation else total

    made, _ = rewritten(build(body, ((8, 8), F32), ((8, 8), F32), ((8,), F32)))
    with_sum = "bias residual relu" if activation else "bias residual"
    assert sorted(mode(c) for c in calls(made)) == ["bias", with_sum]
    arrays = [draw((8, 8)), draw((8, 8)) * 2, draw((8,))]
    x, w, b = (a.astype("float64") for a in arrays)
    wanted = x @ w + w @ x + 2 * b
    np.testing.assert_allclose(
        run(made, *arrays), np.maximum(wanted, 0) if activation else wanted, rtol=1e-4, atol=1e-4
    )


def test_a_convolution_reads_what_is_written() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any, k: Any) -> list[Any]:
        y = emit(R.reshape(emit(R.add(emit(R.matmul(x, w)), b)), (1, 2, 2, 8)))
        return [R.nn.conv2d(y, k, data_layout="NHWC", kernel_layout="OHWI"), R.exp(y)]

    specs = ((4, 8), F32), ((8, 8), F32), ((8,), F32), ((3, 1, 1, 8), F32)
    made, _ = rewritten(build(body, *specs))
    assert [mode(c) for c in calls(made)] == ["bias"]


NO_EPILOGUES: dict[str, tuple[Body, Body]] = {
    "a value with two readers": (
        lambda emit, y, b, c: R.multiply(emit(R.add(y, b)), y), lambda y, b, c: (y + b) * y,
    ),
    "a column": (lambda emit, y, b, c: R.add(y, c), lambda y, b, c: y + c),
    "itself": (lambda emit, y, b, c: R.add(y, y), lambda y, b, c: y + y),
    "more than the product": (
        lambda emit, y, b, c: R.add(emit(R.reshape(emit(R.max(y)), (1, 1))), c), lambda y, b, c: y.max() + c,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_EPILOGUES)
def test_what_is_no_epilogue(name: str) -> None:
    body, expected = NO_EPILOGUES[name]
    made = check(
        lambda emit, x, b, c, w: body(emit, emit(R.matmul(x, w)), b, c),
        lambda x, b, c, w: expected(x @ w, b, c),
        ((4, 8), F32), ((5,), F32), ((4, 1), F32), ((8, 5), F32), weights=1,
    )  # fmt: skip
    assert mode(calls(made)[0]) == ""


def test_a_product_that_an_addition_repeats_is_no_epilogue() -> None:
    made = check(
        lambda emit, x, r, w: R.add(emit(R.matmul(x, w)), r), lambda x, r, w: x @ w + r,
        ((1, 8), F32), ((4, 5), F32), ((8, 5), F32), weights=1,
    )  # fmt: skip
    assert mode(calls(made)[0]) == ""


def test_no_epilogue_of_a_depth_that_may_be_0() -> None:
    made = check(
        lambda emit, x, w, b: R.add(emit(R.matmul(x, w)), b), lambda x, w, b: x @ w + b,
        ((4, "n"), F32), (("n", 5), F32), ((5,), F32), sizes=(0, 1, 3),
    )  # fmt: skip
    assert mode(calls(made)[0]) == ""


def test_no_epilogues_where_they_are_switched_off() -> None:
    mod = build(lambda emit, x, b: R.add(emit(R.matmul(x, x)), b), ((4, 4), F32), ((4,), F32))
    assert mode(calls(rewritten(mod)[0])[0]) == "bias"
    off = StitchConfig(compute="libraries", epilogues=False)
    assert mode(calls(rewritten(mod, config=off)[0])[0]) == ""


# -- what is left to TVM --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "right", "dtype", "reason"),
    [
        ((2, 1, 4, 8), (2, 3, 8, 5), F32, "its matrices lie at distances of 2 kinds"),
        ((4, 8), (8, 5), "int32", "a product of int32 and int32 in int32"),
        ((4, 8), (8, 5), "float64", "a product of float64 and float64 in float64"),
    ],
)
def test_what_is_left_to_tvm(left: Any, right: Any, dtype: str, reason: str) -> None:
    mod = build(lambda emit, x, y: R.matmul(x, y), (left, dtype), (right, dtype))
    made, (how,) = rewritten(mod)
    assert how.startswith(f"TVM: {reason}")
    tvm.ir.assert_structural_equal(made["main"], mod["main"])


@pytest.mark.parametrize(("left", "right"), [((4, 0), (0, 5)), ((0, 4), (4, 5))])
def test_what_has_no_elements_is_no_product(left: Any, right: Any) -> None:
    mod = build(lambda emit, x, y: R.matmul(x, y), (left, F32), (right, F32))
    for asked in (LIBRARIES, StitchConfig()):
        assert rewritten(mod, config=asked) == (mod, [])


def test_extents_that_may_be_broadcast_are_left_to_tvm() -> None:
    n = symbol()
    mod = build(lambda emit, x, y: R.matmul(x, y), ((n, 4, 8), F32), ((3, 8, 5), F32))
    assert rewritten(mod)[1] == ["TVM: its shapes are not known"]


def test_one_product_that_is_refused_costs_no_other() -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        return [emit(R.matmul(x, x)), emit(R.matmul(y, y))]

    made, how = rewritten(build(body, ((4, 4), "float64"), ((4, 4), F32)))
    assert [h.split(":")[0] for h in how] == ["TVM", "cuBLASLt"]
    assert operators(made) == ["matmul", "call_dps_packed"]


def test_bfloat16_needs_a_device_that_has_it() -> None:
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), "bfloat16"))
    assert rewritten(mod, {"kind": "cuda", "arch": "sm_75"})[1] == [
        "TVM: bfloat16 needs compute capability 8.0"
    ]


def test_without_the_library_products_are_left_with_the_reason() -> None:
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    made, how = rewritten(mod, config=StitchConfig())
    assert how == ["TVM: cuBLASLt is not here"] and not calls(made)
    assert "TVM: cuBLASLt is not here" in str(explain(mod, CUDA))
    assert explain(mod, CUDA, StitchConfig(compute="tvm")).computed == {"1 matmul": f"TVM: {ASKED}"}
    assert "cuBLASLt" not in str(explain(mod, "llvm", LIBRARIES))


def test_with_the_library_auto_means_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    monkeypatch.setattr(library.CUBLASLT, "load", lambda: loaded.append(True))
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    assert len(calls(rewritten(mod, config=StitchConfig())[0])) == 1 and loaded


def test_a_library_that_does_not_load_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("it is broken")

    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    monkeypatch.setattr(library.CUBLASLT, "load", fail)
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    assert rewritten(mod, config=StitchConfig())[1] == ["TVM: it is broken"]


def test_interrupts_end_the_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library.CUBLASLT, "missing", interrupt)
    with pytest.raises(KeyboardInterrupt):
        explain(build(lambda emit, x: R.matmul(x, x), ((4, 4), F32)), CUDA)


def test_tensor_float_is_only_used_where_it_is_asked_for() -> None:
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    half = build(lambda emit, x: R.matmul(x, x), ((4, 4), "float16"))
    asked = StitchConfig(compute="libraries", tf32=True)
    modes = [mode(calls(rewritten(m, config=c)[0])[0]) for m in (mod, half) for c in (LIBRARIES, asked)]
    assert modes == ["", "tf32", "", ""]


@pytest.mark.parametrize(("rows", "word"), [(4, "timed"), (symbol(), "")])
def test_algorithms_of_static_shapes_are_timed(rows: Any, word: str) -> None:
    mod = build(lambda emit, x, w: R.matmul(x, w), ((rows, 4), F32), ((4, 4), F32))
    assert str(calls(rewritten(mod)[0])[0].args[1].fields[-1].value) == word


def test_a_whole_model_compiles_for_a_gpu_with_products_between_stitch_ops() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        hidden = emit(R.nn.softmax(emit(R.matmul(x, w))))
        return emit(
            R.nn.layer_norm(emit(R.add(hidden, emit(R.matmul(hidden, w)))), w_row(w), w_row(w), axes=[-1])
        )

    def w_row(w: Any) -> Any:
        return relax.const(draw((8,)))

    mod = build(body, ((5, 8), F32), ((8, 8), F32))
    report = explain(mod, CUDA, LIBRARIES)
    assert len(report.kernels) == 2 and len(report.computed) == 2 and not report.left
    executable = tvm.compile(mod, CUDA, relax_pipeline=pipeline(CUDA, LIBRARIES))
    assert executable.as_text().count(f"call  {cublaslt_stand_in.NAME}") == 2


def test_products_are_captured_in_a_cuda_graph() -> None:
    def body(emit: Any, x: Any) -> Any:
        value = emit(R.exp(x))
        for _ in range(3):
            value = emit(R.exp(emit(R.matmul(value, value))))
        return value

    mod = build(body, ((8, 8), F32))
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        made = pipeline(CUDA, LIBRARIES)(mod)
    captured = [f for g, f in made.functions_items() if "cuda_graph_capture" in g.name_hint]
    assert captured and str(captured[0].script()).count(cublaslt_stand_in.NAME) == 3
    assert cublaslt_stand_in.NAME not in str(made["main"].script())


@pytest.mark.parametrize("scale", ["test", "cpu"])
def test_an_encoder_layer_has_its_kernels(scale: str) -> None:
    """Keys are read transposed, as heads lie: no kernel turns them, though the importer's permutations were one."""
    (case,) = (case for case in cases(scale) if case.name == "encoder_layer")
    counted = count_kernels(case.build(), CUDA, pipeline(CUDA, LIBRARIES))
    assert counted.memory_intensive == case.kernels, counted.names
    told = explain(case.build(), CUDA, config=LIBRARIES)
    assert "right side transposed" in str(told)
