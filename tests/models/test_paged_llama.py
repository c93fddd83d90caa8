# SPDX-License-Identifier: Apache-2.0
"""Models over TVM's paged cache: the scores of prefill and of each token, and the kernels of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from tests.models.paged_llama import WORDS, module, scores

TOKENS = 5


def of_cache(name: str, *arguments: Any) -> None:
    tvm.get_global_func(f"vm.builtin.kv_state_{name}")(*arguments)


def test_prefill_and_tokens_against_float64() -> None:
    target = tvm.target.Target("llvm")
    mod, shapes = module(target)
    random = np.random.default_rng()
    weights = {
        name: (random.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 1)).astype(
            "float32"
        )
        for name, shape in shapes.items()
    }
    machine = relax.VirtualMachine(tvm_stitch.compile(mod, target), tvm.cpu())
    cache = machine["create_cache"](*(tvm.runtime.ShapeTuple([size]) for size in (1, 64, 32, 16, 0)))
    of_cache("add_sequence", cache, 0)
    params = [tvm.runtime.tensor(weight) for weight in weights.values()]
    words = random.integers(0, WORDS, 18).tolist()  # more than a page
    new = words
    for step in range(TOKENS):
        of_cache("begin_forward", cache, tvm.runtime.ShapeTuple([0]), tvm.runtime.ShapeTuple([len(new)]))
        given = tvm.runtime.tensor(np.array([new], "int32"))
        found, cache = machine["decode" if step else "prefill"](given, cache, params)
        of_cache("end_forward", cache)
        wanted = scores(weights, words)
        np.testing.assert_allclose(found.numpy()[0, 0], wanted, rtol=0, atol=2e-5 * abs(wanted).max())
        new = [int(wanted.argmax())]
        words = [*words, *new]


def test_all_operators_between_attentions_are_one_kernel_of_a_step() -> None:
    target = emulated_target()
    lines = str(tvm_stitch.explain(module(target)[0], target)).splitlines()
    (step,) = [line for line in lines if "a call of decode" in line]
    assert "decode: 5 kernels" in step
