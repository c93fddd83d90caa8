# SPDX-License-Identifier: Apache-2.0
"""The pass on products of integers, and runs of its modules, for its tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.quantize.products import QuantizedProducts
from tvm_stitch.target import this_cpu

HERE = tvm.target.Target(this_cpu())

AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})

VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "icelake-server"})

SCALE = np.float32(0.05)


def integers(dtype: str, *shape: int, low: int | None = None, high: int | None = None) -> np.ndarray:
    limits = np.iinfo(dtype)
    low, high = limits.min if low is None else low, limits.max if high is None else high
    return np.random.default_rng(sum(shape)).integers(low, high + 1, shape).astype(dtype)


def after(mod: tvm.IRModule, target: Any = AVX2, **options: Any) -> tuple[tvm.IRModule, dict[str, str]]:
    made = QuantizedProducts(target, StitchConfig(**options))(mod)
    return without_decisions(made), dict(decisions_of(made).computed)


def run(mod: tvm.IRModule, *arrays: np.ndarray, target: Any = HERE) -> tuple[np.ndarray, Recorder]:
    recorder = Recorder()
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, None, recorder))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, arrays)).numpy(), recorder


def constant(value: Any, dtype: str | None = None) -> Any:
    return relax.const(np.asarray(value), dtype)


def quantized_matmul(
    k: int,
    weight: np.ndarray,
    zero: int,
    scale: Any,
    weight_zero: Any,
    dtype: str = "int8",
    rows: Any = 9,
    axis: int = 1,
) -> tvm.IRModule:
    """``dequantize(x) @ dequantize(weight)``, of an input of integers."""

    def body(emit: Any, x: Any) -> list[Any]:
        left = emit(R.dequantize(x, constant(SCALE), constant(zero, dtype), out_dtype="float32"))
        scales, zeros = (
            constant(np.asarray(scale, "float32")),
            constant(np.asarray(weight_zero, weight.dtype)),
        )
        right = emit(R.dequantize(constant(weight), scales, zeros, axis=axis, out_dtype="float32"))
        return [R.matmul(left, right)]

    return build(body, ((rows, k), dtype))
