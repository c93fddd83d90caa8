# SPDX-License-Identifier: Apache-2.0
"""Inputs and programs chosen to break a compiler: whatever stock TVM computes, the stitched module computes as well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm import tirx as tir
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as Rx
from tvm.script import tirx as T
from tvm.target import Target

import tvm_stitch
from cuda_emulator import run_cuda

LLVM = Target("llvm")
CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
i64 = T.int64

Body = Callable[..., Any]


def _module(body: Body, *specs: tuple[Sequence[Any], str], dataflow: bool = True) -> tvm.IRModule:
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(specs)]
    bb = relax.BlockBuilder()

    def emit(finish: Callable[[Any], Any]) -> Any:
        out = body(bb, *params)
        return finish(relax.Tuple(list(out)) if isinstance(out, (list, tuple)) else out)

    with bb.function("main", params):
        if dataflow:
            with bb.dataflow():
                result = emit(bb.emit_output)
        else:
            result = emit(bb.emit)
        bb.emit_func_output(result)
    return bb.get()


def _for(body: Body, *arrays: np.ndarray) -> tvm.IRModule:
    return _module(body, *[(a.shape, str(a.dtype)) for a in arrays])


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if hasattr(value, "numpy"):
        return [value.numpy()]
    return [a for item in value for a in _arrays(item)]


def _run(
    mod: tvm.IRModule, pipeline: Any, inputs: Sequence[np.ndarray], func: str = "main"
) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(mod, LLVM, relax_pipeline=pipeline), tvm.cpu())
    return _arrays(vm[func](*[tvm.runtime.tensor(a) for a in inputs]))


def _same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        if e.dtype.kind == "f":
            np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(a, e)


def _check(
    mod: tvm.IRModule,
    inputs: Sequence[np.ndarray],
    func: str = "main",
    cuda: bool = True,
    expected: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Stitched against stock (or ``expected``) on llvm, and on CUDA in the emulator; the module stays as it was."""
    before = mod.script()
    stock = list(expected or _run(mod, relax.get_default_pipeline(LLVM), inputs, func))
    _same(_run(mod, tvm_stitch.relax.pipeline(LLVM), inputs, func), stock)
    if cuda:
        passes = tvm_stitch.relax.pipeline(CUDA)
        run = run_cuda(mod, list(inputs), target=CUDA, func=func, relax_pipeline=passes)
        assert not run.reports, [str(r) for r in run.reports[:3]]
        _same(_arrays(run.outputs), stock)
    assert mod.script() == before
    return stock


def _draw(*shape: int, dtype: str = "float32", high: int = 100, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


_SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    1e-40,
    -1e-42,
    0.0,
    -0.0,
    3.4e38,
    -3.4e38,
    88.8,
    -88.8,
    104.0,
    -104.0,
    1e30,
]


def _special() -> np.ndarray:
    x = _draw(4, 40)
    x.reshape(-1)[: 7 * len(_SPECIAL) : 7] = _SPECIAL
    return x


# -- values ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", "exp log tanh sigmoid erf sqrt rsqrt sin cos atan abs floor round".split())
def test_math_of_special_values(name: str) -> None:
    x = _special()
    if name in ("sin", "cos"):  # huge arguments are reduced with less care by every library
        x = np.where(np.abs(x) < 1e3, x, np.float32(np.nan)).astype("float32")
    _check(_for(lambda bb, v: R.multiply(bb.emit(getattr(R, name)(v)), relax.const(1.0)), x), [x])


def test_conditions_on_special_values() -> None:
    x = _special()

    def body(bb: Any, v: Any) -> list[Any]:
        twice = bb.emit(R.add(v, v))
        chosen = R.where(R.greater(twice, relax.const(0.0)), R.log(v), v)
        return [R.clip(twice, -1.0, 1.0), chosen, R.isnan(v), R.isinf(v), R.nn.relu(v)]

    with np.errstate(all="ignore"):
        expected = [
            np.clip(x + x, -1, 1), np.where(x + x > 0, np.log(x), x), np.isnan(x), np.isinf(x), np.maximum(x, 0),
        ]  # fmt: skip
    _check(_for(body, x), [x], expected=expected)  # stock TVM's clip and relu lose NaN


