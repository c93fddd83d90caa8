# SPDX-License-Identifier: Apache-2.0
"""A bias, a residual and ReLU behind a convolution of half types are part of cuDNN's call, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.relax.modules import operators
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.convolutions import LibraryConvolutions

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
N, H, C, K = 2, 6, 8, 16
LAST = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
Body = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("cudnn_in_numpy")


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype("float32")


WEIGHT, BIAS = draw(K, 3, 3, C), draw(1, 1, 1, K, seed=1)


def half(array: np.ndarray) -> Any:
    return relax.const(array.astype("float16"), "float16")


def conv(emit: Any, x: Any, weight: Any = None, **attrs: Any) -> Any:
    return emit(R.nn.conv2d(x, half(WEIGHT) if weight is None else weight, padding=1, **LAST, **attrs))


def wide(emit: Any, x: Any) -> Any:
    return emit(R.astype(x, "float32"))


def narrow(emit: Any, x: Any) -> Any:
    return emit(R.astype(x, "float16"))


def normed(emit: Any, x: Any, z: Any) -> Any:
    """Add a bias, a residual and ReLU in float32."""
    y = emit(R.add(wide(emit, conv(emit, x)), relax.const(BIAS)))
    y = emit(R.add(y, wide(emit, z)))
    return emit(R.exp(narrow(emit, emit(R.nn.relu(y)))))


def plain(emit: Any, x: Any, z: Any) -> Any:
    """Do all in float16, the residual first in the sum."""
    y = emit(R.add(half(BIAS), conv(emit, x)))
    return emit(R.exp(emit(R.nn.relu(emit(R.add(z, y))))))


def without_residual(emit: Any, x: Any, z: Any) -> Any:
    return emit(R.add(z, emit(R.nn.relu(emit(R.add(conv(emit, x), half(BIAS)))))))


def two(emit: Any, x: Any, z: Any) -> Any:
    """Sum two convolutions with biases: one is the other's residual."""
    y, shortcut = (emit(R.add(conv(emit, x), half(BIAS * sign))) for sign in (1, -1))
    return emit(R.add(z, emit(R.nn.relu(emit(R.add(y, shortcut))))))


def exact(x: np.ndarray, bias: np.ndarray = BIAS) -> np.ndarray:
    given = torch.tensor(np.moveaxis(x, -1, 1)).double()
    weight = torch.tensor(np.moveaxis(WEIGHT.astype("float16"), -1, 1)).double()
    return np.moveaxis(torch.conv2d(given, weight, padding=1).numpy(), 1, -1) + bias


def rewritten(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[str]]:
    made = LibraryConvolutions(CUDA, StitchConfig(compute="libraries"))(mod)
    return without_decisions(made), list(decisions_of(made).computed.values())


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm"))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


BEHIND = "cuDNN: channels last, with bias"
CASES: list[tuple[Body, list[str], list[str], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    (normed, [f"{BEHIND} and residual and relu"], ["exp"], lambda x, z: np.exp(np.maximum(exact(x) + z, 0))),
    (plain, [f"{BEHIND} and residual and relu"], ["exp"], lambda x, z: np.exp(np.maximum(exact(x) + z, 0))),
    (without_residual, [f"{BEHIND} and relu"], ["add"], lambda x, z: z + np.maximum(exact(x), 0)),
    (
        two,
        [f"{BEHIND} and residual and relu", BEHIND],
        ["add"],
        lambda x, z: z + np.maximum(exact(x) + exact(x, bias=-BIAS), 0),
    ),
]  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("body", "told", "rest", "wanted"), CASES)
def test_what_follows_is_part_of_the_call(
    body: Body, told: list[str], rest: list[str], wanted: Any, symbolic: bool
) -> None:
    n = symbol("n") if symbolic else N
    made, how = rewritten(build(body, ((n, H, H, C), "float16"), ((n, H, H, K), "float16")))
    assert sorted(how) == sorted(told)
    assert [name for name in operators(made) if name not in ("call_dps_packed", "astype")] == rest
    x, z = draw(N, H, H, C).astype("float16"), draw(N, H, H, K).astype("float16")
    x *= np.float16(0.1)
    found = run(made, x, z).astype("float64")
    expected = wanted(*(a.astype("float64") for a in (x, z)))
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)


def scaled(emit: Any, x: Any, z: Any) -> Any:
    """Use a weight that is half already: it would be rounded again."""
    y = emit(R.multiply(wide(emit, conv(emit, x)), relax.const(np.abs(BIAS) + 0.5)))
    return emit(R.exp(narrow(emit, emit(R.nn.relu(emit(R.add(y, relax.const(BIAS))))))))


def read_twice(emit: Any, x: Any, z: Any) -> Any:
    y = conv(emit, x)
    return emit(R.add(y, emit(R.nn.relu(emit(R.add(y, half(BIAS)))))))


def bias_alone(emit: Any, x: Any, z: Any) -> Any:
    """Let the kernel of the operators that follow compute the bias as well."""
    return emit(R.exp(emit(R.add(conv(emit, x), half(BIAS)))))


def of_rows(emit: Any, x: Any, z: Any) -> Any:
    return emit(R.nn.relu(emit(R.add(conv(emit, x), half(draw(1, 1, H, 1))))))


def in_groups(emit: Any, x: Any, z: Any) -> Any:
    y = conv(emit, x, half(WEIGHT[..., : C // 2]), groups=2)
    return emit(R.exp(emit(R.nn.relu(emit(R.add(y, half(BIAS)))))))


def too_large(emit: Any, x: Any, z: Any) -> Any:
    y = emit(R.add(wide(emit, conv(emit, x)), relax.const(BIAS * 1e6)))
    return emit(R.exp(narrow(emit, emit(R.nn.relu(y)))))


@pytest.mark.parametrize("body", [scaled, read_twice, bias_alone, of_rows, in_groups, too_large])
def test_what_stays_apart(body: Body) -> None:
    mod = build(body, ((N, H, H, C), "float16"), ((N, H, H, K), "float16"))
    made, how = rewritten(mod)
    assert how == ["cuDNN: channels last"]
    assert {"add", "multiply"} & set(operators(made))


def test_a_bias_between_convolutions() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.add(conv(emit, x), half(BIAS)))
        return conv(emit, y, half(draw(C, 1, 1, K)))

    _, how = rewritten(build(body, ((N, H, H, C), "float16")))
    assert sorted(how) == ["cuDNN: channels last", BEHIND]


@pytest.mark.parametrize("change", [{"dtype": "float32"}, {"channels": 12}])
def test_other_convolutions(change: dict[str, Any]) -> None:
    dtype, channels = change.get("dtype", "float16"), change.get("channels", C)

    def body(emit: Any, x: Any) -> Any:
        y = conv(emit, x, relax.const(draw(K, 3, 3, channels).astype(dtype), dtype))
        return emit(R.nn.relu(emit(R.add(y, relax.const(BIAS.astype(dtype), dtype)))))

    assert rewritten(build(body, ((N, H, H, channels), dtype)))[1] == ["cuDNN: channels last"]
