# SPDX-License-Identifier: Apache-2.0
"""Run generated CUDA kernels on the CPU, one fiber per thread, and report faults that a GPU may hide."""

from .launch import EmulatedRun, Launch, Options, run_kernel
from .reports import KINDS, Report
from .tensors import HAS_RELAY

__all__ = ["KINDS", "EmulatedRun", "Launch", "Options", "Report", "run_kernel"]

if not HAS_RELAY:
    from .lowering import Lowered, default_target, lower
    from .relax import run_cuda, run_lowered

    __all__ += ["Lowered", "default_target", "lower", "run_cuda", "run_lowered"]
else:
    from .relay import run_prim_func, run_relay_cuda, run_relay_lowered
    from .relay_lowering import RelayLowered, default_target, lower_prim_func, lower_relay

    __all__ += [
        "RelayLowered",
        "default_target",
        "lower_prim_func",
        "lower_relay",
        "run_prim_func",
        "run_relay_cuda",
        "run_relay_lowered",
    ]
