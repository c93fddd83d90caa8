# SPDX-License-Identifier: Apache-2.0
"""Run an ONNX model by ONNX Runtime, stock TVM and tvm_stitch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tvm_stitch.target import has_feature, this_cpu

Inputs = dict[str, np.ndarray]
Run = Callable[[onnx.ModelProto, Inputs], list[np.ndarray]]

REFERENCE = "ONNX Runtime, no optimizations"


def runs() -> dict[str, Run]:
    """Return the ways to run a model here by name. The first is the reference."""
    import tvm

    runs_of: dict[str, Run] = {
        REFERENCE: lambda model, inputs: by_onnxruntime(model, inputs, False),
        "ONNX Runtime, optimized": lambda model, inputs: by_onnxruntime(model, inputs, True),
        "stock TVM": lambda model, inputs: by_tvm(model, inputs, "llvm", stock=True),
        "tvm_stitch, llvm": lambda model, inputs: by_tvm(model, inputs, "llvm"),
    }
    here = tvm.target.Target(this_cpu())
    if has_feature(here, "avx512vnni") or has_feature(here, "avxvnni"):
        runs_of["tvm_stitch, VNNI"] = lambda model, inputs: by_tvm(model, inputs, here)
    return runs_of


def by_onnxruntime(model: onnx.ModelProto, inputs: Inputs, optimized: bool) -> list[np.ndarray]:
    """Return the outputs of a model by ONNX Runtime, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, inputs)]


def by_tvm(model: onnx.ModelProto, inputs: Inputs, target: object, stock: bool = False) -> list[np.ndarray]:
    """Return the outputs of a model, imported by tvm_stitch and compiled by it or by stock TVM."""
    import tvm
    from tvm import relax

    import tvm_stitch
    from tvm_stitch.importers.onnx.load import from_onnx

    mod = from_onnx(model)
    executable = tvm.compile(mod, target) if stock else tvm_stitch.compile(mod, target)
    vm = relax.VirtualMachine(executable, tvm.cpu())
    result = vm["main"](*[tvm.runtime.tensor(inputs[v.name]) for v in model.graph.input])
    results = [result] if hasattr(result, "numpy") else list(result)
    return [y.numpy() for y in results]
