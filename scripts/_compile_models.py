# SPDX-License-Identifier: Apache-2.0
"""Models whose compile time counts, as an importer gets them: programs of ``torch.export`` and ONNX models.

Names are ``PATH:NAME@SIZE`` with the path ``torch`` or ``onnx`` and an architecture of ``scripts/architectures.py``.
``PATH:timm:NAME@SIDE`` is any model of timm. Names of :data:`OPERATORS` are single operators of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

PATHS = ("torch:", "onnx:")


def given(name: str) -> Any:
    """Return an ONNX model or an exported program.

    Raises:
        KeyError: if there is no such architecture.
    """
    if name in OPERATORS:
        return OPERATORS[name]()
    import torch

    path, _, architecture = name.partition(":")
    kind, _, size = architecture.partition("@")
    model, inputs = _module(kind, int(size) if size else None)
    with torch.no_grad():
        program = torch.export.export(model.eval().requires_grad_(False), inputs)
        if path == "torch":
            return program
        exported = torch.onnx.export(program, verbose=False)
        assert exported is not None
        return exported.model_proto


def _module(kind: str, size: int | None) -> tuple[Any, tuple[Any, ...]]:
    """Return a module with random weights, and its inputs."""
    import torch
    from models.spec import _import_torchvision

    torch.manual_seed(0)
    _import_torchvision()
    if kind.startswith("timm:"):
        import timm

        side = size or 224
        return timm.create_model(kind.removeprefix("timm:")), (torch.randn(1, 3, side, side),)
    from families.registry import ARCHITECTURES

    known = ARCHITECTURES[kind]
    return known.build(), known.inputs(size or known.sizes[0])


def _model(node: Any, shapes: Mapping[str, Sequence[int]], output: Sequence[int], opset: int) -> Any:
    from onnx import TensorProto, helper

    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if name == "image" else TensorProto.FLOAT, list(shape)
        )
        for name, shape in shapes.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))]
    graph = helper.make_graph([node], "operator", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _regions() -> Any:
    """Return ONNX's RoiAlign, as detectors of torchvision have it: 7 times 7 means of four samples each."""
    from onnx import helper

    node = helper.make_node(
        "RoiAlign",
        ["x", "boxes", "image"],
        ["y"],
        output_height=7,
        output_width=7,
        sampling_ratio=2,
        spatial_scale=0.25,
    )
    shapes = {"x": [2, 64, 50, 50], "boxes": [100, 4], "image": [100]}
    return _model(node, shapes, [100, 64, 7, 7], 16)


def _grid(mode: str, padding: str, channels: int, sizes: Sequence[int]) -> Callable[[], Any]:
    def make() -> Any:
        from onnx import helper

        node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding)
        shapes = {"x": [1, channels, *sizes], "grid": [1, *sizes, len(sizes)]}
        return _model(node, shapes, [1, channels, *sizes], 20)

    return make


OPERATORS: dict[str, Callable[[], Any]] = {
    "roi-align": _regions,
    "grid-cubic": _grid("cubic", "zeros", 16, (64, 64)),
    "grid-cubic-reflection": _grid("cubic", "reflection", 16, (64, 64)),
    "grid-linear": _grid("linear", "zeros", 16, (64, 64)),
    "grid-3d": _grid("linear", "zeros", 4, (16, 16, 16)),
    "grid-3d-reflection": _grid("linear", "reflection", 4, (16, 16, 16)),
}
"""Single operators of ONNX by their names."""
