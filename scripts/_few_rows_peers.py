# SPDX-License-Identifier: Apache-2.0
"""Products of few rows in other libraries: ggml (that of llama.cpp), ONNX Runtime and PyTorch.

Each peer multiplies with several weights in turn, and has its own form of integers with scales. A peer that is not
installed, or that has no such weight, is None.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
from models.decoder_step import GROUP
from models.narrow_weights import Weight

Peer = Callable[[], object]

_GGML = {"float32": 0, "float16": 1, "bfloat16": 30, 8: 8, 4: 2}
"""ggml's types: of floats, and of groups of 32 integers of so many bits with a float16 scale (Q8_0 and Q4_0)."""


def ggml(kind: Weight, x: np.ndarray, weights: Sequence[np.ndarray], threads: int) -> Peer | None:
    """Return a call of ggml that multiplies with all weights. It rounds ``x`` to 8 bits if weights are integers.

    Args:
        kind: the kind of weight.
        x: the rows, in float32.
        weights: the weights, in float32.
        threads: the number of threads.
    """
    if importlib.util.find_spec("libggml") is None or kind.by_channel or kind.zeros:
        return None
    library = _Ggml()
    dtype = _GGML[kind.bits or kind.dtype]
    count, (columns, inner) = len(weights), weights[0].shape
    room = (
        sum(each.nbytes for each in weights)
        + 4 * x.nbytes
        + count * (4 * len(x) * columns + 4096)
        + (64 << 20)
    )
    context = library.ggml_init(_Options(room, None, False))
    rows = library.ggml_new_tensor_2d(context, 0, inner, len(x))
    ctypes.memmove(library.ggml_get_data(rows), x.ctypes.data, x.nbytes)
    graph = library.ggml_new_graph(context)
    for weight in weights:
        tensor = library.ggml_new_tensor_2d(context, dtype, inner, columns)
        to = library.ggml_get_data(tensor)
        if kind.bits or dtype:
            library.ggml_quantize_chunk(dtype, weight.ctypes.data, to, 0, columns, inner, None)
        else:
            ctypes.memmove(to, weight.ctypes.data, weight.nbytes)
        library.ggml_build_forward_expand(graph, library.ggml_mul_mat(context, tensor, rows))
    return lambda: library.ggml_graph_compute_with_ctx(context, graph, threads)


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class _Ggml:
    """ggml's functions, with the types of their arguments."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("libggml")
        assert spec is not None and spec.origin is not None
        folder = next(Path(spec.origin).parent.glob("lib*"))
        libraries = [
            ctypes.CDLL(str(folder / f"libggml-{name}.so"), mode=ctypes.RTLD_GLOBAL)
            for name in ("base", "cpu")
        ]
        pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "ggml_init": (pointer, [_Options]),
            "ggml_new_tensor_2d": (pointer, [pointer, number, long, long]),
            "ggml_get_data": (pointer, [pointer]),
            "ggml_new_graph": (pointer, [pointer]),
            "ggml_mul_mat": (pointer, [pointer] * 3),
            "ggml_build_forward_expand": (None, [pointer] * 2),
            "ggml_quantize_chunk": (ctypes.c_size_t, [number, pointer, pointer, long, long, long, pointer]),
            "ggml_graph_compute_with_ctx": (number, [pointer, pointer, number]),
        }
        for name, (result, arguments) in signatures.items():
            function = next(getattr(each, name) for each in libraries if hasattr(each, name))
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"libggml has no {name}")


def onnxruntime(kind: Weight, x: np.ndarray, weights: Sequence[np.ndarray], threads: int) -> Peer | None:
    """Return a call of ONNX Runtime that multiplies with all weights: ``MatMul``, or ``MatMulNBits`` in float32.

    Args:
        kind: the kind of weight.
        x: the rows, in float32.
        weights: the weights, in float32.
        threads: the number of threads.
    """
    if importlib.util.find_spec("onnxruntime") is None or kind.by_channel or kind.zeros:
        return None
    if not kind.bits and kind.dtype != "float32":
        return None
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    columns, inner = weights[0].shape
    nodes, constants, outputs = [], [], []
    for i, weight in enumerate(weights):
        names = [f"w{i}", f"s{i}"] if kind.bits else [f"w{i}"]
        if kind.bits:
            # The values do not matter for the time: any bytes and scales.
            packed = weight.view("uint8")[:, : inner * kind.bits // 8].copy()
            scales = np.abs(weight[:, ::GROUP]).copy()
            stored = [packed.reshape(columns, inner // GROUP, -1), scales.reshape(-1)]
            attributes = {"K": inner, "N": columns, "bits": kind.bits, "block_size": GROUP}
            domain, operator = "com.microsoft", "MatMulNBits"
        else:
            stored, attributes, domain, operator = [weight.T.copy()], {}, "", "MatMul"
        constants += [numpy_helper.from_array(each, name) for each, name in zip(stored, names, strict=True)]
        nodes.append(helper.make_node(operator, ["x", *names], [f"y{i}"], domain=domain, **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [len(x), columns]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))]
    graph = helper.make_graph(nodes, "products", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": x})


def pytorch(kind: Weight, x: np.ndarray, weights: Sequence[np.ndarray], threads: int) -> Peer | None:
    """Return a call of PyTorch that multiplies with all weights, of floats.

    Args:
        kind: the kind of weight.
        x: the rows, in float32.
        weights: the weights, in float32.
        threads: the number of threads.
    """
    if importlib.util.find_spec("torch") is None or kind.bits:
        return None
    import torch

    dtype = getattr(torch, kind.dtype)
    rows, tensors = torch.from_numpy(x).to(dtype), [torch.from_numpy(each).to(dtype) for each in weights]

    def run() -> None:
        torch.set_num_threads(threads)
        with torch.no_grad():
            for tensor in tensors:
                torch.nn.functional.linear(rows, tensor)

    return run


PEERS = {"ggml": ggml, "onnxruntime": onnxruntime, "pytorch": pytorch}
"""The peers by name."""
