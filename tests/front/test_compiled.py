# SPDX-License-Identifier: Apache-2.0
"""Compiled models are called as the models are: by position and name, with structured results, keeping their state."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import tvm_stitch
from tvm_stitch.config import configured
from tvm_stitch.front.compiled import Compiled
from tvm_stitch.front.sources import source_of


class Model(torch.nn.Module):
    """Counts its calls, changes an argument, and returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, a: torch.Tensor, b: torch.Tensor, *, pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
        self.count += 1
        pair[0].add_(1)
        return {"x": self.linear(a) + self.count, "rest": (b * 2 + pair[0], pair[1])}


def inputs() -> tuple[Any, Any]:
    return (torch.randn(2, 4), torch.randn(2)), {"pair": (torch.randn(2), torch.randn(2))}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def compiled(model: Model) -> Compiled:
    args, named = inputs()
    program = torch.export.export(model, args, named)
    return tvm_stitch.compile(program, "llvm")


def test_calls_are_those_of_the_model(compiled: Compiled, model: Model) -> None:
    model.count.zero_()
    for turn in range(3):
        (a, b), named = inputs()
        pair = tuple(each.clone() for each in named["pair"])
        found = compiled(a, b=b, **named) if turn else compiled(a, b, **named)
        wanted = model(a, b, pair=pair)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(named["pair"], pair)  # the first one is changed


def test_it_says_how_it_is_called(compiled: Compiled) -> None:
    first, result = compiled.inputs[0], compiled.outputs[-1]
    assert repr(compiled).startswith(f"Compiled({first}, ")
    assert repr(compiled).endswith(f"{result}, for llvm)") and " -> " in repr(compiled)


def test_results_are_arrays_of_the_callers_kind() -> None:
    compiled = tvm_stitch.compile(torch.nn.Linear(3, 2), "llvm", example_inputs=torch.randn(4, 3))
    x = torch.randn(4, 3)
    found = compiled(x)
    assert isinstance(found, torch.Tensor)
    for other, kind in ((x.numpy(), np.ndarray), (tvm.runtime.tensor(x.numpy()), tvm.runtime.Tensor)):
        result = compiled(other)
        assert isinstance(result, kind)
        array: Any = result
        np.testing.assert_array_equal(array if kind is np.ndarray else array.numpy(), found.numpy())


@pytest.mark.parametrize("change", ["strided", "offset", "differentiated", "negative"])
def test_memory_of_any_layout(change: str) -> None:
    compiled = tvm_stitch.compile(torch.nn.ReLU(), "llvm", example_inputs=torch.randn(4, 3))
    x = torch.randn(4, 3)
    given = {
        "strided": x.T.contiguous().T,
        "offset": torch.cat([torch.zeros(1), x.flatten()])[1:].reshape(4, 3),
        "differentiated": x.clone().requires_grad_(),
        "negative": torch._neg_view(-x),
    }[change]
    torch.testing.assert_close(compiled(given), torch.relu(x))


def test_half_types_and_numbers() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return x * factor.to(x.dtype)

    example = (torch.ones(3, dtype=torch.bfloat16), torch.tensor(2))
    compiled = tvm_stitch.compile(Scaled(), "llvm", example_inputs=example)
    assert compiled(example[0], 3).tolist() == [3.0, 3.0, 3.0]


def test_it_is_an_executable_of_tvm() -> None:
    mod = source_of(torch.nn.ReLU(), (torch.randn(2),)).mod
    compiled = tvm_stitch.compile(mod, "llvm")
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    (found,) = machine["main"](tvm.runtime.tensor(np.array([-1, 1], "float32")))
    assert found.numpy().tolist() == [0.0, 1.0]
    assert [(spec.shape, spec.dtype) for spec in compiled.inputs] == [((2,), "float32")]


@pytest.mark.parametrize(
    ("args", "named", "kind", "text"),
    [
        ((1.0,), {}, TypeError, "must be an array of NumPy, PyTorch or TVM, not float"),
        ((), {}, TypeError, r"these inputs are missing: \w+: float32\[2, 3\]"),
        ((torch.ones(2, 3),) * 2, {}, TypeError, "the model has 1 inputs, and 2 were given"),
        ((torch.ones(2, 3),), {"other": 1}, TypeError, "the model has no input 'other'"),
        ((torch.ones(2, 3, dtype=torch.float64),), {}, TypeError, "was given a tensor of float64"),
        ((torch.ones(3, 2),), {}, ValueError, r"was given a tensor of shape \[3, 2\]"),
        ((torch.ones(6),), {}, ValueError, r"was given a tensor of shape \[6\]"),
        (
            (torch.ones(2, 3, device="meta"),),
            {},
            ValueError,
            "a tensor of the device meta, which has no data",
        ),
        (
            (torch.ones(2, 3).to_sparse(),),
            {},
            TypeError,
            r"a tensor of layout torch.sparse_coo; call to_dense\(\)",
        ),
    ],
)
def test_errors_name_the_input(args: Any, named: Any, kind: type[Exception], text: str) -> None:
    compiled = tvm_stitch.compile(torch.nn.ReLU(), "llvm", example_inputs=torch.randn(2, 3))
    with pytest.raises(kind, match=text):
        compiled(*args, **named)


