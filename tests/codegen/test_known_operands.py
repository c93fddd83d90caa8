# SPDX-License-Identifier: Apache-2.0
"""Functions of values that the simplifier knows: zeros and ones that the kernel itself makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax import pipeline

VALUES = (0.0, -0.0, -1.0)
STRICT = StitchConfig(strict=True)
UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "atan": (R.atan, np.arctan),
    "atanh": (R.atanh, np.arctanh),
    "tan": (R.tan, np.tan),
    "rsqrt": (R.rsqrt, lambda x: 1 / np.sqrt(x)),
    "log": (R.log, np.log),
    "tanh": (R.tanh, np.tanh),
    "asin": (R.asin, np.arcsin),
    "acosh": (R.acosh, np.arccosh),
}
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "atan2": (R.atan2, np.arctan2),
    "divide": (R.divide, np.divide),
    "power": (R.power, np.power),
}


def made(emit: Any, x: Any, value: float) -> Any:
    """Return a tensor of one value, of a symbolic shape. TVM folds other tensors before."""
    return emit(R.full(x.ty.shape, relax.const(value, "float32"), "float32"))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_known_operands(name: str, target: str) -> None:
    pairs = [(a, b) for a in VALUES for b in VALUES] if name in BINARY else [(a, a) for a in VALUES]

    def body(emit: Any, x: Any) -> Any:
        found = []
        for a, b in pairs:
            operands = [made(emit, x, a)] if name in UNARY else [made(emit, x, a), made(emit, x, b)]
            function = (UNARY if name in UNARY else BINARY)[name][0]
            found.append(R.add(x, emit(function(*operands))))
        return found

    mod, x = build(body, ((symbol(), 5), "float32")), np.zeros((3, 5), "float32")
    if target == "llvm":
        vm = relax.VirtualMachine(
            tvm.compile(mod, target, relax_pipeline=pipeline(target, STRICT)), tvm.cpu()
        )
        outputs = [o.numpy() for o in vm["main"](tvm.runtime.tensor(x))]
    else:
        made_for = emulated_target()
        outputs = (
            run_cuda(mod, [x], target=made_for, relax_pipeline=pipeline(made_for, STRICT)).check().outputs
        )
    with np.errstate(all="ignore"):
        for (a, b), got in zip(pairs, outputs, strict=True):
            wide = np.float64(a), np.float64(b)
            wanted = UNARY[name][1](wide[0]) if name in UNARY else BINARY[name][1](*wide)
            np.testing.assert_allclose(got, np.full((3, 5), wanted), rtol=1e-5, err_msg=f"{name} of {a}, {b}")
