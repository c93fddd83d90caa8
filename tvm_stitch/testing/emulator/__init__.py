# SPDX-License-Identifier: Apache-2.0
"""Runs generated CUDA kernels on the CPU, one fiber per thread, and reports what a GPU would not forgive."""

from .launch import EmulatedRun, Launch, Options, run_kernel
from .lowering import Lowered, default_target, lower
from .relax import run_cuda, run_lowered
from .reports import KINDS, Report

__all__ = [
    "KINDS",
    "EmulatedRun",
    "Launch",
    "Lowered",
    "Options",
    "Report",
    "default_target",
    "lower",
    "run_cuda",
    "run_kernel",
    "run_lowered",
]
