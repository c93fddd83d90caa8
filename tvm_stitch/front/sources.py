# SPDX-License-Identifier: Apache-2.0
"""Models as people have them: modules of PyTorch, exported programs, ONNX models and files become Relax modules."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..execution.tensors import specs_of_inputs, specs_of_outputs
from ..relax.rewriting.checked_module import checked_module
from .signature import Signature


@dataclass(frozen=True, eq=False)
class Source:
    """A model as a Relax module.

    Attributes:
        mod: the module.
        signature: how its function ``main`` is called, or None if it has none.
    """

    mod: tvm.IRModule
    signature: Signature | None


def source_of(
    model: Any, example_inputs: Any = None, dynamic_shapes: Any = None, dtype: Any = None
) -> Source:
    """Return a model as a Relax module.

    Args:
        model: an IRModule, a module or exported program of PyTorch, an ONNX model, or the path of a .onnx or .pt2 file.
        example_inputs: for a module of PyTorch, a tuple of positional arguments, or a mapping of arguments by name.
        dynamic_shapes: for a module of PyTorch, the symbolic dimensions, as ``torch.export.export`` takes them.
        dtype: for a module or program of PyTorch, the type of its floating parameters and inputs: ``"float16"``,
            ``"bfloat16"`` or ``"float32"``. None leaves them as they are.

    Raises:
        TypeError: if the model is of another kind, or if a module of PyTorch has no example inputs. Also if ``dtype``
            is given for a model that is not PyTorch's.
        ValueError: if a file is not of a known kind, if PyTorch does not export a module, or for an unknown ``dtype``.
        Unsupported: if an operator is not imported. ONNX models raise ``UnsupportedModel``.
    """
    if isinstance(model, (str, Path)):
        return _of_file(Path(model), dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from .programs import exported

        return _of_program(exported(model, example_inputs, dynamic_shapes, dtype))
    export = getattr(torch, "export", None)
    if export is not None and isinstance(model, export.ExportedProgram):
        return _of_program(model, dtype)
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(model, onnx.ModelProto):
        return _of_onnx(model, dtype)
    mod = checked_module(model)
    _check_no_dtype(dtype, "a Relax IRModule")
    return Source(mod, _plain_signature(mod))


def _of_file(path: Path, dtype: Any) -> Source:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".onnx":
        import onnx

        return _of_onnx(onnx.load(str(path)), dtype)
    if path.suffix == ".pt2":
        from ..importers.torch.archive import load_program
        from ..importers.torch.operators.recurrent import register_operators

        register_operators()
        return _of_program(load_program(path), dtype)
    raise ValueError(f"{path} is neither a .onnx nor a .pt2 file")


def _of_onnx(proto: Any, dtype: Any) -> Source:
    from ..importers.onnx.check import check_model
    from ..importers.onnx.load import from_onnx
    from ..importers.onnx.shapes import with_symbolic_dims

    _check_no_dtype(dtype, "an ONNX model")
    proto = with_symbolic_dims(proto)
    check_model(proto)
    mod = from_onnx(proto, names=True)
    outputs = specs_of_outputs(mod, [value.name for value in proto.graph.output])
    return Source(mod, Signature(specs_of_inputs(mod), outputs))


def _of_program(program: Any, dtype: Any = None) -> Source:
    from ..importers.torch import from_exported_program
    from .programs import converted, signature_of

    if dtype is not None:
        program = converted(program, dtype)
    mod = from_exported_program(program, state="in_place")
    return Source(mod, signature_of(program, mod, "in_place"))


def _check_no_dtype(dtype: Any, what: str) -> None:
    if dtype is not None:
        raise TypeError(
            f"dtype={dtype!r} is for models of PyTorch, not for {what}; in_half_precision of "
            "tvm_stitch.relax.precision.half converts a Relax module"
        )


def _plain_signature(mod: tvm.IRModule) -> Signature | None:
    """Return the signature of a module's function ``main``, whose results have numbers for names."""
    if not any(g.name_hint == "main" and isinstance(f, relax.Function) for g, f in mod.functions_items()):
        return None
    returned = mod["main"].ret_ty
    count = len(returned.fields) if isinstance(returned, relax.TupleType) else 1
    return Signature(specs_of_inputs(mod), specs_of_outputs(mod, [f"output{i}" for i in range(count)]))
