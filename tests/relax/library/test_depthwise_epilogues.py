# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators behind depthwise convolutions: in the convolution's kernel, in float32, and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.reference.relax import evaluate, mismatches
from tests.choices import change_choices
from tests.graph.helpers import build, symbol
from tests.relax.library.test_depthwise_convolutions import CUDA, exact
from tvm_stitch import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline

DTYPES = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
LAYOUTS = {
    2: {True: ("NCHW", "OIHW"), False: ("NHWC", "OHWI")},
    1: {True: ("NCW", "OIW"), False: ("NWC", "OWI")},
}
"""Layouts of data and weight, by the number of spatial axes and by whether channels are first."""


def kind(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


@dataclass(frozen=True)
class Case:
    """A convolution, by the shapes of data and window with channels last."""

    data: tuple[int, int, int, int] = (2, 13, 11, 24)
    window: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def out(self) -> tuple[int, int, int, int]:
        """Shape of the result."""
        n, *extents, c = self.data
        rows, columns = (
            (extents[i] + self.padding[i] + self.padding[i + 2] - self.dilation[i] * (self.window[i] - 1) - 1)
            // self.strides[i]
            + 1
            for i in range(2)
        )
        return n, rows, columns, c


CASES = {
    "usual": Case(),
    "odd channels": Case((3, 5, 6, 7)),
    "one channel": Case((1, 6, 6, 1)),
    "two channels": Case((2, 9, 9, 2), (5, 5), padding=(2, 2, 2, 2)),
    "strides": Case((2, 14, 15, 12), (5, 3), (2, 2), (2, 1, 2, 1)),
    "dilation": Case((1, 19, 21, 12), padding=(4, 6, 4, 6), dilation=(4, 3)),
    "one position": Case((2, 3, 3, 260), padding=(0, 0, 0, 0)),
    "many rows": Case((1, 29, 3, 8)),
}
COLUMN = Case((2, 1, 31, 20), (1, 5), padding=(0, 2, 0, 2))
"""A convolution of one spatial axis."""


class Ours:
    """A convolution of one layout, its weight a constant, and operators behind it.

    Operands are drawn with channels last, and stored in the layout. ``wanted`` follows in float64.
    """

    def __init__(self, case: Case, dtype: str, first: bool, axes: int = 2):
        self.case, self.dtype, self.first, self.axes = case, dtype, first, axes
        self.draw = np.random.default_rng()
        self.given = [self.normal(case.data)]
        self.weight = self.normal((case.data[3], *case.window, 1))
        self.wanted = exact(self.given[0], self.weight, case.strides, case.padding, case.dilation)
        self.behind: list[Callable[..., Any]] = []

    def normal(self, shape: Sequence[int]) -> np.ndarray:
        return self.draw.standard_normal(shape).astype(kind(self.dtype))

    def stored(self, x: np.ndarray) -> np.ndarray:
        x = x.transpose(0, 3, 1, 2) if self.first else x
        return np.ascontiguousarray(x.squeeze(-2 + (not self.first) * -1) if self.axes == 1 else x)

    def then(self, operator: Callable[[Any], Any], exactly: Callable[[np.ndarray], np.ndarray]) -> Ours:
        """Append an operator of one tensor."""
        self.behind.append(lambda emit, y, _: emit(operator(y)))
        self.wanted = exactly(self.wanted)
        return self

    def by(
        self,
        operator: Callable[..., Any],
        exactly: Callable[..., np.ndarray],
        axes: str,
        constant: bool = False,
    ) -> Ours:
        """Append an operator with another tensor that has some of the axes ``nhwc``."""
        shape = [extent if axis in axes else 1 for axis, extent in zip("nhwc", self.case.out)]
        other = self.normal(shape)
        self.wanted = exactly(self.wanted, other.astype("float64"))
        if constant:
            held = relax.const(self.stored(other))
            self.behind.append(lambda emit, y, _: emit(operator(y, held)))
        else:
            self.given.append(other)
            self.behind.append(lambda emit, y, others: emit(operator(y, next(others))))
        return self

    def module(self, shapes: Sequence[Any] | None = None) -> tvm.IRModule:
        first, case, spatial = self.first, self.case, slice(2 - self.axes, None)
        layout, kernel = LAYOUTS[self.axes][first]
        weight = self.weight.transpose(0, 3, 1, 2) if first else self.weight
        if self.axes == 1:
            weight = weight.squeeze(2 if first else 1)
        padding = case.padding if self.axes == 2 else case.padding[1::2]
        convolution = R.nn.conv2d if self.axes == 2 else R.nn.conv1d
        attrs = {"groups": case.data[3], "data_layout": layout, "kernel_layout": kernel, "padding": padding}
        attrs |= {"strides": case.strides[spatial], "dilation": case.dilation[spatial]}

        def body(emit: Any, x: Any, *others: Any) -> Any:
            y, left = emit(convolution(x, relax.const(np.ascontiguousarray(weight)), **attrs)), iter(others)
            for operator in self.behind:
                y = operator(emit, y, left)
            return y

        shapes = shapes or [self.stored(each).shape for each in self.given]
        return build(body, *((shape, self.dtype) for shape in shapes))

    def check(self, mod: tvm.IRModule) -> None:
        """Run the module, and compare the one kernel's result with float64."""
        given = [self.stored(each) for each in self.given]
        run = run_cuda(
            mod, given, target=CUDA, relax_pipeline=pipeline(CUDA, StitchConfig(strict=True))
        ).check()
        (launch,) = run.launches
        assert launch.name.startswith("depthwise_convolution_")
        got, want = run.outputs[0].astype("float64"), self.stored(self.wanted)
        # Sums are float32. A result is rounded once: its error is half of the type's spacing, not more.
        rounded = 0.51 * DTYPES[self.dtype] * abs(want) if self.dtype != "float32" else 0.0
        assert (abs(got - want) <= rounded + 1e-5 * np.abs(want).max() + 1e-6).all()


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread have several results of small images too, as it has of large ones."""
    change_choices(monkeypatch, depthwise_threads_each=0, depthwise_rows_threads_each=0)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_a_batch_norm_an_activation_and_a_residual(case: str, dtype: str, first: bool) -> None:
    ours = Ours(CASES[case], dtype, first)
    ours.by(R.multiply, np.multiply, "c", constant=True).by(R.add, np.add, "c", constant=True)
    ours.then(R.nn.silu, silu).by(R.add, np.add, "nhwc")
    mod = ours.module()
    ours.check(mod)
    assert more_than_stock(mod, CUDA, pipeline(CUDA)) == ""


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("axes", ["nc", "n", "h", "w", "hw", "hc", "nw", "nhw", "wc", "nhc", ""])
def test_operands_of_some_axes(axes: str, first: bool) -> None:
    for dtype in ("float32", "float16"):
        ours = Ours(Case((3, 9, 5, 12)), dtype, first).by(R.multiply, np.multiply, axes)
        ours.check(ours.then(R.nn.relu, relu).module())


@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_thread_with_one_result(dtype: str, first: bool) -> None:
    """Small images have few results for each multiprocessor."""
    ours = Ours(CASES["usual"], dtype, first).by(R.add, np.add, "c", constant=True)
    ours.check(ours.then(R.nn.silu, silu).by(R.multiply, np.multiply, "nhwc").module())


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_spatial_axis(dtype: str, first: bool) -> None:
    ours = Ours(COLUMN, dtype, first, axes=1).by(R.add, np.add, "c", constant=True)
    ours.check(
        ours.then(lambda y: R.clip(y, 0, 6), lambda y: np.clip(y, 0, 6)).by(R.add, np.add, "nhwc").module()
    )


@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("images", [0, 1, 3])
@pytest.mark.parametrize("strides", [1, 2])
def test_symbolic_extents(images: int, first: bool, strides: int) -> None:
    """Other operands have extents that no other operand shows."""
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    ours = Ours(Case((images, 9, 7, 12), strides=(strides, strides)), "float16", first)
    ours.by(R.multiply, np.multiply, "nc").by(R.add, np.add, "c", constant=True).then(R.nn.relu, relu)
    x = (n, 12, h, w) if first else (n, h, w, 12)
    gate = (n, 12, 1, 1) if first else (n, 1, 1, 12)
    mod = ours.module([x, gate])
    if images:
        ours.check(mod)
        return
    run = run_cuda(
        mod, [ours.stored(each) for each in ours.given], target=CUDA, relax_pipeline=pipeline(CUDA)
    )
    assert run.check().outputs[0].size == 0


# -- graphs -----------------------------------------------------------------------------------------------------
CHANNELS, SHAPE = 12, (2, 12, 7, 9)
TOLERANCE = {"float32": (2e-5, 2e-5), "float64": (2e-5, 2e-5)}
RNG = np.random.default_rng()


def constant(*shape: int) -> Any:
    return relax.const(RNG.standard_normal(shape).astype("float32"))


def convolved(x: Any) -> Any:
    return R.nn.conv2d(x, constant(CHANNELS, 1, 3, 3), padding=1, groups=CHANNELS)


def biased(emit: Any, x: Any) -> Any:
    return emit(R.add(emit(convolved(x)), constant(1, CHANNELS, 1, 1)))


def launched(
    body: Callable[..., Any], *shapes: Sequence[int], config: StitchConfig | None = None
) -> list[str]:
    """Return the kernels that a module launches, after a comparison with float64 and with stock TVM's number."""
    mod = build(body, *((shape, "float32") for shape in shapes))
    inputs = [RNG.standard_normal(shape).astype("float32") for shape in shapes]
    run = run_cuda(mod, inputs, target=CUDA, relax_pipeline=pipeline(CUDA, config)).check()
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []
    assert more_than_stock(mod, CUDA, pipeline(CUDA, config)) == ""
    return [launch.name.removesuffix("_kernel") for launch in run.launches]


def test_several_results() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        y = biased(emit, x)
        return [y, emit(R.nn.relu(y)), emit(R.tanh(y))]

    assert launched(body, SHAPE) == ["depthwise_convolution_add_relu_tanh"]


def test_what_other_operands_are_made_of() -> None:
    def body(emit: Any, x: Any, v: Any) -> Any:
        y = emit(R.add(biased(emit, x), emit(R.tanh(x))))
        return emit(R.nn.relu(emit(R.multiply(y, emit(R.exp(v))))))

    (name,) = launched(body, SHAPE, (1, CHANNELS, 1, 1))
    assert name.startswith("depthwise_convolution_")


def test_a_chain_of_convolutions() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.relu(biased(emit, emit(R.nn.relu(biased(emit, x))))))
        return emit(R.add(y, x))

    assert launched(body, SHAPE) == ["depthwise_convolution_add_relu", "depthwise_convolution_add_relu_add1"]


