# SPDX-License-Identifier: Apache-2.0
"""The job of a contender's process: plain data that travels between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """A model, and how to build and run it.

    Args:
        model: a name of the registry, or the path of an ONNX file.
        size: "full" or "small".
        batch: the batch size. It also replaces an ONNX file's symbolic first dimension.
        target: "llvm", "native" or "cuda".
        cuda_graph: whether the TVM contenders replay a CUDA graph.
        decompose: whether batch norms are decomposed first (the TVM contenders).
        products: result type of products and convolutions in a half model: "float32" or "half" (the TVM contenders).
        config: options of StitchConfig.
        shapes: of an ONNX file's inputs, to fix symbolic dimensions.
        folder: for outputs and other files of a contender.
        draws: number of draws of the inputs for the mean error.
    """

    model: str
    size: str
    batch: int
    dtype: str
    target: str
    threads: int
    folder: str
    cuda_graph: bool = False
    decompose: bool = False
    products: str = "float32"
    config: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    draws: int = 1

    @property
    def on_gpu(self) -> bool:
        """True if the contenders run on a GPU."""
        return self.target == "cuda"

    @property
    def is_onnx(self) -> bool:
        """True if the model is a file."""
        return self.model.endswith(".onnx")

    def outputs(self, contender: str) -> Path:
        """Return the file of a contender's outputs."""
        return Path(self.folder) / f"{contender}.npz"


class Unavailable(Exception):
    """A contender cannot run here: the message says why."""
