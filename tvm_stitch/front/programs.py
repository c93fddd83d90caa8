# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch as exported programs, in another floating type if asked, and the signatures of such programs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import tvm
from torch.utils import _pytree

from ..execution.tensors import specs_of_inputs, specs_of_outputs
from ..importers.torch import (
    conditions_of,
    constant_inputs,
    constant_results,
    initial_state,
    integer_results,
    tensor_inputs,
    tensor_results,
)
from ..importers.torch.importing.state import State
from ..support.failures import error_text, reraise_fatal
from .signature import Signature, filled_in

DTYPES = ("float16", "bfloat16", "float32")
"""Types that a model's floating parameters and inputs may be converted to."""


def exported(
    module: torch.nn.Module, example_inputs: Any, dynamic_shapes: Any = None, dtype: Any = None
) -> torch.export.ExportedProgram:
    """Return a module as an exported program. The module stays as it is.

    Args:
        module: the module.
        example_inputs: a tensor, a tuple of positional arguments, or a mapping of arguments by name.
        dynamic_shapes: the symbolic dimensions, as ``torch.export.export`` takes them.
        dtype: one of ``DTYPES`` for floating parameters, buffers and inputs, or None to leave them.

    Raises:
        TypeError: if there are no example inputs.
        ValueError: if PyTorch does not export the module, or for another type.
    """
    if example_inputs is None:
        raise TypeError(
            "a module of PyTorch needs example inputs: compile(module, example_inputs=(torch.randn(1, 3),))"
        )
    by_name = isinstance(example_inputs, Mapping)
    args = () if by_name else example_inputs
    if isinstance(args, torch.Tensor):
        args = (args,)
    named = dict(example_inputs) if by_name else {}
    return _exported(module, tuple(args), named, dynamic_shapes, dtype)


def converted(program: torch.export.ExportedProgram, dtype: Any) -> torch.export.ExportedProgram:
    """Return a program with floating parameters, buffers and inputs of another type.

    Casts to the type that a value has already, as of ``x.to(y.dtype)``, follow the new type. Other operators that name
    a type keep it. A module, which still knows where its types come from, is converted more precisely.

    Args:
        program: the program.
        dtype: one of ``DTYPES``.

    Raises:
        ValueError: for another type, or if PyTorch does not export the program in it.
    """
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    by_name = {node.name: node.meta["val"] for node in inputs}
    values = all_arguments(program, [by_name[name] for name in tensor_inputs(program)])
    dims: dict[str, Any] = {}
    shapes = [_dims(value, program.range_constraints, dims) for value in values]
    examples = [_example(value) for value in values]
    takes = program.call_spec.in_spec
    args, named = _pytree.tree_unflatten(examples, takes)
    dynamic = _pytree.tree_unflatten(shapes, takes) if dims else None
    module = program.module(check_guards=False)
    _drop_types(module)
    if dynamic is not None:
        dynamic = {**dict(zip(_positional(module), dynamic[0])), **dynamic[1]}
    try:
        return _exported(module, args, named, dynamic, dtype)
    except ValueError as error:
        if error.__cause__ is None:  # of another type than DTYPES
            raise
        raise ValueError(f"{error}; give the module itself, or export it in this type") from error.__cause__


def dimension_names(
    module: torch.nn.Module, program: torch.export.ExportedProgram, example_inputs: Any, dynamic_shapes: Any
) -> dict[str, str]:
    """Return the names that ``torch.export.Dim`` gives symbols, by PyTorch's own names of them, such as ``s45``.

    Args:
        module: the module.
        program: its exported program.
        example_inputs: the inputs that it was exported with.
        dynamic_shapes: the symbolic dimensions that it was exported with.
    """
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    taken = {str(symbol) for symbol in program.range_constraints}
    names: dict[str, str] = {}
    given = [example_inputs] if isinstance(example_inputs, torch.Tensor) else example_inputs
    leaves = _pytree.tree_leaves(((), given) if isinstance(given, Mapping) else (tuple(given), {}))
    inputs = dict(zip(map(id, leaves), program.graph_signature.user_inputs))
    if isinstance(dynamic_shapes, Mapping) and not isinstance(given, Mapping):
        given = dict(zip(_positional(module), given))
    for tensor, dims in _with_dims(given, dynamic_shapes):
        value = by_name.get(inputs.get(id(tensor)))
        for axis, dim in dims:
            size, name = _symbol_of(value, axis), _name_of(dim)
            if size in taken and size not in names and name and name not in taken:
                names[size] = name
    return names


def with_dimension_names(mod: tvm.IRModule, names: Mapping[str, str]) -> tvm.IRModule:
    """Return a module whose function ``main`` has other names of symbols."""
    symbols = {str(var.name): var for var in tvm.relax.analysis.defined_symbolic_vars(mod["main"])}
    new = {symbols[old]: tvm.tirx.Var(name, "int64") for old, name in names.items() if old in symbols}
    if not new:
        return mod
    renamed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    renamed[mod.get_global_var("main")] = mod["main"].bind_symbolic_vars(new)
    return renamed


