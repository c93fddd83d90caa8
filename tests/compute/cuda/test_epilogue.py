# SPDX-License-Identifier: Apache-2.0
"""Some graphs are epilogues of a convolution, and read along some of its axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.compute.cuda.epilogue import Epilogue, components, epilogue_of, is_epilogue, without_sum
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.graph.reader import read
from tvm_stitch.relax.library.own_convolutions import added_up
from tvm_stitch.relax.stitch.mark import MergeStitchOps
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR, StitchOps
from tvm_stitch.support.failures import Refusal

SHAPE = (2, 6, 5, 4)


def epilogue_graph(body: Callable[..., Any], *others: Sequence[int], dtype: str = "float32") -> StitchGraph:
    """Return the graph of the stitch op of a module's parameters."""
    mod = build(body, (SHAPE, "float32"), *((shape, dtype) for shape in others))
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        mod = MergeStitchOps()(StitchOps()(relax.transform.LegalizeOps()(mod)))
    (func,) = [f for f in mod.functions.values() if f.attrs and STITCH_ATTR in f.attrs]
    return read(func, "f")


def epilogue(body: Callable[..., Any], *others: Sequence[int], dtype: str = "float32") -> Epilogue:
    """Return the stitch op as an epilogue of a convolution whose result is the module's first parameter."""
    graph = epilogue_graph(body, *others, dtype=dtype)
    (product,) = [tensor for tensor in graph.inputs if tensor.name == "x0"]
    return epilogue_of(graph, product)


def test_axes_of_operands() -> None:
    def body(emit: Any, x: Any, bias: Any, residual: Any, gate: Any, scale: Any) -> Any:
        y = emit(R.add(emit(R.add(x, bias)), residual))
        return emit(R.nn.relu(emit(R.multiply(emit(R.multiply(y, gate)), scale))))

    found = epilogue(body, (1, 6, 1, 1), SHAPE, (2, 6, 1, 1), (1, 1, 1, 1))
    assert {tensor.name: axes for tensor, axes in found.operands} == {
        "x1": (None, 1, None, None),
        "x2": (0, 1, 2, 3),
        "x3": (0, 1, None, None),
        "x4": (None, None, None, None),
    }


def test_several_results() -> None:
    def body(emit: Any, x: Any, residual: Any) -> Any:
        y = emit(R.add(x, residual))
        return [y, emit(R.nn.relu(y))]

    assert len(epilogue(body, SHAPE).graph.outputs) == 2


@pytest.mark.parametrize(
    ("body", "others"),
    [
        (lambda emit, x: emit(R.nn.relu(emit(R.permute_dims(x, [0, 1, 3, 2])))), ()),
        (lambda emit, x: emit(R.exp(emit(R.sum(x, axis=[2, 3], keepdims=True)))), ()),
        (lambda emit, x: emit(R.nn.softmax(x)), ()),
        (lambda emit, x: emit(R.add(x, emit(R.max(x, axis=[0], keepdims=True)))), ()),
        (lambda emit, x: emit(R.nn.relu(emit(R.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1])))), ()),
        (lambda emit, x: emit(R.nn.relu(emit(R.strided_slice(x, [1], [0], [3])))), ()),
        (lambda emit, x: emit(R.nn.relu(emit(R.reshape(x, (12, 20))))), ()),
        (lambda emit, x, row: emit(R.add(emit(R.reshape(x, (2, 6, 4, 5))), row)), ((5,),)),
        (lambda emit, x, part: emit(R.add(x, emit(R.strided_slice(part, [1], [1], [7])))), ((2, 8, 5, 4),)),
        (lambda emit, x: emit(R.astype(x, "float8_e4m3fn")), ()),
    ],
)
def test_others_are_refused(body: Callable[..., Any], others: tuple[Any, ...]) -> None:
    with pytest.raises(Refusal):
        epilogue(body, *others)


