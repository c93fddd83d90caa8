# SPDX-License-Identifier: Apache-2.0
"""Load a job's model in the process of a contender: a PyTorch module or an ONNX model, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import registry
from .job import Job, Unavailable
from .spec import Made, make


@dataclass
class Loaded:
    """A model and its inputs, the same in every process."""

    made: Made | None = None
    onnx: Any = None
    onnx_inputs: dict[str, np.ndarray] | None = None

    @staticmethod
    def of(job: Job) -> Loaded:
        """Build or read the model of a job."""
        if not job.is_onnx:
            found = registry.find(job.model)
            assert found is not None  # the command line knows it
            return Loaded(make(found, job.size, job.batch, job.dtype))
        import onnx

        from tvm_stitch.execution import tensors
        from tvm_stitch.importers.onnx import compare

        proto = onnx.load(job.model)
        model = compare.load_onnx(proto, _fixed(compare.input_specs(proto), job))
        return Loaded(None, model, tensors.make_inputs(model.inputs))

    def torch(self) -> Made:
        """Return the PyTorch model. An ONNX file has none."""
        assert self.made is not None
        return self.made

    def arrays(self, dtype: str) -> list[np.ndarray]:
        """Return the inputs for compiled code, floating-point ones in ``dtype``."""
        import ml_dtypes

        if self.onnx_inputs is not None:
            return list(self.onnx_inputs.values())
        half = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        found = [x.numpy() for x in self.torch().inputs]
        return [x.astype(half) if x.dtype == np.float32 else x for x in found]


def _fixed(specs: Any, job: Job) -> dict[str, tuple[int, ...]]:
    """Return the inputs' shapes: the job's, or its batch instead of a symbolic first dimension."""
    known = {spec.name: spec for spec in specs}
    fixed = {}
    for name, shape in job.shapes.items():
        fixed[name] = tuple(shape)
    for name, spec in known.items():
        if name not in fixed and spec.shape and isinstance(spec.shape[0], str):
            fixed[name] = (job.batch, *spec.shape[1:])
    for name, shape in fixed.items():
        if not all(isinstance(d, int) for d in shape):
            raise Unavailable(f"the input {known[name]} has symbolic dimensions: give --shape {name}=...")
    return fixed


def load_torch(job: Job) -> Made:
    """Load a job's PyTorch model.

    Raises:
        Unavailable: for an ONNX file.
    """
    if job.is_onnx:
        raise Unavailable("an ONNX file is no PyTorch model")
    return Loaded.of(job).torch()


def relax_module(job: Job, loaded: Loaded) -> Any:
    """Import a job's model into Relax, with the job's options."""
    from tvm import relax

    if loaded.onnx is not None:
        mod = loaded.onnx.mod
    else:
        from .importing import import_torch

        mod = import_torch(loaded.torch(), job.dtype, job.products)
    return relax.transform.DecomposeOpsForInference()(mod) if job.decompose else mod


def file_name(model: str) -> str:
    """Return a model's name in tables."""
    return Path(model).name if model.endswith(".onnx") else model
