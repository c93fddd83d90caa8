# SPDX-License-Identifier: Apache-2.0
"""Buffers and inputs that an exported program changes: they are results of the imported function.

``torch.export`` lists the new values in front of the program's results. TVM's importer drops them, so that a batch
norm in training never moves its statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec

from ..complexes.boundary import with_real_boundary
from ..complexes.parts import real_tensor
from .constants import RESULTS, constant_inputs, constant_results, without_constants

State = Literal["constants", "inputs", "in_place"]
"""The kinds of buffers that a program changes: constants or inputs of the imported function, or changed inputs."""

CHANGES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class Signature:
    """The part of a graph signature that TVM's importer reads."""

    input_specs: tuple[InputSpec, ...]
    output_specs: tuple[OutputSpec, ...]


@dataclass(frozen=True)
class View:
    """An exported program for TVM's importer, with other inputs and results than the original.

    ``order`` has the position of each result in the outputs of ``graph_module``.
    """

    program: Any
    graph_signature: Signature
    order: tuple[int, ...]
    changed: tuple[str, ...]
    """Names of the changed buffers and inputs, which are the last results."""
    graph_module: Any
    """The program's graph, whose inputs and results are real tensors."""

    @property
    def graph(self) -> Any:
        return self.graph_module.graph

    @property
    def state_dict(self) -> Any:
        return {name: real_tensor(value) for name, value in self.program.state_dict.items()}

    @property
    def constants(self) -> dict[str, Any]:
        """Return the constants that are no inputs. TVM's importer binds a wrong input for any other."""
        kinds = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        bound = {spec.target for spec in self.graph_signature.input_specs if spec.kind in kinds}
        return {name: real_tensor(x) for name, x in self.program.constants.items() if name in bound}

    @property
    def tensor_constants(self) -> Any:
        return {name: real_tensor(value) for name, value in self.program.tensor_constants.items()}

    @property
    def range_constraints(self) -> Any:
        return self.program.range_constraints

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        return ((name, real_tensor(value)) for name, value in self.program.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        """Yield the buffers that are no inputs."""
        bound = {spec.target for spec in self.graph_signature.input_specs if spec.kind == InputKind.BUFFER}
        return ((name, real_tensor(x)) for name, x in self.program.named_buffers() if name in bound)


def view_of(program: Any, state: State) -> View:
    """Return a program with its changed buffers and inputs behind its results, and without constants among both.

    Args:
        program: a ``torch.export.ExportedProgram``.
        state: ``"constants"`` if changed buffers stay constants. Otherwise they are inputs, behind the program's own.

    Raises:
        ValueError: if ``state`` is none of these words.
        Unsupported: if an input or a result is neither a tensor nor a constant.
    """
    if state not in get_args(State):
        raise ValueError(f'state must be "constants", "inputs" or "in_place", got {state!r}')
    signature = program.graph_signature
    constant_inputs(program)
    constant_results(program)
    outputs = list(enumerate(spec for spec in signature.output_specs if not _is_constant(spec)))
    changes = [each for each in outputs if each[1].kind in CHANGES]
    results = [each for each in outputs if each[1].kind in RESULTS]
    ordered = [*results, *changes]
    buffers = {spec.target for _, spec in changes if spec.kind == OutputKind.BUFFER_MUTATION}
    inputs = [spec for spec in signature.input_specs if not _is_constant(spec)]
    if state != "constants":
        moved = {
            spec.target: replace(spec, kind=InputKind.USER_INPUT, target=spec.arg.name, persistent=None)
            for spec in inputs
            if spec.kind == InputKind.BUFFER and spec.target in buffers
        }
        inputs = [spec for spec in inputs if spec.target not in moved or spec.kind != InputKind.BUFFER]
        inputs += [moved[spec.target] for _, spec in changes if spec.target in moved]
    return View(
        program,
        Signature(tuple(inputs), tuple(replace(spec, kind=OutputKind.USER_OUTPUT) for _, spec in ordered)),
        tuple(at for at, _ in ordered),
        tuple(str(spec.target) for _, spec in changes),
        with_real_boundary(without_constants(program.graph_module)),
    )


def _is_constant(spec: InputSpec | OutputSpec) -> bool:
    return isinstance(spec.arg, ConstantArgument)


def replaced_inputs(view: View) -> dict[int, int]:
    """Return the position of the result that replaces an input, by that of the input, if the program changes it."""
    inputs = [spec for spec in view.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    names = [spec.arg.name for spec in inputs]
    first = len(view.order) - len(view.changed)
    by_target = {target: name for name, target in view.program.graph_signature.inputs_to_buffers.items()}
    found = {}
    for number, target in enumerate(view.changed):
        name = by_target.get(target, target)
        if name in names:
            found[names.index(name)] = first + number
    return found


def initial_state(program: Any, mod: Any) -> dict[str, torch.Tensor]:
    """Return copies of the buffers that a program changes, by name, in the order of inputs and results.

    Complex ones are real tensors with a last axis of two elements.

    Args:
        program: a ``torch.export.ExportedProgram``.
        mod: its module.
    """
    values, names = dict(program.named_buffers()), (mod["main"].attrs or {}).get("torch_state", [])
    return {
        str(name): real_tensor(values[str(name)]).detach().clone() for name in names if str(name) in values
    }
