# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of an exported program that are no tensors: numbers, flags, words and None.

``torch.export`` computes with the value that an argument had, and keeps that value in the program's signature. The
imported function takes and returns tensors only. A caller that knows the constants checks and fills in the others.
Integers that symbolic dimensions decide are returned as tensors.
"""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .unsupported import Unsupported

RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


def constant_inputs(program: Any) -> dict[int, tuple[str, Any]]:
    """Return the name and the value of each argument that is a constant, by its number among all arguments.

    Args:
        program: a ``torch.export.ExportedProgram``. Arguments are numbered as PyTorch flattens them.

    Raises:
        Unsupported: if an argument is neither a tensor nor a constant.
    """
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    for spec in specs:
        if not isinstance(spec.arg, (TensorArgument, ConstantArgument)):
            reason = "it is neither a tensor nor a constant; export a module that takes a tensor in its place"
            raise Unsupported([(f"the program's input {spec.arg.name}", reason)])
    return {
        at: (str(spec.arg.name), spec.arg.value)
        for at, spec in enumerate(specs)
        if isinstance(spec.arg, ConstantArgument)
    }


def constant_results(program: Any) -> dict[int, Any]:
    """Return the value of each result that is a constant, by its number among all results.

    Args:
        program: a ``torch.export.ExportedProgram``. Results are numbered as PyTorch flattens them.

    Raises:
        Unsupported: if a result is neither a tensor, a constant, nor an integer that symbolic dimensions decide.
    """
    specs = _results(program)
    for at, spec in enumerate(specs):
        known = isinstance(spec.arg, (TensorArgument, ConstantArgument))
        if not known and not _is_size(program, spec.arg):
            reason = "it is a number that a tensor decides; return it as a tensor"
            raise Unsupported([(f"the program's result {at}", reason)])
    return {at: spec.arg.value for at, spec in enumerate(specs) if isinstance(spec.arg, ConstantArgument)}


def integer_results(program: Any) -> tuple[int, ...]:
    """Return the numbers of results that are integers which symbolic dimensions decide, counted without constants.

    The imported function returns them as int64 tensors without an axis.
    """
    specs = [spec for spec in _results(program) if not isinstance(spec.arg, ConstantArgument)]
    return tuple(at for at, spec in enumerate(specs) if isinstance(spec.arg, SymIntArgument))


def _results(program: Any) -> list[OutputSpec]:
    return [spec for spec in program.graph_signature.output_specs if spec.kind in RESULTS]


def _is_size(program: Any, argument: Any) -> bool:
    """Return whether a result is an integer that symbolic dimensions decide, and no element of a tensor."""
    if not isinstance(argument, SymIntArgument):
        return False
    values = (node.meta.get("val") for node in program.graph.nodes if node.name == argument.name)
    return all(not free_unbacked_symbols(value) for value in values)


def tensor_inputs(program: Any) -> list[str]:
    """Return the names of the arguments that are tensors, in order."""
    constants = constant_inputs(program)
    return [str(name) for at, name in enumerate(program.graph_signature.user_inputs) if at not in constants]


def tensor_results(program: Any) -> list[str]:
    """Return the names of the results that are tensors, in order."""
    constants = constant_results(program)
    return [str(name) for at, name in enumerate(program.graph_signature.user_outputs) if at not in constants]


def without_constants(module: Any) -> Any:
    """Return a graph module that takes and returns tensors only. It is the given one if it does so already.

    Args:
        module: the graph module of an exported program, which stays as it is. Nothing reads inputs that are constants.
    """
    nodes = list(module.graph.nodes)
    dropped = {node for node in nodes if node.op == "placeholder" and not _is_value(node.meta.get("val"))}
    results = next(node for node in nodes if node.op == "output").args[0]
    if not dropped and all(isinstance(result, fx.Node) for result in results):
        return module
    graph = fx.Graph()
    values: dict[Any, Any] = {}
    for node in nodes:
        if node.op == "output":
            kept = [values[result] for result in results if isinstance(result, fx.Node)]
            graph.output(tuple(kept)).meta = dict(node.meta)
        elif node not in dropped:
            values[node] = graph.node_copy(node, values.__getitem__)
    return fx.GraphModule(module, graph)


def _is_value(value: Any) -> bool:
    """Return whether the value of a graph's input is a tensor or an object, and no constant."""
    return value is not None and not isinstance(value, (bool, int, float, str))
