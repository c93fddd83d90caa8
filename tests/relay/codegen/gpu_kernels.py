# SPDX-License-Identifier: Apache-2.0
"""Relay functions as single stitched CUDA kernels: planned, emitted, and run by the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from cuda_emulator import EmulatedRun, Options, default_target, lower_prim_func
from cuda_emulator.relay import run_lowered_prim_func
from tests.relay.codegen.kernels import Body, compare, draw
from tvm_stitch.codegen.emit import emit
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel, device_model
from tvm_stitch.graph import read
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.relay.cuda_source import fixed_cuda_source

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
STRATEGIES = {"kind": "cuda", "keys": ["generic"]}  # those of GPUs may answer with a schedule of their own


def lower(function: relay.Function) -> Any:
    """Return the unscheduled PrimFunc of a Relay function of memory-intensive operators."""
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]
    primitive = typed.with_attr("Primitive", tvm.tir.IntImm("int32", 1))
    return tvm.get_global_func("relay.backend.LowerToPrimFunc")(primitive, tvm.target.Target(STRATEGIES))


class GpuKernel:
    """A Relay function as one stitch op for sm_90."""

    def __init__(
        self, function: relay.Function, config: StitchConfig | None = None, device: DeviceModel | None = None
    ):
        self.unscheduled = lower(function)
        self.graph = read(self.unscheduled, "kernel")
        self.plan = choose_plan(self.graph, device or device_model(default_target()), config)
        self.func = emit(self.unscheduled, self.plan)
        with fixed_cuda_source():
            self.lowered = lower_prim_func(self.func)

    @property
    def source(self) -> str:
        """The CUDA C."""
        return str(self.lowered.source)

    @property
    def kernels(self) -> str:
        """The CUDA C from the first kernel on."""
        return self.source[self.source.index('extern "C" __global__') :]

    def __call__(self, *inputs: np.ndarray, **options: Any) -> EmulatedRun:
        return run_lowered_prim_func(self.lowered, self.func, inputs, **options)


def function(shapes: Sequence[Sequence[int]], dtypes: Sequence[str] | str, body: Body) -> relay.Function:
    """Return the Relay function of ``body``, one result or a list of several."""
    dtypes = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    params = [relay.var(f"a{i}", shape=s, dtype=d) for i, (s, d) in enumerate(zip(shapes, dtypes))]
    result = body(*params)
    return relay.Function(params, relay.Tuple(result) if isinstance(result, list) else result)


def check(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str] | str,
    body: Body,
    reference: Body,
    tolerance: dict[str, tuple[float, float]] | None = None,
    config: StitchConfig | None = None,
    device: DeviceModel | None = None,
    seeds: Sequence[int] = (0, 7),
    options: Options | None = None,
) -> GpuKernel:
    """Compile ``body``, run it in the emulator in several orders without a finding, compare with float64."""
    dtypes = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    kernel = GpuKernel(function(shapes, dtypes, body), config, device)
    inputs = [draw(s, d) for s, d in zip(shapes, dtypes)]
    wide = [a.astype("float64") if "float" in a.dtype.name else a for a in inputs]
    with np.errstate(all="ignore"):
        expected = reference(*wide)
    expected = expected if isinstance(expected, list) else [expected]
    for seed in seeds:
        run = kernel(*inputs, seed=seed, options=options).check()
        assert len(run.outputs) == len(expected)
        for got, want in zip(run.outputs, expected):
            compare(got, np.asarray(want), tolerance or TOLERANCE)
    return kernel
