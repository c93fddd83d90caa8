# SPDX-License-Identifier: Apache-2.0
"""A compiled model that is called like the model: with arrays by position or by name."""

from __future__ import annotations

import inspect
import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from ..config import StitchConfig, configured
from ..deploy.cpu_flags import why_not_here
from ..deploy.folder import LIBRARY, NotCompiled, find_library
from ..deploy.linking import check_linker
from ..execution.tensors import TensorSpec
from ..relax.build import build
from ..support.written_whole import written_whole
from .conditions import check_conditions
from .reports import reporting
from .saved import facts_of, load_library, read_state, write, write_manifest
from .signature import Signature
from .sources import source_of
from .tensors import check_sizes, device_of, given_back, kind_of, overwrite, taken

if TYPE_CHECKING:
    from ..report.report import Report


class Compiled(tvm.relax.VMExecutable):
    """The executable of a model. A call runs it on its device.

    It is TVM's executable too: ``relax.VirtualMachine(compiled, device)`` and ``export_library`` take it.

    Results are arrays of the kind of the first argument (PyTorch, NumPy, TVM), and have the structure of the model's
    results: a tensor, or a tuple. Buffers that a model of PyTorch changes keep their new values for the next call,
    and so do arguments that it changes.

    Attributes:
        inputs: names, shapes and dtypes of the arguments.
        outputs: names, shapes and dtypes of the results.
        target: the target that the model is compiled for.
        facts: the manifest's entries about the compilation, as plain data: options, kernels, versions.
    """

    def __init__(
        self,
        executable: tvm.relax.VMExecutable,
        signature: Signature | None,
        target: tvm.target.Target,
        facts: Mapping[str, Any],
        report: Callable[[], Report],
        library: Path | None = None,
    ):
        """Make a callable model of an executable.

        Args:
            executable: the executable.
            signature: how its function ``main`` is called, or None if it has none.
            target: the target.
            facts: the manifest's entries about the compilation.
            report: makes the report.
            library: the file that the executable was loaded from, if it was.
        """
        super().__init__(executable.mod)
        self.target, self.facts = target, dict(facts)
        self._signature, self._report, self._library = signature, report, library
        self.inputs: tuple[TensorSpec, ...] = signature.arguments if signature else ()
        self.outputs: tuple[TensorSpec, ...] = signature.results if signature else ()

    def __repr__(self) -> str:
        """Return the inputs, the outputs and the target, or the target alone without a function ``main``."""
        called = f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}, "
        return f"Compiled({called if self._signature else ''}for {self.target.kind.name})"

    @property
    def executable(self) -> tvm.relax.VMExecutable:
        """TVM's executable, without the calls of this class."""
        return tvm.relax.VMExecutable(self.mod)

    @cached_property
    def report(self) -> Report:
        """The report of ``tvm_stitch.explain`` on the model, for the same target and options. It is made by the first
        access. If the model is gone or changed then, the report has the kernels and the reasons of the compilation, but
        no graph of the model.

        Raises:
            RuntimeError: if the compiled model was loaded.
        """
        return self._report()

    @cached_property
    def device(self) -> Any:
        """The device that calls run on: the first one of the target's kind."""
        return device_of(self.target)

    @cached_property
    def machine(self) -> relax.VirtualMachine:
        """TVM's virtual machine of the model.

        Raises:
            RuntimeError: if there is no device of the target's kind.
        """
        if not self.device.exist:
            kind = self.target.kind.name
            raise RuntimeError(
                f"no {kind} device here, for which the model was compiled; run it on a machine with one"
            )
        return relax.VirtualMachine(self, self.device)

    @cached_property
    def _state(self) -> dict[str, Any]:
        """The buffers that the model changes."""
        signature = self._main()
        pairs = zip(signature.state.items(), signature.inputs[len(self.inputs) :], strict=True)
        return {name: taken(value, spec, self.device) for (name, value), spec in pairs}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder, as ``tvm-stitch compile`` does. :func:`tvm_stitch.load` loads it.

        The files are a library, a manifest, and ``state.npz`` with the present values of the buffers that the model
        changes. All of them appear, or none.

        Args:
            folder: the folder. It is made if it does not exist, and files of these names are replaced.

        Raises:
            TypeError: if the module has no function ``main``.
            ValueError: if the model takes or returns a type that PyTorch does not write.
            LinkError: if no C++ compiler links the library.
            OSError: if the folder cannot be written to.
        """
        signature = self._main()
        if "_state" in self.__dict__:
            signature = replace(signature, state=self._state)
        if self._library is None:
            check_linker(self.target)
        with written_whole(Path(folder)) as files:
            if self._library is None:
                write(files, self, self.target, signature, self.facts)
            else:
                shutil.copyfile(self._library, files / LIBRARY)
                write_manifest(files, {**self.facts, **signature.to_dict(), "library": LIBRARY}, signature)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            args: arguments by position.
            named: arguments by name.

        Raises:
            TypeError: if an argument is missing, is given twice or is unknown, or is of another type.
            ValueError: if the shape of an argument does not fit, or if a symbolic dimension has two sizes. PyTorch's
                guards between sizes count too.
            RuntimeError: if there is no device of the target's kind.
        """
        signature = self._main()
        values = self._ordered(signature.placed(args, named))
        machine, state = self.machine, self._state
        tensors = [taken(value, spec, self.device) for value, spec in zip(values, self.inputs, strict=True)]
        check_sizes(self.inputs, tensors)
        check_conditions(signature.conditions, [spec.name for spec in self.inputs], tensors)
        returned = machine["main"](*tensors, *state.values())
        results = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        own = len(results) - len(signature.changed)
        for name, result in zip(signature.changed, results[own:], strict=True):
            if name in state:
                state[name] = result
            else:
                overwrite(values[self._number(name)], result)
        kind = next(
            (found for found in map(kind_of, values) if found), "torch" if signature.of_torch else "numpy"
        )
        shown = [
            int(result.numpy()) if at in signature.integers else given_back(result, kind)
            for at, result in enumerate(results[:own])
        ]
        return signature.structured(shown, single=isinstance(returned, tvm.runtime.Tensor))

    def _main(self) -> Signature:
        """Return the signature.

        Raises:
            TypeError: if the module has no function ``main``.
        """
        if self._signature is None:
            raise TypeError(
                "the module has no function main; run another one by relax.VirtualMachine(compiled, device)"
            )
        return self._signature

    def _number(self, name: str) -> int:
        return [spec.name for spec in self.inputs].index(name)

    def _ordered(self, found: Mapping[int | str, Any]) -> list[Any]:
        """Return the arguments in the order of the inputs.

        Args:
            found: the arguments by number or name.

        Raises:
            TypeError: if one is missing, given twice or unknown.
        """
        names = [spec.name for spec in self.inputs]
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


