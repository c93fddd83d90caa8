# SPDX-License-Identifier: Apache-2.0
"""Targets, sizes and graphs that the tests of attention share."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax.attention.fused import FusedAttention

TARGET = emulated_target()
B, H, S, T, D = 2, 4, 20, 24, 16


def fused(mod: tvm.IRModule, target: Any = TARGET, **options: Any) -> tuple[tvm.IRModule, dict[str, str]]:
    made = FusedAttention(target, StitchConfig(**options))(mod)
    return without_decisions(made), dict(decisions_of(made).computed)


def kernels(mod: tvm.IRModule) -> int:
    return sum(isinstance(func, tirx.PrimFunc) for _, func in mod.functions_items())


def heads(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(x, [0, 2, 1, 3]))
