# SPDX-License-Identifier: Apache-2.0
"""Loads ONNX models, runs compiled ones beside ONNX Runtime, and times several of them interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.target import Target

from .. import compat
from ..graph.dtype import HALF

Dim = int | str


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model: name, shape (a symbolic dimension is its name, or ``?``) and dtype."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class OnnxModel:
    """An imported ONNX model: the Relax module (parameters bound as constants), and what it takes."""

    proto: onnx.ModelProto
    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]


def load_onnx(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None, names: bool = False
) -> OnnxModel:
    """Import an ONNX model into Relax.

    Args:
        proto: the model.
        shapes: shapes that replace those of the named inputs, to fix symbolic dimensions.
        names: whether calls keep the names of the ONNX nodes that they come from, in their spans.

    Raises:
        ValueError: when ``shapes`` names no input of the model, or contradicts a fixed dimension.
    """
    from tvm.relax.frontend.onnx import from_onnx

    from ..onnx_names import from_onnx_named  # not for a TVM with Relay

    inputs = input_specs(proto)
    fixed = {name: tuple(int(d) for d in shape) for name, shape in (shapes or {}).items()}
    known = {spec.name: spec for spec in inputs}
    for name, shape in fixed.items():
        if name not in known:
            raise ValueError(f"the model has no input '{name}'; its inputs are {'; '.join(map(str, inputs))}")
        declared = known[name].shape
        if len(declared) != len(shape) or any(
            isinstance(d, int) and d != n for d, n in zip(declared, shape, strict=True)
        ):
            raise ValueError(f"shape {list(shape)} does not fit the input {known[name]}")
    inputs = tuple(TensorSpec(s.name, fixed.get(s.name, s.shape), s.dtype) for s in inputs)
    given = {n: list(s) for n, s in fixed.items()} or None
    mod = from_onnx_named(proto, given) if names else from_onnx(proto, shape_dict=given)
    return OnnxModel(proto, mod, inputs)


def in_half(model: OnnxModel, dtype: str) -> OnnxModel:
    """An imported float32 model in mixed precision of a half type, its inputs too."""
    from ..relax.half_precision import in_half_precision  # not for a TVM with Relay

    mod = in_half_precision(model.mod, dtype)
    inputs = tuple(replace(s, dtype=dtype) if s.dtype == "float32" else s for s in model.inputs)
    return OnnxModel(model.proto, mod, inputs)


def input_specs(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The inputs of a model that no initializer fills, in order."""
    filled = {tensor.name for tensor in proto.graph.initializer}
    specs = []
    for value in proto.graph.input:
        if value.name in filled:
            continue
        tensor = value.type.tensor_type
        shape = tuple(
            int(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim
        )
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        specs.append(TensorSpec(value.name, shape, dtype))
    return tuple(specs)


def output_specs(model: OnnxModel) -> tuple[TensorSpec, ...]:
    """The outputs of an imported model, in order, with the shapes that Relax infers for them."""
    names = [value.name for value in model.proto.graph.output]
    returned = model.mod["main"].ret_ty
    return tuple(map(_output_spec, names, [returned] if len(names) == 1 else returned.fields))


def _output_spec(name: str, info: Any) -> TensorSpec:
    if not isinstance(info, relax.TensorType):
        return TensorSpec(name, ("?",), "sequence")
    shape = info.shape if isinstance(info.shape, relax.ShapeExpr) else ["?"] * max(info.ndim, 0)
    sizes = tuple(str(dim) if (size := compat.int_value(dim)) is None else size for dim in shape)
    return TensorSpec(name, sizes, str(info.dtype))


def make_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs: standard normal floats, and 0 or 1 for all else (valid as tokens, indices and masks).

    Raises:
        ValueError: when a dimension is symbolic.
    """
    rng = np.random.default_rng(seed)
    made = {}
    for spec in specs:
        if not all(isinstance(d, int) for d in spec.shape):
            raise ValueError(f"the input {spec} has a symbolic dimension; a shape must be given for it")
        shape = tuple(int(d) for d in spec.shape)
        if spec.dtype.startswith(("float", "bfloat")):
            made[spec.name] = rng.standard_normal(shape).astype(np.dtype(spec.dtype))
        else:
            made[spec.name] = rng.integers(0, 2, size=shape).astype(np.dtype(spec.dtype))
    return made


def onnxruntime_call(
    proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> Callable[[], list[np.ndarray]]:
    """A call of ONNX Runtime on the CPU, with as many threads as it likes; it returns all outputs in order.

    Inputs that are of a half type where the model's are not become what it takes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {spec.name: spec.dtype for spec in input_specs(proto)}
    given = {n: v.astype(wanted[n]) if str(v.dtype) in HALF else v for n, v in inputs.items()}
    return lambda: [np.asarray(output) for output in session.run(None, given)]


def onnxruntime_outputs(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes on the CPU, all outputs in order."""
    return onnxruntime_call(proto, inputs)()


def greatest_error(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The greatest absolute difference over all outputs; infinite where shapes, NaN or inf do not match."""
    if len(outputs) != len(expected):
        return float("inf")
    worst = 0.0
    for got, want in zip(outputs, expected, strict=True):
        if got.shape != want.shape:
            return float("inf")
        a, b = got.astype(np.float64), want.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(a - b))
        if difference.size:
            peak = float(difference.max())
            worst = max(worst, float("inf") if np.isnan(peak) else peak)
    return worst


class Runner:
    """A compiled module on a device with its inputs there, ready to be called again and again."""

    def __init__(
        self, executable: Any, target: Target, inputs: Sequence[np.ndarray], entry: str = "main"
    ) -> None:
        self.device = tvm.device(target.kind.name if "gpu" in target.keys else "cpu", 0)
        self.vm = relax.VirtualMachine(executable, self.device)
        self.entry = entry
        self.arguments = [tvm.runtime.tensor(value, self.device) for value in inputs]

    def __call__(self) -> Any:
        """Call the entry function once and wait for the device."""
        result = self.vm[self.entry](*self.arguments)
        self.device.sync()
        return result

    def outputs(self) -> list[np.ndarray]:
        """Call once and return all outputs, nested tuples flattened."""
        return list(_flatten(self()))

    def kernel_seconds(self, kernels: Collection[str]) -> float:
        """The seconds that one call spends in the named functions, each waited for; CPU devices only."""
        total = 0.0
        started = 0.0

        def instrument(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            nonlocal started, total
            if before:
                started = time.perf_counter()
            elif name in kernels:
                total += time.perf_counter() - started
            return 0

        return self._instrumented(instrument, lambda: total)

    def calls(self) -> list[str]:
        """What the virtual machine calls in one call of the entry function, builtins included, in order."""
        names: list[str] = []

        def instrument(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            if before:
                names.append(str(name))
            return 0

        return self._instrumented(instrument, lambda: names)

    def _instrumented(self, instrument: Callable[..., int], result: Callable[[], Any]) -> Any:
        # An instrument cannot be taken off a virtual machine, only replaced: by one that does nothing.
        self.vm.set_instrument(instrument)
        try:
            self()
        finally:
            self.vm.set_instrument(lambda *_args: 0)
        return result()


def interleaved_seconds(runs: Sequence[Callable[[], Any]], repeats: int = 5) -> list[float]:
    """The median seconds of each callable, all of them called in turn ``repeats`` times after one warm-up.

    Turns alternate in direction, so that none of them always follows the same other one.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for turn in range(repeats):
        order = range(len(runs)) if turn % 2 == 0 else reversed(range(len(runs)))
        for index in order:
            start = time.perf_counter()
            runs[index]()
            times[index].append(time.perf_counter() - start)
    return [statistics.median(samples) for samples in times]


def _flatten(value: Any) -> list[np.ndarray]:
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for item in value for array in _flatten(item)]