def test_two_convolutions_that_are_added() -> None:
    def body(emit: Any, x: Any) -> Any:
        return emit(R.nn.relu(emit(R.add(emit(convolved(x)), emit(convolved(x))))))

    assert launched(body, SHAPE) == ["depthwise_convolution", "depthwise_convolution_add_relu"]


def test_squeeze_and_excite() -> None:
    """The activation is read by the mean, and behind the products that make the gate: the convolution writes it."""

    def body(emit: Any, x: Any, down: Any, up: Any) -> Any:
        y = emit(R.nn.silu(biased(emit, x)))
        mean = emit(R.reshape(emit(R.mean(y, [2, 3])), (2, CHANNELS)))
        gate = emit(R.sigmoid(emit(R.matmul(emit(R.nn.relu(emit(R.matmul(mean, down)))), up))))
        return emit(R.multiply(y, emit(R.reshape(gate, (2, CHANNELS, 1, 1)))))

    shapes = SHAPE, (CHANNELS, 640), (640, CHANNELS)
    names = launched(body, *shapes)
    assert names[:2] == ["depthwise_convolution_add_silu", "stitch_mean"]
    apart = launched(body, *shapes, config=StitchConfig(epilogues=False))
    assert apart[:2] == ["depthwise_convolution", "stitch_add_silu_mean"] and len(apart) == len(names)


