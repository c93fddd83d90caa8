# SPDX-License-Identifier: Apache-2.0
"""The contenders of the demonstration: stock TVM, tvm_stitch, ONNX Runtime and PyTorch, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

import tvm_stitch
from tvm_stitch.execution.runner import Runner
from tvm_stitch.importers.onnx.compare import onnxruntime_call
from tvm_stitch.repairs.legalize.take import stock_pipeline
from tvm_stitch.testing.workloads.bert import BertConfig

from .screen import Screen

Inputs = dict[str, np.ndarray]


def compiled(mod: tvm.IRModule, target: Any, inputs: Inputs, screen: Screen) -> dict[str, Runner]:
    """Compile the module with TVM's own pipeline and with stitching, ready to call."""
    arrays = list(inputs.values())
    with screen.step(f"compiling for {target.kind.name} by TVM alone"):
        stock = tvm.compile(mod, target, relax_pipeline=stock_pipeline(target))
    with screen.step(f"compiling for {target.kind.name} with stitching"):
        stitched = tvm_stitch.compile(mod, target)
    return {"stock TVM": Runner(stock, target, arrays), "stitched": Runner(stitched, target, arrays)}


def peers(
    proto: Any, inputs: Inputs, config: BertConfig | None, on_gpu: bool, screen: Screen
) -> dict[str, Callable[[], Any]]:
    """Return the other runtimes for the model. PyTorch runs only the encoder that this demonstration builds."""
    calls: dict[str, Callable[[], Any]] = {}
    if not on_gpu:
        with screen.step("loading ONNX Runtime"):
            calls["ONNX Runtime"] = onnxruntime_call(proto, inputs)
    if config is not None:
        with screen.step("loading PyTorch"):
            call = _torch_call(proto, inputs, config, "cuda" if on_gpu else "cpu")
        if call is not None:
            calls["PyTorch"] = call
    return calls


def _torch_call(
    proto: Any, inputs: Inputs, config: BertConfig, device: str
) -> Callable[[], list[np.ndarray]] | None:
    """Return a call of PyTorch. None if it is not installed, or lacks CUDA for a GPU."""
    try:
        import torch
    except ImportError:
        return None
    if device == "cuda" and not torch.cuda.is_available():
        return None
    from .torch_bert import TorchBert

    model = TorchBert(proto, config).eval().to(device)
    tensors = [torch.from_numpy(value).to(device) for value in inputs.values()]

    def call() -> list[np.ndarray]:
        with torch.inference_mode():
            result = model(*tensors)
            if device == "cuda":
                torch.cuda.synchronize()
                return [result]
            return [result.numpy()]

    return call