@pytest.mark.parametrize("columns", [40, 1023, 3000])
def test_softmax_of_masked_rows(columns: int) -> None:
    x = _draw(4, columns)
    x[0, ::2], x[1], x[2, 3], x[3, 0] = -np.inf, -np.inf, np.nan, np.inf
    (out,) = _check(_for(lambda bb, v: R.nn.softmax(bb.emit(R.add(v, v)), -1), x), [x])
    assert np.isfinite(out[0]).all() and np.isnan(out[1:]).all()


@pytest.mark.parametrize("columns", [1, 33, 300])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "float64"])
def test_reductions_of_every_dtype(dtype: str, columns: int) -> None:
    x = _draw(3, columns, dtype=dtype)  # sums of small integers wrap around

    def body(bb: Any, v: Any) -> list[Any]:
        return [R.sum(bb.emit(R.add(v, v)), 1), R.max(v, 1), R.min(v, 1)]

    _check(_for(body, x), [x])


def test_integers_divide_nothing_that_is_not_there() -> None:
    x, y = _draw(5, 37, dtype="int32"), _draw(5, 37, dtype="int32", high=7) + np.int32(2)

    def body(bb: Any, a: Any, b: Any) -> list[Any]:
        quotient = bb.emit(R.floor_divide(a, R.subtract(b, relax.const(1, "int32"))))
        return [R.sum(quotient, 1), quotient]

    _check(_for(body, x, y), [x, y])


# -- shapes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axes", [(0,), (2,), (4,), (0, 4), (1, 3), (0, 2, 4), (0, 1, 2, 3, 4)])
def test_reductions_over_any_axes(axes: tuple[int, ...]) -> None:
    x = _draw(2, 3, 4, 1, 2)

    def body(bb: Any, v: Any) -> list[Any]:
        centred = R.subtract(v, R.mean(v, list(axes), True))
        return [R.exp(R.sum(R.multiply(v, v), list(axes))), R.max(v, list(axes), True), centred]

    _check(_for(body, x), [x])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 40), (40, 1), (2,) * 7])
def test_ranks(shape: tuple[int, ...]) -> None:
    x = np.asarray(_draw(*shape), dtype="float32").reshape(shape)
    _check(_for(lambda bb, v: [R.exp(R.add(v, v)), R.subtract(v, R.mean(v)), R.max(v, None, True)], x), [x])


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, "float32")
    _check(_for(lambda bb, v: [R.nn.softmax(R.exp(R.add(v, v)), -1), R.sum(v)], x), [x], cuda=False)


@pytest.mark.parametrize("n, m", [(0, 4), (4, 0), (1, 1), (17, 33)])
def test_symbolic_sizes_down_to_zero(n: int, m: int) -> None:
    rows, middle = tir.Var("n", "int64"), tir.Var("m", "int64")

    def body(bb: Any, v: Any, bias: Any) -> list[Any]:
        y = bb.emit(R.exp(R.add(v, bias)))
        return [R.nn.softmax(y, -1), R.sum(y, -1), R.permute_dims(y, [1, 0, 2])]

    mod = _module(body, ((rows, middle, 16), "float32"), ((middle, 16), "float32"))
    _check(mod, [_draw(n, m, 16), _draw(m, 16)])


# -- data movement --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_take_out_of_bounds(mode: str) -> None:
    x, index = _draw(4, 6), np.array([0, -1, 7, 3], "int64")
    _check(_for(lambda bb, v, i: R.exp(R.take(bb.emit(R.add(v, v)), i, 0, mode)), x, index), [x, index])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_of_itself(axis: int) -> None:
    x = _draw(4, 6, 8)

    def body(bb: Any, v: Any) -> list[Any]:
        y = bb.emit(R.exp(v))
        joined = bb.emit(R.concat([y, v, y], axis))
        backwards = R.strided_slice(joined, [axis], [7], [0], [-2])
        return [R.nn.softmax(joined, axis), R.add(R.flip(y, axis), v), R.exp(backwards)]

    _check(_for(body, x), [x])


