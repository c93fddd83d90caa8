# SPDX-License-Identifier: Apache-2.0
"""The pipeline: what TVM gets, and that every model compiles, stitched or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.bounds import evaluate_bounds, violations
from stitch_testing.reference.relax import evaluate, flatten, mismatches
from tests.graph.helpers import build, check_emulated, draw, symbol
from tests.repairs import faults
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax import StitchError, pass_table
from tvm_stitch.relax.pipeline import Recorder, pipeline, stitch_passes
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR
from tvm_stitch.testing.workloads.cases import softmax

F32 = "float32"
X = ((6, 20), F32)

Case = tuple[Callable[..., Any], list[Any]]


def tuple_of(emit: Callable[..., Any], call: Any, count: int) -> list[Any]:
    made = emit(call)
    return [emit(relax.TupleGetItem(made, i)) for i in range(count)]


#: Models with something that cannot be stitched, or at the edge of it.
AWKWARD: dict[str, Case] = {
    "argmax of an exponential": (lambda emit, x: [R.argmax(emit(R.exp(x)), 1)], [X]),
    "argmax between": (
        lambda emit, x: [R.add(emit(R.astype(emit(R.argmax(emit(R.exp(x)), 1, True)), F32)), x)], [X],
    ),
    "gather of an intermediate": (
        lambda emit, x, i: [R.exp(emit(R.take(emit(R.exp(x)), i, 0)))], [X, ((5,), "int64")],
    ),
    "gather by an intermediate": (
        lambda emit, x, i: [R.exp(emit(R.take(x, emit(R.maximum(i, relax.const(2, "int64"))), 0)))],
        [X, ((5,), "int64")],
    ),
    "no rows": (lambda emit, x: [R.exp(emit(R.exp(x)))], [((0, 20), F32)]),
    "no columns": (lambda emit, x: [R.exp(emit(R.add(x, x)))], [((6, 0), F32)]),
    "an empty part": (lambda emit, x, y: [R.exp(emit(R.concat([x, y], 1)))], [X, ((6, 0), F32)]),
    "sum of nothing": (lambda emit, x: [R.add(emit(R.sum(emit(R.exp(x)), 1)), relax.const(1.0, F32))], [((6, 0), F32)]),
    "scalars only": (lambda emit, x, y: [R.exp(emit(R.add(x, y)))], [((), F32), ((), F32)]),
    "nothing but a view": (lambda emit, x: [R.reshape(x, (20, 6))], [X]),
    "the input itself": (lambda emit, x: [x, R.exp(x)], [X]),
    "one result twice": (lambda emit, x: (lambda y: [y, y])(emit(R.exp(x))), [X]),
    "no input": (lambda emit, x: [R.exp(emit(R.full((3, 4), relax.const(0.5, F32), F32))), x], [X]),
    "iota": (lambda emit, x: [R.multiply(emit(R.astype(emit(R.arange(0, 20, 1, "int64")), F32)), x)], [X]),
    "cumulative sum": (lambda emit, x: [R.exp(emit(R.cumsum(emit(R.exp(x)), 1)))], [X]),
    "one hot": (
        lambda emit, i: [R.exp(emit(R.one_hot(i, relax.prim_value(tirx.const(1.0, F32)),
                                              relax.prim_value(tirx.const(0.0, F32)), 7, 1)))],
        [((5,), "int64")],
    ),
    "a matmul of one column": (lambda emit, x, w: [R.exp(emit(R.matmul(emit(R.exp(x)), w)))], [X, ((20, 1), F32)]),
    "a matmul of one row": (
        lambda emit, x, w: [R.exp(emit(R.matmul(emit(R.exp(x)), w)))], [((1, 20), F32), ((20, 9), F32)],
    ),
    "reductions that disagree": (
        lambda emit, x: [R.add(emit(R.sum(emit(R.exp(x)), 0, True)), emit(R.sum(emit(R.exp(x)), 1, True)))], [X],
    ),
    "a transpose read both ways": (
        lambda emit, x: (lambda e: [R.add(e, emit(R.permute_dims(e)))])(emit(R.exp(x))), [((9, 9), F32)],
    ),
    "views of the parts of a split": (
        lambda emit, x: (lambda parts: [R.matmul(parts[0], emit(R.permute_dims(parts[1]))), parts[2]])(
            [emit(R.squeeze(p, [0])) for p in tuple_of(emit, R.split(emit(R.exp(x)), 3, 0), 3)]
        ), [((3, 4, 8), F32)],
    ),
    "a pool": (lambda emit, x: [R.exp(emit(R.nn.avg_pool2d(emit(R.exp(x)), (2, 2), (2, 2))))], [((1, 2, 6, 6), F32)]),
    "a full reduce beside a broadcast": (
        lambda emit, x: [R.subtract(x, emit(R.max(x))), R.divide(x, emit(R.sum(x)))], [X],
    ),
}  # fmt: skip


def arrays(specs: list[Any]) -> list[np.ndarray]:
    made = draw(specs)
    return [np.abs(a) % 5 if a.dtype == np.int64 else a for a in made]


def compare(name: str, mod: tvm.IRModule, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    if "pool" in name or "matmul" in name or "one hot" in name or "cumulative" in name:
        reference = stock(mod, inputs)
    else:
        reference = evaluate(mod, inputs)
    assert mismatches(outputs, reference, {F32: (2e-5, 2e-5)}) == []


def run_llvm(mod: tvm.IRModule, inputs: list[np.ndarray], relax_pipeline: Any) -> list[np.ndarray]:
    executable = tvm.compile(mod, tvm.target.Target("llvm"), relax_pipeline=relax_pipeline)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [t.numpy() for t in tensors]


def stock(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return run_llvm(mod, inputs, "default")


@pytest.mark.parametrize("name", AWKWARD)
def test_every_model_compiles_for_llvm(name: str) -> None:
    body, specs = AWKWARD[name]
    mod, inputs = build(body, *specs), arrays(specs)
    compare(name, mod, inputs, run_llvm(mod, inputs, pipeline("llvm")))


@pytest.mark.parametrize(
    "name", [name for name in AWKWARD if name != "no columns"]
)  # stock TVM divides by zero there
def test_every_model_compiles_for_cuda(name: str) -> None:
    body, specs = AWKWARD[name]
    mod, inputs = build(body, *specs), arrays(specs)
    target = emulated_target()
    if name in (
        "no rows",
        "cumulative sum",
    ):  # host code of TVM's own there allocates memory, which is not emulated
        assert tvm_stitch.compile(mod, target)
        return
    done = run_cuda(mod, inputs, target=target, relax_pipeline=pipeline(target)).check()
    compare(name, mod, inputs, list(done.outputs))


#: Models whose memory-intensive operators have neighbours that no scope can take.
NEIGHBOURS: dict[str, Case] = {
    "argmax in the middle": (
        lambda emit, x: [R.add(emit(R.argmax(emit(R.multiply(x, emit(R.sigmoid(x)))), 1)), relax.const(1, "int64"))],
        [X],
    ),
    "an activation of a matmul": (lambda emit, x, w: [R.nn.gelu(emit(R.matmul(x, w)))], [X, ((20, 9), F32)]),
    "a residual that is computed": (
        lambda emit, x, w, r: [R.add(emit(R.matmul(x, w)), emit(R.tanh(r)))], [X, ((20, 9), F32), ((6, 9), F32)],
    ),
    "a batch norm of symbolic batch": (
        lambda emit, x, w, s: [
            R.nn.relu(emit(relax.TupleGetItem(emit(R.nn.batch_norm(emit(R.nn.conv2d(x, w)), s, s, s, s, 1)), 0)))
        ],
        [((symbol("b"), 3, 6, 6), F32), ((4, 3, 3, 3), F32), ((4,), F32)],
    ),
    "a reshape between": (
        lambda emit, x: [R.argmax(emit(R.abs(emit(R.reshape(emit(R.exp(x)), (20, 6))))), 1)], [X],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("name", [*AWKWARD, *NEIGHBOURS])
def test_no_model_has_more_kernels_than_stock(name: str, kind: str) -> None:
    body, specs = (AWKWARD | NEIGHBOURS)[name]
    target = emulated_target() if kind == "cuda" else tvm.target.Target("llvm")
    assert more_than_stock(build(body, *specs), target, pipeline(target)) == ""


def lowered(mod: tvm.IRModule, target: Any, **options: Any) -> tvm.IRModule:
    with target:
        return tvm.transform.Sequential(stitch_passes(target, StitchConfig(**options)))(mod)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_stitch_ops_are_scheduled_and_marked(kind: str) -> None:
    target = emulated_target() if kind == "cuda" else tvm.target.Target("llvm")
    after = lowered(softmax(5, 33).build(), target)
    assert relax.analysis.check_well_formed(after)
    (func,) = [f for f in after.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert func.attrs["tirx.is_scheduled"] and func.attrs[STITCH_ATTR]


def test_aliases_part_nothing() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.exp(x))
        for _ in range(3):
            y = emit(y)
        pair = emit(relax.Tuple([y, x]))
        return [R.divide(emit(relax.TupleGetItem(pair, 0)), emit(R.sum(y, -1, True)))]

    check_emulated(build(body, X), draw([X]))


def test_the_options_reach_the_passes() -> None:
    def body(emit: Any, x: Any) -> Any:
        for _ in range(6):
            x = emit(R.subtract(x, emit(R.mean(x, -1, True))))
        return [x]

    target = tvm.target.Target("llvm")
    mod = build(body, X)
    assert count_kernels(mod, target, pipeline(target)).total == 1
    # Operators over the limit make further stitch ops.
    assert count_kernels(mod, target, pipeline(target, StitchConfig(max_operators=6))).total == 3


def test_targets_as_strings() -> None:
    mod, inputs = softmax(5, 33).build(), draw([((5, 33), F32)])
    outputs = run_llvm(mod, inputs, pipeline("llvm"))
    assert violations(outputs, evaluate_bounds(mod, inputs)) == []


def test_the_recorder_sees_plans_and_boundaries() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.matmul(emit(R.exp(x)), w))
        return [R.subtract(y, emit(R.max(y, -1, True)))]

    recorder = Recorder()
    target = emulated_target()
    with target:
        pipeline(target, recorder=recorder)(build(body, X, ((20, 20), F32)))
    assert len(recorder.plans) == 2 and recorder.declined == {}
    assert any(b.reason == "compute-intensive" for b in recorder.boundaries)


def test_strict_raises_where_a_scope_cannot_be_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import schedule_stitch_ops

    def refuse(*_: Any) -> Any:
        raise NotImplementedError("no such thing")

    monkeypatch.setattr(schedule_stitch_ops, "emit", refuse)
    mod, target = softmax(5, 33).build(), tvm.target.Target("llvm")
    with pytest.raises(StitchError, match="cannot be stitched: NotImplementedError: no such thing") as caught:
        lowered(mod, target, strict=True)
    assert isinstance(caught.value.__cause__, NotImplementedError), "through TVM, as the same exception"
    # Otherwise TVM takes the scope over, whole, and the reason is kept.
    recorder = Recorder()
    with target:
        after = tvm.transform.Sequential(stitch_passes(target, StitchConfig()))(mod)
        recorder.take(decisions_of(after))
    (reason,) = recorder.declined.values()
    assert "no such thing" in reason and recorder.plans == {}
    assert not any(f.attrs and STITCH_ATTR in f.attrs for f in after.functions.values())
    assert count_kernels(mod, target, pipeline(target)).total == count_kernels(mod, target).total


def test_a_module_that_does_not_compile_without_stitching_either_raises_the_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(text: str) -> Any:
        @tvm.transform.module_pass(opt_level=0, name="Failing")
        def run(_mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
            raise ValueError(text)

        return run

    monkeypatch.setattr(pass_table, "HalfSums", lambda: failing("first"))
    monkeypatch.setattr(relax, "get_default_pipeline", lambda _target: failing("second"))
    monkeypatch.setattr(faults.module_of("relax.retry"), "unfused_pipeline", lambda _target: failing("third"))
    target = emulated_target()
    with target, pytest.raises(ValueError, match="first"):
        pipeline(target)(softmax(5, 33).build())


def flattened() -> tvm.IRModule:
    """softmax of a flattened batch and sequence: functions on a product of symbols take them as scalar arguments."""
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, x: Any) -> Any:
        e = emit(R.exp(emit(R.reshape(x, (n * m, 16)))))
        return [R.reshape(emit(R.divide(e, emit(R.sum(e, -1, True)))), (n, m, 16))]

    return build(body, ((n, m, 16), F32))


@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (8, 16)], ids=str)
def test_symbols_in_products(sizes: tuple[int, int]) -> None:
    mod, inputs = flattened(), draw([((*sizes, 16), F32)])
    outputs = run_llvm(mod, inputs, pipeline("llvm"))
    assert violations(outputs, evaluate_bounds(mod, inputs)) == []
    check_emulated(mod, inputs, launches=None)


def test_symbols_in_products_are_one_kernel() -> None:
    target = emulated_target()
    assert count_kernels(flattened(), target, pipeline(target)).total == 1


def test_nested_tuples_come_through() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(X[0]), F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            a = builder.emit(R.exp(x))
            b = builder.emit(R.sum(a, -1))
            out = builder.emit_output(relax.Tuple([a, relax.Tuple([b, x])]))
        builder.emit_func_output(out)
    mod, inputs = builder.get(), draw([X])
    executable = tvm_stitch.compile(mod, "llvm")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    leaves = flatten(tuple(tuple(r) if not isinstance(r, tvm.runtime.Tensor) else r for r in result))
    assert mismatches([t.numpy() for t in leaves], evaluate(mod, inputs), {F32: (2e-5, 2e-5)}) == []


@pytest.mark.parametrize("kind", ["opencl", "c"])
def test_other_targets_get_nothing_that_is_of_cuda(kind: str) -> None:
    """Their kernels are TVM's, and so is what computes a maximum."""
    target = tvm.target.Target({"kind": kind}, host="llvm") if kind == "opencl" else tvm.target.Target(kind)
    mod = build(lambda emit, x: [R.nn.relu(emit(R.power(x, x)))], ((4, symbol("n")), "float32"))
    with target:
        made = str(pipeline(target)(mod))
    assert "cuda" not in made and "static_cast" not in made


def test_a_build_for_another_kind_of_device_is_told() -> None:
    mod = build(lambda emit, x: [R.exp(x)], ((4, 8), "float32"))
    with pytest.raises(ValueError, match="this pipeline is for cuda, and the module is compiled for llvm"):
        tvm.compile(mod, "llvm", relax_pipeline=tvm_stitch.relax.pipeline("cuda"))
