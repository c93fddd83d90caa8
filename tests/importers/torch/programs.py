# SPDX-License-Identifier: Apache-2.0
"""Import, compile and run PyTorch functions, and compare types, shapes and numbers with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tvm

import tvm_stitch
from tvm_stitch.importers.torch import Unsupported, from_exported_program
from tvm_stitch.importers.torch.complexes.parts import real_tensor

Function = Callable[..., Any]


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Function):
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def imported(module: Any, *tensors: Any, dynamic: Any = None, **options: Any) -> tvm.IRModule:
    """Return the module of a function or of a PyTorch module."""
    module = module if isinstance(module, torch.nn.Module) else Called(module)
    program = torch.export.export(module, tensors, dynamic_shapes=dynamic)
    return from_exported_program(program, **options)


def compiled(mod: tvm.IRModule) -> Callable[..., list[np.ndarray]]:
    """Return a function of PyTorch's tensors that runs a module on the CPU."""
    main = tvm.relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())["main"]
    return lambda *tensors: [
        x.numpy() for x in main(*[tvm.runtime.tensor(real_tensor(t).numpy()) for t in tensors])
    ]


def same(got: np.ndarray, want: torch.Tensor, tolerance: float) -> bool:
    """Return whether a result has PyTorch's type, shape and numbers. NaN equals NaN. Complex ones have an axis of 2."""
    expected = real_tensor(want).numpy()
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if expected.dtype.kind != "f":
        return np.array_equal(got, expected)
    return np.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def compare(
    functions: Mapping[str, Function],
    *tensors: torch.Tensor,
    tolerance: float = 2e-6,
    dynamic: Any = None,
    others: Sequence[Sequence[torch.Tensor]] = (),
) -> None:
    """Compare functions of the same tensors with PyTorch, all in one program.

    Args:
        functions: functions by name, each of which returns a tensor or several.
        tensors: their inputs.
        tolerance: relative and absolute, for floats.
        dynamic: symbolic dimensions of the inputs, as ``torch.export.export`` takes them.
        others: inputs of other sizes, for the same program.
    """

    def results(*given: Any) -> dict[str, list[Any]]:
        found = {name: function(*given) for name, function in functions.items()}
        return {name: [x] if isinstance(x, torch.Tensor) else list(x) for name, x in found.items()}

    run = compiled(
        imported(lambda *given: [y for x in results(*given).values() for y in x], *tensors, dynamic=dynamic)
    )
    for given in (tensors, *others):
        found = run(*given)
        wrong = {}
        for name, wanted in results(*given).items():
            for want in wanted:
                got = found.pop(0)
                if not same(got, want, tolerance):
                    wrong[name] = f"{got.dtype} {got.tolist()} instead of {want.dtype} {want.tolist()}"
        assert not found and not wrong, wrong


def refusal(function: Any, *tensors: Any, **options: Any) -> str:
    """Return the text with which the import of a function is refused."""
    try:
        imported(function, *tensors, **options)
    except Unsupported as error:
        return str(error)
    raise AssertionError("the function is imported")
