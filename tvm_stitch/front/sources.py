# SPDX-License-Identifier: Apache-2.0
"""Models as people have them: modules of PyTorch, exported programs, ONNX models and files become Relax modules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..execution.tensors import specs_of_inputs, specs_of_outputs
from ..relax.rewriting.checked_module import checked_module
from .files import Kind, import_onnx, kind_of_file, read_onnx_file
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
        ValueError: if a file is no model, if PyTorch does not export a module, or for an unknown ``dtype``.
        Unsupported: if an operator is not imported. ONNX models raise ``UnsupportedModel``.
    """
    if isinstance(model, (str, Path)):
        return _of_file(Path(model), dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from .programs import dimension_names, exported

        program = exported(model, example_inputs, dynamic_shapes, dtype)
        return _of_program(program, names=dimension_names(model, program, example_inputs, dynamic_shapes))
    export = getattr(torch, "export", None)
    if export is not None and isinstance(model, export.ExportedProgram):
        return _of_program(model, dtype)
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(model, onnx.ModelProto):
        from ..importers.onnx.check import check_model
        from ..importers.onnx.shapes import with_symbolic_dims

        _check_no_dtype(dtype, Kind.ONNX.value)
        proto = with_symbolic_dims(model)
        check_model(proto)
        return _of_onnx(proto)
    mod = checked_module(model)
    _check_no_dtype(dtype, "a Relax IRModule")
    return Source(mod, _plain_signature(mod))


def _of_file(path: Path, dtype: Any) -> Source:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    kind = kind_of_file(path)
    if kind is Kind.LIBRARY:
        raise ValueError(f"{path} is {kind.value}; tvm_stitch.load takes the folder that has it")
    if kind is Kind.ONNX:
        _check_no_dtype(dtype, kind.value)
        return _of_onnx(read_onnx_file(path))
    from ..importers.torch.archive import load_program
    from ..importers.torch.operators.recurrent import register_operators

    register_operators()
    return _of_program(load_program(path), dtype)


def _of_onnx(proto: Any) -> Source:
    from ..importers.onnx.compare import output_specs

    model = import_onnx(proto, names=True)
    return Source(model.mod, Signature(specs_of_inputs(model.mod), output_specs(model)))


def _of_program(program: Any, dtype: Any = None, names: Mapping[str, str] | None = None) -> Source:
    from ..importers.torch import from_exported_program
    from .programs import converted, signature_of, with_dimension_names

    if dtype is not None:
        program = converted(program, dtype)
    mod = with_dimension_names(from_exported_program(program, state="in_place"), names or {})
    return Source(mod, signature_of(program, mod, "in_place").renamed(names or {}))


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
