# SPDX-License-Identifier: Apache-2.0
"""Compiled models, called again and again on inputs that lie on their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from .kernel_clock import KernelClock

_BUILTIN = "vm.builtin."
_CALL_WITH_SIZES = "vm.builtin.call_tir_dyn"


class Runner:
    """A compiled module on a device with its inputs there, ready to be called again and again."""

    def __init__(
        self, executable: Any, target: Target, inputs: Sequence[np.ndarray], entry: str = "main"
    ) -> None:
        self.device = tvm.device(target.kind.name if "gpu" in target.keys else "cpu", 0)
        self.vm = relax.VirtualMachine(executable, self.device)
        self.entry = entry
        self.arguments = [tvm.runtime.tensor(value, self.device) for value in inputs]

    def __call__(self) -> Any:
        """Call the entry function once and wait for the device."""
        result = self.vm[self.entry](*self.arguments)
        self.device.sync()
        return result

    def outputs(self) -> list[np.ndarray]:
        """Call once and return all outputs, nested tuples flattened."""
        return list(_flatten(self()))

    def kernel_times(self, clock: KernelClock, kernels: int) -> list[tuple[str, float]]:
        """Return the names and seconds of what one call of the entry function calls, in order, builtins left out.

        A function of the model that calls others is none of them. Of a kernel that is called with symbolic sizes the
        virtual machine does not tell the name: it is "".

        Args:
            clock: of the device.
            kernels: about how many there are.
        """
        started: list[tuple[str, Any, int]] = []
        found: list[tuple[str, Any, Any]] = []

        def instrument(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            if name.startswith(_BUILTIN) and name != _CALL_WITH_SIZES:
                return 0
            if before:
                started.append((name, clock.mark(), len(found)))
                return 0
            end = clock.mark()
            name, begin, already = started.pop()
            if len(found) == already:
                found.append(("" if name == _CALL_WITH_SIZES else name, begin, end))
            return 0

        clock.begin(kernels)
        self._instrumented(instrument, lambda: None)
        return [(name, clock.seconds(begin, end)) for name, begin, end in found]

    def calls(self) -> list[str]:
        """What the virtual machine calls in one call of the entry function, builtins included, in order."""
        names: list[str] = []

        def instrument(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            if before:
                names.append(str(name))
            return 0

        return self._instrumented(instrument, lambda: names)

    def _instrumented(self, instrument: Callable[..., int], result: Callable[[], Any]) -> Any:
        # An instrument cannot be taken off a virtual machine, only replaced: by one that does nothing.
        self.vm.set_instrument(instrument)
        try:
            self()
        finally:
            self.vm.set_instrument(lambda *_args: 0)
        return result()


def _flatten(value: Any) -> list[np.ndarray]:
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [array for item in value for array in _flatten(item)]
