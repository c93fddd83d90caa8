# SPDX-License-Identifier: Apache-2.0
"""Read and import PyTorch programs written by torch.export.save."""

from __future__ import annotations

import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tvm
from torch.export import ExportedProgram
from tvm import relax

from ...execution.tensors import TensorSpec, specs_of_inputs, symbol_and_value
from ...front.programs import all_arguments, changed_names, signature_of
from ...graph.dtype import HALF
from ...importers.torch import (
    Unsupported,
    constant_results,
    from_exported_program,
    initial_state,
    tensor_inputs,
)
from ...importers.torch.archive import TooLarge, UnsafeProgram, load_program
from ...importers.torch.importing.state import State
from ...importers.torch.operators.recurrent import register_operators
from ...support.failures import error_text, fault_at, reraise_fatal
from ..errors import Failure, UsageError
from .imported import Model, PeerCall

if TYPE_CHECKING:
    from .imported import Inputs

HOW_TO_WRITE_ONE = "torch.export.save(torch.export.export(module.eval(), example_inputs), PATH) writes one"


def read_torch(
    path: Path, shapes: dict[str, tuple[int, ...]], names: bool, state: State = "constants"
) -> Model:
    """Return a PyTorch program.

    Args:
        path: path of the .pt2 file.
        shapes: shapes of inputs with symbolic dimensions.
        names: whether operators keep the paths of their modules. They always do.
        state: the kind of buffers that the program changes.

    Raises:
        UsageError: if the file is not a program of torch.export, or the shapes do not fit.
        Failure: if an operator is not imported.
    """
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PyTorch's warnings about itself
        program = _load(path)
        mod = _imported(path, program, state)
    declared = specs_of_inputs(mod)
    mod = _with_shapes(mod, declared, shapes)
    peer = partial(_peer, program, declared, initial_state(program, mod), changed_names(mod))
    return Model(mod, signature_of(program, mod, state), "PyTorch", peer)


def _load(path: Path) -> ExportedProgram:
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not a program of torch.export (no archive at all); {HOW_TO_WRITE_ONE}")
    register_operators()
    with _logged("torch.export") as reasons:
        try:
            return load_program(path)
        except (TooLarge, UnsafeProgram) as error:
            raise UsageError(f"{path} is not read: {error}") from None
        except Exception as error:  # of many kinds: of archives, of JSON, of other versions
            reraise_fatal(error)
            reason = str(reasons[-1] if reasons else error)
    if match := re.search(r"Deserializing (\S+) in pytree is not registered", reason):
        raise UsageError(
            f"{path}: the module takes or returns a {match[1]}, a type that PyTorch does not know when it reads the "
            "program; export a module around it that takes tensors and returns them"
        )
    if match := re.search(r"Unable to deserialize (\w+) node Argument\((.*)\)", reason):
        raise UsageError(
            f"{path}: PyTorch reads no program with the {match[1]} {match[2]}; export a module without it"
        )
    raise UsageError(f"{path} is not a program of torch.export; {HOW_TO_WRITE_ONE}")


def _imported(path: Path, program: ExportedProgram, state: State) -> tvm.IRModule:
    """Return the module of a program.

    Raises:
        Failure: if an operator is not imported, or an importer fails, with its message.
    """
    try:
        return from_exported_program(program, state=state)
    except Unsupported as error:
        raise Failure(f"{path} is not imported: {error}") from error
    except Exception as error:  # of many kinds: assertions, of types, of operators
        reraise_fatal(error)
        if fault_at(error) is not None:  # a fault of this package, not of the importer
            raise
        raise Failure(
            f"{path} is not imported: TVM's PyTorch importer fails with: {error_text(error)}"
        ) from error


@contextmanager
def _logged(name: str) -> Iterator[list[BaseException]]:
    """Collect the errors that a logger reports, instead of printing them with their traces."""
    logger = logging.getLogger(name)
    reasons: list[BaseException] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                reasons.append(record.exc_info[1])

    before, collect = (logger.handlers, logger.propagate), Collect()
    logger.handlers, logger.propagate = [collect], False
    try:
        yield reasons
    finally:
        logger.handlers, logger.propagate = before


def _with_shapes(
    mod: tvm.IRModule, declared: tuple[TensorSpec, ...], shapes: dict[str, tuple[int, ...]]
) -> tvm.IRModule:
    """Return the module with symbolic dimensions replaced by the sizes of given input shapes."""
    known = {spec.name: spec for spec in declared}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in known:
            inputs = "; ".join(map(str, declared))
            raise UsageError(f"the model has no input '{name}'; its inputs are {inputs}")
        if not known[name].takes(shape):
            raise UsageError(f"shape {list(shape)} does not fit the input {known[name]}")
        for dim, size in zip(known[name].shape, shape):
            if isinstance(dim, str) and (solved := symbol_and_value(dim, size)) is not None:
                symbol, value = solved
                if sizes.setdefault(symbol, value) != value:
                    raise UsageError(
                        f"{symbol} is {sizes[symbol]} and {value} in the shapes that are given; give it one size"
                    )
    return relax.transform.BindSymbolicVars(sizes, "main")(mod) if sizes else mod


def _peer(
    program: ExportedProgram,
    declared: tuple[TensorSpec, ...],
    start: dict[str, torch.Tensor],
    changed: Sequence[str],
    inputs: Inputs,
) -> PeerCall:
    """Return a call of PyTorch, uncompiled, on the CPU. Inputs of a half type are converted to the program's types.

    Its first values of buffers are those of ``start``. The arrays of ``changed`` follow those of the results.
    """
    from torch.utils import _pytree as pytree

    arrays = [
        value.astype(spec.numpy_dtype) if str(value.dtype) in HALF else value
        for spec, value in zip(declared, inputs.values())
    ]
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    args, kwargs = pytree.tree_unflatten(all_arguments(program, tensors), program.call_spec.in_spec)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        module = program.module()
    returned = constant_results(program)
    inputs_by_name = dict(zip(tensor_inputs(program), tensors, strict=True))
    held = {
        name: inputs_by_name[name] if name in inputs_by_name else module.get_buffer(name) for name in changed
    }
    first = {name: start[name] if name in start else held[name].clone() for name in changed}

    def run() -> Any:
        with torch.no_grad():
            return module(*args, **kwargs)

    def results(found: Any) -> list[np.ndarray]:
        leaves = [leaf for at, leaf in enumerate(pytree.tree_leaves(found)) if at not in returned]
        values = [torch.as_tensor(leaf).numpy() for leaf in leaves]  # sizes are integers
        values += [value.numpy() for value in held.values()]
        return [np.array(value) if changed else np.asarray(value) for value in values]

    def restore() -> None:
        with torch.no_grad():
            for name, value in first.items():
                held[name].copy_(value)

    return PeerCall(run, results, restore if changed else None)
