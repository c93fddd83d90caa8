# SPDX-License-Identifier: Apache-2.0
"""A compiled model that is called like the model: with arrays by position or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from ..execution.tensors import TensorSpec, specs_of_inputs
from .sources import Source
from .tensors import device_of, given_back, kind_of, overwrite, taken


class Compiled(tvm.relax.VMExecutable):
    """The executable of a model. A call runs it on its device.

    It is TVM's executable too: ``relax.VirtualMachine(compiled, device)`` and ``export_library`` take it.

    Results are arrays of the kind of the first argument (PyTorch, NumPy, TVM), and have the structure of the model's
    results: a tensor, or a tuple. Buffers that a model of PyTorch changes keep their new values for the next call,
    and so do arguments that it changes.

    Attributes:
        inputs: names, shapes and dtypes of the arguments.
        target: the target that the model is compiled for.
    """

    def __init__(self, executable: tvm.relax.VMExecutable, source: Source, target: tvm.target.Target):
        super().__init__(executable.mod)
        self.target = target
        self._has_main = _has_main(source.mod)
        specs = specs_of_inputs(source.mod) if self._has_main else ()
        self.inputs: tuple[TensorSpec, ...] = specs[: len(specs) - len(source.state)]
        self._state_specs = specs[len(self.inputs) :]
        self._source = replace(source, mod=tvm.IRModule())  # the executable has the weights

    @cached_property
    def device(self) -> Any:
        """The device that calls run on: the first one of the target's kind."""
        return device_of(self.target)

    @cached_property
    def machine(self) -> relax.VirtualMachine:
        """TVM's virtual machine of the model."""
        return relax.VirtualMachine(self, self.device)

    @cached_property
    def _state(self) -> dict[str, Any]:
        """The buffers that the model changes."""
        pairs = zip(self._source.state.items(), self._state_specs, strict=True)
        return {name: taken(value, spec, self.device) for (name, value), spec in pairs}

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            args: arguments by position.
            named: arguments by name.

        Raises:
            TypeError: if an argument is missing, is given twice or is unknown, or is of another type.
            ValueError: if the shape of an argument does not fit.
        """
        if not self._has_main:
            raise TypeError(
                "the module has no function main; run another one by relax.VirtualMachine(compiled, device)"
            )
        values = self._ordered(args, named)
        tensors = [taken(value, spec, self.device) for value, spec in zip(values, self.inputs, strict=True)]
        state = self._state
        returned = self.machine["main"](*tensors, *state.values())
        results = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        own = len(results) - len(self._source.changed)
        for name, result in zip(self._source.changed, results[own:], strict=True):
            if name in state:
                state[name] = result
            else:
                overwrite(values[self._number(name)], result)
        kind = next(
            (found for found in map(kind_of, values) if found), "torch" if self._source.of_torch else "numpy"
        )
        shown = [given_back(result, kind) for result in results[:own]]
        if self._source.structured is not None:
            return self._source.structured(shown)
        return shown[0] if isinstance(returned, tvm.runtime.Tensor) else tuple(shown)

    def _number(self, name: str) -> int:
        return [spec.name for spec in self.inputs].index(name)

    def _ordered(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in the order of the inputs.

        Raises:
            TypeError: if one is missing, given twice or unknown.
        """
        names = [spec.name for spec in self.inputs]
        placed = self._source.placed
        found: dict[int | str, Any] = placed(args, named) if placed is not None else dict(enumerate(args))
        if placed is None:
            found.update(named)
        values: dict[int, Any] = {}
        for at, value in found.items():
            if isinstance(at, str) and at not in names:
                raise TypeError(f"the model has no input {at!r}; its inputs are {self._described()}")
            number = names.index(at) if isinstance(at, str) else at
            if number >= len(names):
                raise TypeError(
                    f"the model has {len(names)} inputs, and {number + 1} were given: {self._described()}"
                )
            if number in values:
                raise TypeError(f"the input {names[number]!r} is given twice")
            values[number] = value
        missing = [str(spec) for number, spec in enumerate(self.inputs) if number not in values]
        if missing:
            raise TypeError(f"these inputs are missing: {'; '.join(missing)}")
        return [values[number] for number in range(len(names))]

    def _described(self) -> str:
        return "; ".join(map(str, self.inputs)) or "none"


def _has_main(mod: tvm.IRModule) -> bool:
    return any(g.name_hint == "main" and isinstance(f, relax.Function) for g, f in mod.functions_items())
