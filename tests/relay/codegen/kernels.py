# SPDX-License-Identifier: Apache-2.0
"""Relay functions as single stitched kernels: lowered, read, planned, emitted, compiled and run."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relay

from tvm_stitch.codegen.emit import emit
from tvm_stitch.device import device_model
from tvm_stitch.graph import read
from tvm_stitch.plan.choose import choose_plan

Body = Callable[..., Any]
# The strategies of real targets may answer with an extern call or a layout of their own (concatenate on an x86).
GENERIC = {"kind": "llvm", "keys": ["generic"]}
TOLERANCE = {
    "float32": (3e-5, 3e-5),
    "float16": (4e-3, 4e-3),
    "bfloat16": (3e-2, 3e-2),
    "float64": (1e-12, 1e-12),
}
"""Relative and absolute error by the dtype of an output. Other dtypes are compared exactly."""

VECTOR_STORE = re.compile(r"store <(8|16|32) x float>")
LIBM = re.compile(r"call [^\n]*@(expf?|tanhf?|erff?|logf?|powf?|exp2f?)\(")


def lower(function: relay.Function) -> Any:
    """Return the unscheduled PrimFunc of a Relay function of memory-intensive operators."""
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    primitive = typed.with_attr("Primitive", tvm.tir.IntImm("int32", 1))
    return tvm.get_global_func("relay.backend.LowerToPrimFunc")(primitive, tvm.target.Target(GENERIC))


def draw(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Random values, the same in every run."""
    rng = np.random.default_rng(zlib.crc32(f"{tuple(shape)} {dtype}".encode()))
    if dtype == "bool":
        return rng.random(shape) < 0.7
    if dtype.startswith(("int", "uint")):
        return rng.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(dtype)
    return rng.standard_normal(shape).astype("float32").astype(np.dtype(dtype))


def to_device(array: np.ndarray) -> tvm.nd.NDArray:
    """Return an array for TVM, which takes bfloat16 as its bits."""
    if array.dtype != ml_dtypes.bfloat16:
        return tvm.nd.array(array)
    return tvm.nd.empty(array.shape, "bfloat16").copyfrom(array.view("uint16"))


def to_host(array: tvm.nd.NDArray) -> np.ndarray:
    """Invert ``to_device``."""
    if array.dtype != "bfloat16":
        return array.numpy()
    return array.numpy().view(ml_dtypes.bfloat16)


def poison(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return an output before the call: NaN, or a number that no test expects."""
    if dtype == "bool":
        return np.zeros(shape, "bool")
    return np.full(shape, np.nan if "float" in dtype else 113, np.dtype(dtype))


class Kernel:
    """A Relay function compiled as one stitched kernel."""

    def __init__(self, function: relay.Function, target: Any = "llvm"):
        target = tvm.target.Target(target)
        func = lower(function)
        self.graph = read(func, "kernel")
        self.plan = choose_plan(self.graph, device_model(target))
        self.func = emit(func, self.plan)
        self.library = tvm.build(self.func, target=target, name="kernel")

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        outputs = [to_device(poison([int(e) for e in t.shape], t.dtype)) for t in self.graph.outputs]
        self.library["kernel"](*[to_device(a) for a in inputs], *outputs)
        return [to_host(o) for o in outputs]

    @property
    def source(self) -> str:
        """The LLVM IR."""
        return str(self.library.get_source("ll"))


def check(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str] | str,
    body: Body,
    reference: Body,
    tolerance: dict[str, tuple[float, float]] | None = None,
    target: Any = "llvm",
) -> Kernel:
    """Compile what ``body`` makes of the inputs, run it once, compare with ``reference`` in float64."""
    dtypes = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    params = [relay.var(f"a{i}", shape=s, dtype=d) for i, (s, d) in enumerate(zip(shapes, dtypes))]
    result = body(*params)
    kernel = Kernel(
        relay.Function(params, relay.Tuple(result) if isinstance(result, list) else result), target
    )
    inputs = [draw(s, d) for s, d in zip(shapes, dtypes)]
    wide = [a.astype("float64") if "float" in a.dtype.name else a for a in inputs]
    with np.errstate(all="ignore"):
        expected = reference(*wide)
    expected = expected if isinstance(expected, list) else [expected]
    found = kernel(*inputs)
    assert len(found) == len(expected)
    for got, want in zip(found, expected):
        compare(got, np.asarray(want), tolerance)
    return kernel


def compare(got: np.ndarray, want: np.ndarray, tolerance: dict[str, tuple[float, float]] | None) -> None:
    """Shapes, and values within the tolerance of the output's dtype."""
    assert got.shape == want.shape, (got.shape, want.shape)
    limits = (tolerance or TOLERANCE).get(got.dtype.name)
    if limits is None:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got.astype("float64"), want, rtol=limits[0], atol=limits[1])


def pad_and_sums(pads: tuple[tuple[int, int], ...]) -> tuple[Body, Callable[..., list[np.ndarray]]]:
    """Return the sums of a padded input's columns and its exponentials: in Relay, and the reference."""

    def body(x: Any) -> list[Any]:
        padded = relay.nn.pad(x, pads)
        return [relay.sum(padded, 0), relay.exp(padded)]

    def reference(x: np.ndarray) -> list[np.ndarray]:
        padded = np.pad(x, pads)
        return [padded.sum(0), np.exp(padded)]

    return body, reference
