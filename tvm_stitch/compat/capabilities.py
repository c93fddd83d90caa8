# SPDX-License-Identifier: Apache-2.0
"""What the installed TVM can do, each flag named after one capability. All checks of TVM's version are here.

Supported are Apache TVM 0.27, with Relax and ``tirx``, and TVMs with Relay (0.12 to 0.19), with ``tir``. No flag is
looked up again: the TVM of a process does not change.
"""

from __future__ import annotations

import tvm

HAS_TIRX: bool = hasattr(tvm, "tirx")
"""TIR is ``tvm.tirx``, blocks are ``tvm.s_tir``'s, and both speak TVM's new FFI; else both are ``tvm.tir``'s. For use
within this package only: elsewhere ask for what is needed."""

HAS_RELAY: bool = not HAS_TIRX
"""Relay is the front end; else Relax."""

HAS_SYMBOLIC_EXTENTS: bool = HAS_TIRX
"""Extents of a stitch op may be symbolic: of Relay modules only static shapes are stitched."""

LAUNCHES_CLUSTERS: bool = HAS_TIRX
"""The runtime can launch thread-block clusters: TVMs with Relay know the plain launch only."""

LAUNCHES_COOPERATIVELY: bool = HAS_TIRX
"""The runtime can launch a kernel cooperatively: only then does the driver promise that all of its blocks are resident
at once, which a barrier across the grid needs. Without that promise two such kernels on two streams could each hold a
part of the device and wait for the rest for ever."""

COPIES_IN_BACKGROUND: bool = HAS_TIRX
"""Kernels may have the instructions that copy to shared memory without registers (cp.async)."""

HINTS_CACHES: bool = HAS_TIRX
"""Loads of kernels may carry a policy for the second-level cache (createpolicy)."""

BOUNDS_RESIDENT_BLOCKS: bool = HAS_TIRX
"""A kernel may say how many of its blocks a multiprocessor is to hold (the second launch bound of CUDA C)."""

LEAVES_THREADS: bool = HAS_TIRX
"""A thread may end before its kernel does."""

HOST_CODE_ASSERTS: bool = HAS_TIRX
"""Assertions of a function's host code are compiled: with Relay stitch ops are external functions without them."""

TAKES_WORKSPACE: bool = HAS_TIRX
"""What calls a function may give it buffers besides inputs and outputs: Relay's executors do not."""

DECLARES_DEVICE_FUNCTIONS: bool = HAS_TIRX
"""A call may carry the CUDA C of the function that it calls; else the front end puts it into the generated code."""

COMPUTES_BFLOAT16: bool = HAS_TIRX
"""Vectors of bfloat16 are loaded, converted and stored; else kernels handle their bits."""

COMPARES_NAN: bool = HAS_TIRX
"""LLVM is told that floats may be NaN: with Relay it takes a float that differs from itself for none."""

FLOORS_DATA: bool = HAS_TIRX
"""Floor divisions of data are right: with Relay some add a multiple of the divisor, which overflows."""

SIMPLIFIES_BOUNDS: bool = HAS_TIRX
"""TVM's simplifier draws right conclusions from conditions that bound integers."""

ALIGNS_PARAMETERS: bool = HAS_TIRX
"""Every executor gives kernels tensors that are aligned as the kernels declare them."""

WRITES_FLOAT32: bool = HAS_TIRX
"""CUDA C has all digits of float32 constants; else seven."""

READS_TARGET_OPTIONS: bool = not HAS_TIRX
"""``tvm.target.Target`` takes options behind a kind, ``"cuda -arch=sm_80"``."""