_BUILD_ARGUMENTS = frozenset(inspect.signature(relax.build).parameters) - {"mod", "target", "relax_pipeline"}


def compiled(
    model: Any,
    target: tvm.target.Target,
    config: StitchConfig | None,
    given: Mapping[str, Any],
    **options: Any,
) -> Compiled:
    """Compile a model. The arguments are those of :func:`tvm_stitch.compile`, ``given`` those of ``source_of``.

    Options that ``tvm.relax.build`` does not know are those of ``StitchConfig``.
    """
    others = {name: value for name, value in options.items() if name in _BUILD_ARGUMENTS}
    config = configured(config, {name: value for name, value in options.items() if name not in others})
    source = source_of(model, **given)
    built = build(source.mod, target, config, **others)
    facts = {"model": _name(model), **facts_of(built, target, config)} if source.signature else {}
    report = reporting(_kept(model), given, source.mod, built.recorder, target, config)
    return Compiled(built.executable, source.signature, target, facts, report)


def loaded(folder: str | os.PathLike[str]) -> Compiled:
    """Load a compiled model. Arguments and errors are those of :func:`tvm_stitch.load`."""
    library, data = find_library(Path(folder))
    if not data:
        raise NotCompiled(f"{library} has no manifest; give a folder that tvm-stitch compile or save wrote")
    if reason := why_not_here(data.get("cpu_flags", [])):
        raise RuntimeError(f"{library} does not run here: {reason}")
    signature = Signature.of_dict(data, read_state(library.parent, data))
    executable = load_library(library)

    def report() -> Report:
        raise RuntimeError("a loaded model has no report; tvm_stitch.explain(model) reports on a model")

    target = tvm.target.Target(data["target"])
    return Compiled(executable, signature, target, data, report, library.absolute())


def _kept(model: Any) -> Callable[[], Any]:
    """Return a function that gives the model, or None. It keeps no second copy of a model's weights in memory."""
    try:
        return weakref.ref(model)
    except TypeError:  # paths, and types without such references
        return lambda: model


def _name(model: Any) -> str:
    return str(model) if isinstance(model, (str, Path)) else type(model).__qualname__