def test_a_symbolic_dimension_has_one_size() -> None:
    class Joined(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * 2 + b

    rows = torch.export.Dim("rows")
    compiled = tvm_stitch.compile(
        Joined(),
        "llvm",
        example_inputs=(torch.ones(4, 2), torch.ones(4, 1)),
        dynamic_shapes=({0: rows}, {0: rows}),
    )
    assert compiled(torch.ones(3, 2), torch.ones(3, 1)).shape == (3, 2)
    with pytest.raises(
        ValueError, match=r"\w+ is 3 in the input a: float32\[\w+, 2\], and 5 in the input b: float32"
    ):
        compiled(torch.ones(3, 2), torch.ones(5, 1))


def test_an_input_that_is_given_twice() -> None:
    compiled = tvm_stitch.compile(torch.nn.ReLU(), "llvm", example_inputs=torch.randn(2))
    name = compiled.inputs[0].name
    with pytest.raises(TypeError, match=f"the input '{name}' is given twice"):
        compiled(torch.ones(2), **{name: torch.ones(2)})


class Sized(torch.nn.Module):
    """Returns integers that the sizes of the inputs decide, and one that is always the same."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return {"x": x.exp(), "rows": x.shape[0], "seven": 7, "both": (x.shape[0] * 2 + y.shape[1], y + 1)}


def test_integers_among_results(tmp_path: Path) -> None:
    auto = torch.export.Dim.AUTO
    given = (torch.randn(3, 4), torch.randn(2, 5))
    compiled = tvm_stitch.compile(
        Sized(), "llvm", example_inputs=given, dynamic_shapes=({0: auto}, {1: auto})
    )
    compiled.save(tmp_path)
    for model in (compiled, tvm_stitch.load(tmp_path)):
        found = model(x := torch.randn(6, 4), torch.zeros(2, 9))
        torch.testing.assert_close(found["x"], x.exp())
        assert (found["rows"], found["seven"], found["both"][0]) == (6, 7, 21)
        assert type(found["rows"]) is int and found["both"][1].tolist() == [[1.0] * 9] * 2


def test_the_report_is_that_of_explain() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1)), torch.randn(2, 4)
    compiled = tvm_stitch.compile(model, "llvm", example_inputs=x)
    assert str(compiled.report) == str(tvm_stitch.explain(model, "llvm", example_inputs=x))
    assert compiled.report.model is not None
    assert [str(spec) for spec in compiled.outputs] == ["softmax: float32[2, 3]"]


def test_the_report_of_a_model_that_is_gone_has_its_kernels() -> None:
    """The compiled model does not keep the weights of the model a second time."""
    compiled = tvm_stitch.compile(torch.nn.Softmax(-1), "llvm", example_inputs=torch.randn(2, 4))
    gc.collect()  # a module may be part of a cycle
    assert [kernel.name for kernel in compiled.report.kernels] == ["stitch_softmax"]
    assert compiled.report.model is None


def _other_layer(model: torch.nn.Sequential) -> None:
    model[0] = torch.nn.Linear(4, 5)


def _other_function(model: torch.nn.Sequential) -> None:
    model[1] = torch.nn.Sigmoid()


@pytest.mark.parametrize(
    "change",
    [torch.nn.Module.double, lambda model: model.to("meta"), _other_layer, _other_function],
)
def test_the_report_of_a_model_that_was_changed_is_that_of_the_compilation(
    change: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1)), torch.randn(2, 4)
    wanted = tvm_stitch.explain(model, "llvm", example_inputs=x)
    compiled = tvm_stitch.compile(model, "llvm", example_inputs=x)
    change(model)
    assert compiled.report.kernels == wanted.kernels and compiled.report.computed == wanted.computed
    assert compiled.report.threads == wanted.threads and compiled.report.model is None
    assert "the model was changed after it was compiled" in caplog.text


def test_the_report_of_a_model_with_other_weights_has_its_graph(caplog: pytest.LogCaptureFixture) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1)), torch.randn(2, 4)
    compiled = tvm_stitch.compile(model, "llvm", example_inputs=x)
    with torch.no_grad():
        model[0].weight.add_(1)
    assert compiled.report.model is not None and "was changed" not in caplog.text


def test_the_executable_is_that_of_tvm() -> None:
    compiled = tvm_stitch.compile(torch.nn.ReLU(), "llvm", example_inputs=torch.randn(2))
    assert type(compiled.executable) is relax.VMExecutable
    (found,) = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"](
        tvm.runtime.tensor(np.array([-1, 1], "float32"))
    )
    assert found.numpy().tolist() == [0.0, 1.0]


def test_a_device_that_is_not_here() -> None:
    if tvm.cuda(0).exist:
        pytest.skip("needs a machine without a CUDA device")
    compiled = tvm_stitch.compile(
        torch.nn.ReLU(), {"kind": "cuda", "arch": "sm_90"}, example_inputs=torch.randn(2)
    )
    with pytest.raises(RuntimeError, match="no cuda device here, for which the model was compiled"):
        compiled(torch.ones(2))


def test_options_of_stitching_go_by_name() -> None:
    x = torch.ones(3, 4)
    by_name = tvm_stitch.compile(
        torch.nn.GELU(), example_inputs=(x,), tvm_thread_pool=True, exec_mode="compiled"
    )
    assert np.allclose(by_name(x), torch.nn.GELU()(x))
    before = tvm_stitch.StitchConfig(max_operators=80)
    assert configured(before, {"strict": True}) == tvm_stitch.StitchConfig(strict=True, max_operators=80)
    with pytest.raises(ValueError, match="option 'max_operators' must be an integer"):
        tvm_stitch.explain(torch.nn.GELU(), config=before, example_inputs=(x,), max_operators=0)
    for call in (tvm_stitch.compile, tvm_stitch.explain):
        with pytest.raises(ValueError, match=r"unknown option 'strickt'; did you mean 'strict'\?"):
            call(torch.nn.GELU(), example_inputs=(x,), strickt=True)