def the_result_itself(emit: Any, x: Any) -> list[Any]:
    y = emit(convolved(x))
    return [y, emit(R.tanh(y))]


def normalized(emit: Any, x: Any) -> Any:
    return emit(R.nn.softmax(biased(emit, x), axis=1))


def transposed(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(emit(R.nn.relu(emit(convolved(x)))), [0, 2, 3, 1]))


def sliced(emit: Any, x: Any) -> Any:
    return emit(R.nn.relu(emit(R.strided_slice(emit(convolved(x)), [2], [1], [5]))))


def gated_by_a_sum(emit: Any, x: Any) -> Any:
    gate = emit(R.sigmoid(emit(R.mean(x, [2, 3], True))))
    return emit(R.nn.relu(emit(R.multiply(emit(convolved(x)), gate))))


@pytest.mark.parametrize("body", [the_result_itself, normalized, transposed, sliced, gated_by_a_sum])
def test_others_stay_stitched(body: Callable[..., Any]) -> None:
    names = launched(body, SHAPE)
    assert "depthwise_convolution" in names and len(names) == 2


@pytest.mark.parametrize("dtype", ["bool", "int8", "float64"])
def test_results_of_other_types(dtype: str) -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(convolved(x))
        if dtype == "bool":
            return emit(R.greater(y, relax.const(0.25, "float32")))
        if dtype == "int8":
            return emit(R.astype(emit(R.clip(emit(R.round(y)), -100, 100)), "int8"))
        return emit(R.multiply(emit(R.astype(y, "float64")), relax.const(1 / 3, "float64")))

    mod = build(body, (SHAPE, "float32"))
    x = RNG.integers(-3, 4, SHAPE).astype("float32")
    run = run_cuda(mod, [x], target=CUDA, relax_pipeline=pipeline(CUDA)).check()
    assert len(run.launches) == 1 and str(run.outputs[0].dtype) == dtype


def test_the_report_says_which_kernel_computes_them() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.silu(biased(emit, x)))
        return [y, emit(R.mean(y, [2, 3]))]

    recorder = Recorder()
    pipeline(CUDA, None, recorder)(build(body, (SHAPE, "float32")))
    reasons = {boundary.consumer: boundary.reason for boundary in recorder.boundaries}
    assert reasons["mean"] == "computed in the kernel of depthwise_convolution"
