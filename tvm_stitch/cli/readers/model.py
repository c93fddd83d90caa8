# SPDX-License-Identifier: Apache-2.0
"""Read a model from a file, ONNX or torch.export, as a Relax module with its inputs and outputs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...front.files import Kind, kind_of_file
from ..errors import UsageError, reading
from ..heavy import import_or_say
from ..options import make_config, parse_config, parse_shapes, parse_target
from ..progress import Progress
from .imported import Model

if TYPE_CHECKING:
    from ...importers.torch.importing.state import State


@dataclasses.dataclass(frozen=True)
class Job:
    """The input of commands that compile."""

    model: Model
    target: Any
    config: Any


def check_options(args: argparse.Namespace) -> None:
    """Raise a UsageError for errors that can be detected before anything is imported."""
    if not args.model.is_file():
        raise UsageError(
            f"no file {args.model}; give the path of an ONNX model, or of a .pt2 file of torch.export"
        )
    if args.products != "float32" and args.precision == "float32":
        raise UsageError(
            f"--products {args.products} is of a model in half precision; add --precision float16"
        )
    parse_shapes(args.shape)
    make_config(parse_config(args.config))


def read_job(
    args: argparse.Namespace, progress: Progress, names: bool = False, state: State = "constants"
) -> Job:
    """Return the model, target and options of a command line.

    Args:
        args: the parsed arguments of :func:`options.add_model_options`.
        progress: reports steps that take a while.
        names: whether operators keep the model's own names, for reports.
        state: the kind of buffers that a program of PyTorch changes.

    Raises:
        UsageError: for an invalid model, target or option.
        Failure: if a package is missing that such a model needs, or TVM lacks some of its operators.
    """
    path: Path = args.model
    shapes = parse_shapes(args.shape)
    flags = {name: True for name in ("strict", "cuda_graph") if getattr(args, name)}
    config = make_config(parse_config(args.config) | flags)
    target = parse_target(args.target)
    with progress(f"importing {path}"):
        model = _reader(path, state)(path, shapes, names)
        if args.precision != "float32":
            model = _in_half(model, args.precision, args.products)
    return Job(model, target, config)


def _reader(path: Path, state: State) -> Callable[[Path, dict[str, tuple[int, ...]], bool], Model]:
    """Return the reader for a file."""
    with reading(path):
        kind = kind_of_file(path)
    if kind is Kind.LIBRARY:
        raise UsageError(f"{path} is a library; a compiled model is run by: tvm-stitch run {path}")
    if kind is Kind.TORCH:
        import_or_say("torch", f"{path.name} needs PyTorch: pip install torch")
        from .torch import read_torch

        return partial(read_torch, state=state)
    import_or_say("onnx", "ONNX models need: pip install onnx")
    from .onnx import read_onnx

    return read_onnx


def _in_half(model: Model, dtype: str, products: str) -> Model:
    from ...execution.tensors import specs_of_outputs
    from ...relax.precision.half import in_half_precision

    mod = in_half_precision(model.mod, dtype, products)
    inputs = tuple(dataclasses.replace(s, dtype=dtype) if s.dtype == "float32" else s for s in model.inputs)
    outputs = specs_of_outputs(mod, [spec.name for spec in model.outputs])
    signature = dataclasses.replace(model.signature, inputs=inputs, outputs=outputs)
    return dataclasses.replace(model, mod=mod, signature=signature)
