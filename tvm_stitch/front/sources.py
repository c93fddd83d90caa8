# SPDX-License-Identifier: Apache-2.0
"""Models as people have them: modules of PyTorch, exported programs, ONNX models and files become Relax modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from ..relax.rewriting.checked_module import checked_module
from ..support.failures import error_text, reraise_fatal


@dataclass(frozen=True, eq=False)
class Source:
    """A model as a Relax module.

    Attributes:
        mod: the module, with the function ``main``.
        state: values of buffers that the model changes, by name. They are the last inputs of ``main``.
        changed: names of all results behind the model's own: the changed buffers, and inputs that the model changes.
        placed: gives the tensors of positional arguments and of those by name. Keys are numbers of inputs of ``main``,
            or their names. None if each argument is one tensor.
        structured: turns the model's own results into what the model returns, or None for a tuple.
        of_torch: whether results are PyTorch's tensors by default.
    """

    mod: tvm.IRModule
    state: Mapping[str, Any]
    changed: tuple[str, ...] = ()
    placed: Callable[[Sequence[Any], Mapping[str, Any]], dict[int | str, Any]] | None = None
    structured: Callable[[list[Any]], Any] | None = None
    of_torch: bool = False


def source_of(model: Any, example_inputs: Any = None, dynamic_shapes: Any = None) -> Source:
    """Return a model as a Relax module.

    Args:
        model: an IRModule, a module or exported program of PyTorch, an ONNX model, or the path of a .onnx or .pt2 file.
        example_inputs: for a module of PyTorch, a tuple of positional arguments, or a mapping of arguments by name.
        dynamic_shapes: for a module of PyTorch, the symbolic dimensions, as ``torch.export.export`` takes them.

    Raises:
        TypeError: if the model is of another kind, or if a module of PyTorch has no example inputs.
        ValueError: if a file is not of a known kind, or if PyTorch does not export a module.
        Unsupported: if an operator is not imported. ONNX models raise ``UnsupportedModel``.
    """
    if isinstance(model, tvm.IRModule):
        return Source(model, {})
    if isinstance(model, (str, Path)):
        return _of_file(Path(model))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _of_program(_exported(model, example_inputs, dynamic_shapes))
    export = getattr(torch, "export", None)
    if export is not None and isinstance(model, export.ExportedProgram):
        return _of_program(model)
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(model, onnx.ModelProto):
        return _of_onnx(model)
    return Source(checked_module(model), {})


def _of_file(path: Path) -> Source:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".onnx":
        import onnx

        return _of_onnx(onnx.load(str(path)))
    if path.suffix == ".pt2":
        from ..importers.torch.archive import load_program
        from ..importers.torch.operators.recurrent import register_operators

        register_operators()
        return _of_program(load_program(path))
    raise ValueError(f"{path} is neither a .onnx nor a .pt2 file")


def _of_onnx(proto: Any) -> Source:
    from ..importers.onnx.check import check_model
    from ..importers.onnx.load import from_onnx
    from ..importers.onnx.shapes import with_symbolic_dims

    proto = with_symbolic_dims(proto)
    check_model(proto)
    return Source(from_onnx(proto, names=True), {})


def _exported(module: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    """Return a module of PyTorch as an exported program."""
    import torch

    if example_inputs is None:
        raise TypeError(
            "a module of PyTorch needs example inputs: compile(module, example_inputs=(torch.randn(1, 3),))"
        )
    by_name = isinstance(example_inputs, Mapping)
    args = () if by_name else example_inputs
    if isinstance(args, torch.Tensor):
        args = (args,)
    options = {"kwargs": dict(example_inputs)} if by_name else {}
    try:
        return torch.export.export(
            module, tuple(args), **options, dynamic_shapes=dynamic_shapes, strict=False
        )
    except Exception as error:  # of many kinds
        reraise_fatal(error)
        raise ValueError(f"torch.export does not export the module: {error_text(error)}") from error


def _of_program(program: Any) -> Source:
    from torch.utils import _pytree

    from ..importers.torch import from_exported_program, initial_state

    mod = from_exported_program(program, state="in_place")
    attrs = mod["main"].attrs or {}
    changed = tuple(str(name) for name in attrs.get("torch_state", ()))
    takes, returns = program.call_spec.in_spec, program.call_spec.out_spec
    positional, by_name = takes.children()
    first = dict(zip(by_name.context, _starts(positional.num_leaves, by_name.children())))

    def placed(args: Sequence[Any], named: Mapping[str, Any]) -> dict[int | str, Any]:
        found: dict[int | str, Any] = dict(enumerate(_pytree.tree_leaves(tuple(args))))
        for name, value in named.items():
            if name in first:
                found |= {first[name] + i: leaf for i, leaf in enumerate(_pytree.tree_leaves(value))}
            else:
                found[name] = value
        return found

    def structured(results: list[Any]) -> Any:
        return _pytree.tree_unflatten(results, returns)

    return Source(mod, initial_state(program, mod), changed, placed, structured, of_torch=True)


def _starts(first: int, specs: Sequence[Any]) -> list[int]:
    """Return the numbers of the first tensors of arguments, one behind the other."""
    found = []
    for spec in specs:
        found.append(first)
        first += spec.num_leaves
    return found