def test_values_that_depend_on_a_size() -> None:
    """A kernel of any size has no name for the sizes of a model."""
    n, builder = tirx.Var("n", "int64"), relax.BlockBuilder()
    x = relax.Var("x0", relax.TensorType((n, 6, 5, 4), "float32"))

    def scaled(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: x(*at) * x.shape[0].astype("float32"), name="scaled")

    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.call_te(scaled, builder.emit(R.nn.relu(x))))
        builder.emit_func_output(y)
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        mod = MergeStitchOps()(StitchOps()(relax.transform.LegalizeOps()(builder.get())))
    (func,) = [f for f in mod.functions.values() if f.attrs and STITCH_ATTR in f.attrs]
    graph = read(func, "f")
    with pytest.raises(Refusal, match="or on a size"):
        epilogue_of(graph, graph.inputs[0])
    assert not is_epilogue(graph, 0) and is_epilogue(epilogue_graph(lambda emit, x: emit(R.nn.relu(x))), 0)


def test_lines_of_places_and_other_types() -> None:
    def body(emit: Any, x: Any, row: Any, column: Any) -> Any:
        return emit(
            R.multiply(emit(R.add(x, emit(R.astype(row, "float32")))), emit(R.astype(column, "float32")))
        )

    found = epilogue(body, (4,), (2, 1, 5, 1), dtype="int32")
    assert {tensor.name: axes for tensor, axes in found.operands} == {"x1": (3,), "x2": (0, None, 2, None)}


def summed(body: Callable[..., Any]) -> StitchGraph:
    """Build a stitch op of two convolutions' splits, three of each, and of another tensor."""
    parts, whole = ((3, *SHAPE), "float32"), (SHAPE, "float32")

    def all_of_it(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return body(emit, emit_te(x), emit_te(y), z)

    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(*spec)) for i, spec in enumerate([parts, parts, whole])]

    def emit_te(splits: Any) -> Any:
        return builder.emit(builder.call_te(added_up, splits))

    with builder.function("main", params):
        with builder.dataflow():
            made = all_of_it(builder.emit, *params)
            outputs = [builder.emit_output(v) for v in (made if isinstance(made, list) else [made])]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        mod = MergeStitchOps()(StitchOps()(relax.transform.LegalizeOps()(builder.get())))
    (func,) = [f for f in mod.functions.values() if f.attrs and STITCH_ATTR in f.attrs]
    return read(func, "f")


def test_sums_become_inputs() -> None:
    graph = summed(lambda emit, x, y, z: emit(R.nn.relu(emit(R.add(emit(R.add(x, y)), z)))))
    made = without_sum(graph, graph.inputs[0])
    assert [tuple(t.shape) for t in made.inputs] == [SHAPE, (3, *SHAPE), SHAPE]
    assert len(made.operators) == len(graph.operators) - 1 and len(graph.inputs[0].consumers) == 1
    both = without_sum(made, made.inputs[1])
    assert [axes for _, axes in epilogue_of(both, both.inputs[1]).operands] == [(0, 1, 2, 3)] * 2
    with pytest.raises(Refusal):
        epilogue_of(made, made.inputs[0])  # the other's splits are read in another way


def test_splits_that_are_read_otherwise() -> None:
    reduced = epilogue_graph(lambda emit, x: emit(R.exp(emit(R.sum(x, axis=[2, 3], keepdims=True)))))
    with pytest.raises(Refusal, match="not added up in one place"):
        without_sum(reduced, reduced.inputs[0])
    twice = epilogue_graph(lambda emit, x: [emit(R.exp(x)), emit(R.negative(x))])
    with pytest.raises(Refusal, match="not added up in one place"):
        without_sum(twice, twice.inputs[0])


def test_components() -> None:
    """Results that have an operator or a product in common are of one part. A common bias does not join them."""

    def body(emit: Any, x: Any, y: Any, z: Any) -> list[Any]:
        a = emit(R.add(x, z))
        return [emit(R.nn.relu(a)), emit(R.multiply(y, z)), emit(R.exp(a)), emit(R.negative(y))]

    graph = summed(body)
    parts = components(graph, [0, 1])
    assert sorted(outputs for _, outputs in parts) == [(0, 2), (1, 3)]
    for part, outputs in parts:
        assert len(part.inputs) == 3 and len(part.outputs) == len(outputs)
    (whole,) = components(graph, [0, 1, 2])
    assert whole[1] == (0, 1, 2, 3)
