# SPDX-License-Identifier: Apache-2.0
"""Calls of cuBLASLt in a module, and their results on a CPU, for the tests of products."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import Spec, build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.matmuls import LibraryMatmuls

F32 = "float32"

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")

LIBRARIES = StitchConfig(compute="libraries")

Body = Callable[..., Any]


def rewritten(
    mod: tvm.IRModule, target: Any = CUDA, config: StitchConfig = LIBRARIES
) -> tuple[Any, list[str]]:
    made = LibraryMatmuls(target, config)(mod)
    return without_decisions(made), list(decisions_of(made).computed.values())


def calls(mod: tvm.IRModule) -> list[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(
        mod["main"],
        lambda e: (
            found.append(e)
            if getattr(getattr(e, "op", None), "name", "") == "relax.call_dps_packed"
            else None
        ),
    )
    return found


def operators(mod: tvm.IRModule) -> list[str]:
    """Return the Relax operators that are left, in order."""
    return [
        b.value.op.name.removeprefix("relax.")
        for block in mod["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call)
    ]


def numbers(call: Any) -> list[str]:
    return [re.sub(r"T\.int64\((\d+)\)", r"\1", str(v)) for v in call.args[1].fields[-2].values]


def mode(call: Any) -> str:
    """Return what a call asks of a product, without the timing of algorithms for static shapes."""
    words = str(call.args[1].fields[-1].value).split()
    numbers = call.args[1].fields[-2].values
    assert ("timed" in words) == all(isinstance(number, tvm.tirx.IntImm) for number in numbers)
    return " ".join(word for word in words if word != "timed")


def draw(shape: tuple[int, ...], dtype: str = F32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32).astype(dtype)


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm"))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def check(
    body: Body, expected: Body, *specs: Spec, sizes: tuple[int, ...] = (), weights: int = 0, products: int = 1
) -> Any:
    """Rewrite, run with every size of a symbol, compare with NumPy, and return the rewritten module.

    ``specs`` may have the extent "n". The last ``weights`` of them are constants.
    """
    n = symbol()
    shapes = [[n if e == "n" else e for e in s] for s, _ in specs]
    fixed = [draw(tuple(s), d) for s, d in specs[len(specs) - weights :]]
    params = list(zip(shapes, [d for _, d in specs]))[: len(specs) - weights]
    mod = build(lambda emit, *xs: body(emit, *xs, *map(relax.const, fixed)), *params)
    made, how = rewritten(mod)
    assert len(calls(made)) == products and "matmul" not in operators(made)
    assert all(h.startswith("cuBLASLt: ") for h in how)
    for size in sizes or (1,):
        arrays = [draw(tuple(size if e == "n" else e for e in s), d) for s, d in specs[: len(params)]]
        wide = [a.astype("float64") for a in (*arrays, *fixed)]
        result, wanted = run(made, *arrays), expected(*wide)
        assert result.shape == wanted.shape
        np.testing.assert_allclose(
            result.astype("float64"), wanted, 2e-2 if result.itemsize == 2 else 1e-5, 1e-5
        )
    return made


def heads(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(x, [0, 2, 1, 3]))


def attention_scores(emit: Any, q: Any, k: Any) -> Any:
    return R.matmul(heads(emit, q), emit(R.permute_dims(heads(emit, k), [0, 1, 3, 2])))


def expected_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("bshd,bthd->bhst", q, k)