def _with_dims(values: Any, dims: Any) -> Iterator[tuple[torch.Tensor, list[tuple[int, Any]]]]:
    """Yield tensors of nested values, with the axes that nested symbolic dimensions name."""
    if isinstance(values, torch.Tensor):
        if isinstance(dims, Mapping):
            yield values, [(axis, dim) for axis, dim in dims.items() if isinstance(axis, int)]
        elif isinstance(dims, Sequence):
            yield values, list(enumerate(dims))
    elif isinstance(values, Mapping) and isinstance(dims, Mapping):
        for key in values.keys() & dims.keys():
            yield from _with_dims(values[key], dims[key])
    elif isinstance(values, Sequence) and isinstance(dims, Sequence):
        for value, each in zip(values, dims):
            yield from _with_dims(value, each)


def _symbol_of(value: Any, axis: int) -> str:
    """Return PyTorch's name of the one symbol in an extent of a tensor, or nothing."""
    size = value.shape[axis] if isinstance(value, torch.Tensor) else None
    symbols = list(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else []
    return str(symbols[0]) if len(symbols) == 1 else ""


def _name_of(dim: Any) -> str:
    """Return the name of a symbolic dimension, of ``n`` for ``2 * n``, or nothing for a size or a hint."""
    name = getattr(getattr(dim, "root", dim), "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else ""


def all_arguments(program: torch.export.ExportedProgram, tensors: Sequence[Any]) -> list[Any]:
    """Return all arguments of a program, as PyTorch flattens them: the given ones of tensors, and its constants."""
    return filled_in(tensors, {at: value for at, (_, value) in constant_inputs(program).items()})


def signature_of(program: torch.export.ExportedProgram, mod: tvm.IRModule, state: State) -> Signature:
    """Return the signature of a program's Relax module.

    Args:
        program: the program.
        mod: its module.
        state: the kind of buffers that it changes, as it was imported.
    """
    changed = changed_names(mod)
    inputs = specs_of_inputs(mod)
    values = {} if state == "constants" else initial_state(program, mod)
    outputs = specs_of_outputs(mod, [*tensor_results(program), *changed])
    spec = program.call_spec
    constants = constant_inputs(program), constant_results(program)
    integers = integer_results(program)
    return Signature(
        inputs,
        outputs,
        values,
        changed,
        spec.in_spec,
        spec.out_spec,
        *constants,
        integers,
        of_torch=True,
        conditions=conditions_of(program),
    )


def changed_names(mod: tvm.IRModule) -> tuple[str, ...]:
    """Return the names of the buffers and inputs that a program changes. They are its last results."""
    return tuple(str(name) for name in (mod["main"].attrs or {}).get("torch_state", ()))


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any], dynamic_shapes: Any, dtype: Any
) -> torch.export.ExportedProgram:
    said = ""
    if dtype is not None:
        to = _floating(dtype)
        module = copy.deepcopy(module).to(to)
        args, named = _pytree.tree_map_only(
            torch.Tensor, lambda x: x.to(to) if x.is_floating_point() else x, (args, named)
        )
        said = f" in {str(to).removeprefix('torch.')}"
    try:
        return torch.export.export(module, args, named, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:  # of many kinds
        reraise_fatal(error)
        raise ValueError(f"torch.export does not export the module{said}: {error_text(error)}") from error


def _drop_types(module: torch.fx.GraphModule) -> None:
    """Drop the nodes of a program's graph that only hold its former types: assertions, and casts to them."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
        elif node.target in (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default):
            value, before = node.meta.get("val"), node.args[0].meta.get("val")
            if value is not None and before is not None and value.dtype == before.dtype:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
    module.recompile()


def _floating(dtype: Any) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, DTYPES))}, not {dtype!r}")
    found: torch.dtype = getattr(torch, name)
    return found


def _example(value: Any) -> Any:
    """Return an input for an export, which reads its shape and type alone."""
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [int(size.node.hint) if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
    return torch.zeros(sizes, dtype=value.dtype, device=value.device)


def _dims(value: Any, ranges: Mapping[Any, Any], dims: dict[str, Any]) -> dict[int, Any] | None:
    """Return the symbolic dimensions of an input, and add new ones to ``dims``."""
    if not isinstance(value, torch.Tensor):
        return None
    found: dict[int, Any] = {}
    for axis, size in enumerate(value.shape):
        if not isinstance(size, torch.SymInt):
            continue
        text = str(size)
        if text not in dims:
            bounds = ranges.get(size.node.expr)
            dims[text] = _dim(text, bounds) if text.isidentifier() else torch.export.Dim.AUTO
        found[axis] = dims[text]
    return found


def _dim(name: str, bounds: Any) -> Any:
    low, high = (getattr(bounds, "lower", 0), getattr(bounds, "upper", None)) if bounds else (0, None)
    most = int(high) if high is not None and str(high).isdigit() else None
    return torch.export.Dim(name, min=max(int(low), 0), max=most)


def _positional(module: torch.nn.Module) -> Sequence[str]:
    import inspect

    return list(inspect.signature(module.forward).parameters)
