# SPDX-License-Identifier: Apache-2.0
"""Compiled models, called repeatedly on inputs that lie on their device."""

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
    """A compiled module on a device, with its inputs there, ready for repeated calls."""

    def __init__(
        self,
        executable: relax.VMExecutable | tvm.runtime.Module,
        target: Target,
        inputs: Sequence[np.ndarray],
        entry: str = "main",
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
        """Return the name and seconds of each function called by one call of the entry function, in order, without
        builtins.

        Functions of the model that call others are left out. For a kernel called with symbolic sizes, the virtual
        machine does not report a name, so the name is "".

        Args:
            clock: clock of the device.
            kernels: approximate number of kernels.
        """
        started: list[tuple[str, Any, int]] = []
        timed: list[tuple[str, Any, Any]] = []

        def instrument(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            if name.startswith(_BUILTIN) and name != _CALL_WITH_SIZES:
                return 0
            if before:
                started.append((name, clock.mark(), len(timed)))
                return 0
            end = clock.mark()
            name, begin, already = started.pop()
            if len(timed) == already:
                timed.append(("" if name == _CALL_WITH_SIZES else name, begin, end))
            return 0

        clock.begin(kernels)
        self._instrumented(instrument, lambda: None)
        return [(name, clock.seconds(begin, end)) for name, begin, end in timed]

    def calls(self) -> list[str]:
        """Return the names that the virtual machine calls in one call of the entry function, builtins included, in
        order.
        """
        names: list[str] = []

        def instrument(_func: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            if before:
                names.append(str(name))
            return 0

        return self._instrumented(instrument, lambda: names)

    def _instrumented(self, instrument: Callable[..., int], result: Callable[[], Any]) -> Any:
        # A virtual machine's instrument cannot be removed, only replaced by one that does nothing.
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