def test_padding_is_not_read() -> None:
    x = _draw(4, 6, 8)
    _check(
        _for(lambda bb, v: R.nn.softmax(R.nn.pad(bb.emit(R.log(v)), [0, 0, 1, 2, 2, 1], "constant", 3.0)), x),
        [x],
    )


# -- graphs ---------------------------------------------------------------------------------------------------------
def test_outputs_shared_returned_and_unused() -> None:
    x = _draw(4, 5)

    def body(bb: Any, v: Any) -> list[Any]:
        y = bb.emit(R.exp(v))
        bb.emit(R.sum(y, 1))
        return [y, y, v, R.exp(R.add(y, y)), R.sum(y, 1)]

    _check(_for(body, x), [x])


def test_values_used_twice_at_every_level() -> None:
    x = _draw(4, 5) * np.float32(0.1)

    def body(bb: Any, v: Any) -> Any:
        for _ in range(40):
            v = bb.emit(R.add(bb.emit(R.tanh(v)), v))
        return v

    _check(_for(body, x), [x])


def test_shifts_added_at_every_level() -> None:
    """Every level reads the one before at two places: 2 ** 12 paths lead to an element."""
    x = _draw(4, 8)

    def body(bb: Any, v: Any) -> Any:
        for _ in range(12):
            head, tail = R.strided_slice(v, [1], [0], [1]), R.strided_slice(v, [1], [1], [8])
            v = bb.emit(R.add(v, bb.emit(R.concat([bb.emit(tail), bb.emit(head)], 1))))
        return v

    _check(_for(body, x), [x], cuda=False)


def test_many_inputs_and_outputs() -> None:
    arrays = [_draw(3, 7, seed=i) for i in range(70)]

    def body(bb: Any, *values: Any) -> list[Any]:
        total = values[0]
        for v in values[1:]:
            total = bb.emit(R.add(total, v))
        return [bb.emit(R.add(total, relax.const(float(i)))) for i in range(30)]

    _check(_for(body, *arrays), arrays)


# -- programs -------------------------------------------------------------------------------------------------------
@I.ir_module(s_tir=True)
class _Program:
    @T.prim_func(private=True, s_tir=True)
    def stitch_add(A: T.Buffer((i64(4), i64(8)), "float32"), B: T.Buffer((i64(4), i64(8)), "float32")):
        for i, j in T.grid(i64(4), i64(8)):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(7)

    @Rx.function
    def stitch_add_exp(a: Rx.Tensor((4, 8), "float32")) -> Rx.Tensor((4, 8), "float32"):
        b = Rx.multiply(a, Rx.const(3.0))
        return b

    @Rx.function
    def main(a: Rx.Tensor((4, 8), "float32")):
        cls = _Program
        with Rx.dataflow():
            b = Rx.add(a, a)
            e = Rx.exp(b)
            c = Rx.call_tir(cls.stitch_add, (e,), out_ty=Rx.Tensor((4, 8), "float32"))
            d = Rx.nn.softmax(c)
            f = cls.stitch_add_exp(d)
            Rx.output(f)
        return f


@I.ir_module(s_tir=True)
class _Recursion:
    @Rx.function
    def main(a: Rx.Tensor((4, 8), "float32"), n: Rx.Tensor((), "int32")) -> Rx.Tensor((4, 8), "float32"):
        cls = _Recursion
        c = Rx.greater(n, Rx.const(0, "int32"))
        if c:
            b = Rx.multiply(Rx.exp(a), Rx.const(0.5))
            m = Rx.subtract(n, Rx.const(1, "int32"))
            r = cls.main(b, m)
        else:
            r = Rx.add(a, a)
        return r


def test_functions_with_the_names_that_stitching_gives() -> None:
    _check(_Program, [_draw(4, 8)])


def test_branches_and_recursion() -> None:
    _check(_Recursion, [_draw(4, 8), np.array(3, "int32")], cuda=False)


def test_without_a_dataflow_block() -> None:
    mod = _module(
        lambda bb, v: [bb.emit(R.exp(bb.emit(R.add(v, v)))), bb.emit(R.sum(v, 1))],
        ((4, 8), "float32"),
        dataflow=False,
    )
    _check(mod, [_draw(4, 8)])


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_optimization_levels(level: int) -> None:
    x = _draw(4, 8)
    with tvm.transform.PassContext(opt_level=level):
        _check(_for(lambda bb, v: R.nn.softmax(R.exp(bb.emit(R.add(v, v)))), x), [x])


def test_compiling_in_several_threads() -> None:
    x = _draw(4, 8)
    mods = [
        _for(lambda bb, v, i=i: R.nn.softmax(R.add(R.exp(v), R.multiply(v, relax.const(float(i))))), x)
        for i in range(4)
    ]
    # TVM legalizes operators through a process-wide tag ("nested op_tag is not allowed"), stock pipeline or ours.
    mods = [relax.transform.LegalizeOps()(mod) for mod in mods]
    found: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        found[i] = _run(mods[i], tvm_stitch.relax.pipeline(LLVM), [x])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        _same(found[i], _run(mods[i], relax.get_default_pipeline(LLVM), [x]))


# -- tensor functions written by hand -----------------------------------------------------------------------------
@T.prim_func(private=True, s_tir=True)
def _guarded_division(
    A: T.Buffer((i64(37),), "int32"), C: T.Buffer((i64(37),), "int32"), B: T.Buffer((i64(37),), "int32")
):
    for i in range(i64(37)):
        with T.sblock("s"):
            vi = T.axis.spatial(i64(37), i)
            B[vi] = T.if_then_else(C[vi] != 0, T.truncdiv(A[vi], C[vi]), T.int32(-1))


@T.prim_func(private=True, s_tir=True)
def _guarded_gather(
    A: T.Buffer((i64(37),), "float32"),
    C: T.Buffer((i64(5), i64(37)), "int64"),
    B: T.Buffer((i64(5),), "float32"),
):
    for i, k in T.grid(i64(5), i64(37)):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + T.if_then_else(C[vi, vk] >= i64(0), A[C[vi, vk]], T.float32(-1))


@T.prim_func(private=True, s_tir=True)
def _written_twice(A: T.Buffer((i64(8),), "float32"), B: T.Buffer((i64(8),), "float32")):
    for i in range(i64(8)):
        with T.sblock("s"):
            vi = T.axis.spatial(i64(8), i)
            B[vi] = A[vi]
    for i in range(i64(4)):
        with T.sblock("t"):
            vi = T.axis.spatial(i64(4), i)
            B[vi] = A[vi] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def _subtracts(A: T.Buffer((i64(4), i64(8)), "float32"), B: T.Buffer((i64(4),), "float32")):
    for i, k in T.grid(i64(4), i64(8)):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] - A[vi, vk]


@T.prim_func(private=True, s_tir=True)
def _least_is_zero(A: T.Buffer((i64(4), i64(8)), "float32"), B: T.Buffer((i64(4),), "float32")):
    for i, k in T.grid(i64(4), i64(8)):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = T.max(B[vi], A[vi, vk])


def _far(*shape: int) -> np.ndarray:
    index = _draw(*shape, dtype="int64", high=37)
    index[..., ::3] = -(10**14)
    return index


@pytest.mark.parametrize(
    "func, out, inputs",
    [
        (_guarded_division, ((37,), "int32"), [_draw(37, dtype="int32"), _draw(37, dtype="int32", high=3)]),
        (_guarded_gather, ((5,), "float32"), [_draw(37), _far(5, 37)]),
        (_written_twice, ((8,), "float32"), [_draw(8)]),
        (_subtracts, ((4,), "float32"), [_draw(4, 8)]),
        (_least_is_zero, ((4,), "float32"), [_draw(4, 8) - np.float32(2)]),
    ],
    ids=["guarded_division", "guarded_gather", "written_twice", "subtracts", "least_is_zero"],
)
def test_hand_written(func: Any, out: tuple[tuple[int, ...], str], inputs: list[np.ndarray]) -> None:
    def body(bb: Any, *values: Any) -> Any:
        result = bb.emit(relax.call_tir(bb.add_func(func, "by_hand"), list(values), relax.TensorType(*out)))
        return R.add(result, result)

    # What is written twice is left to TVM with the addition; the emulator lacks the memory its host code allocates.
    _check(_for(body, *inputs), inputs, cuda=func is not _written_twice)
