# SPDX-License-Identifier: Apache-2.0
"""Capabilities of the installed TVM, with one flag for each. All checks of TVM's version are here.

Supported are Apache TVM 0.27, with Relax and ``tirx``, and TVMs with Relay (0.12 to 0.19), with ``tir``. Flags are
computed once, because the TVM of a process does not change.
"""

from __future__ import annotations

import tvm

HAS_TIRX: bool = hasattr(tvm, "tirx")
"""TIR is ``tvm.tirx``, blocks are in ``tvm.s_tir``, and both use TVM's new FFI. Otherwise both are in ``tvm.tir``.

For use within this package only. Other code checks the capability that it needs.
"""

HAS_RELAY: bool = not HAS_TIRX
"""The front end is Relay. Otherwise it is Relax."""

HAS_SYMBOLIC_EXTENTS: bool = HAS_TIRX
"""Extents of a stitch op may be symbolic. Relay modules are stitched with static shapes only."""

LAUNCHES_CLUSTERS: bool = HAS_TIRX
"""The runtime can launch thread-block clusters. TVMs with Relay have only the plain launch."""

LAUNCHES_COOPERATIVELY: bool = HAS_TIRX
"""The runtime can launch a kernel cooperatively.

Only then does the driver guarantee that all its blocks are resident at once, as a barrier across the grid requires.
Without that guarantee, two such kernels on two streams could each hold a part of the device and wait for the rest
for ever.
"""

LAUNCHES_DEPENDENTLY: bool = HAS_TIRX
"""The runtime can launch a kernel while the kernel in front ends (programmatic dependent launch)."""

COPIES_IN_BACKGROUND: bool = HAS_TIRX
"""Kernels may use the instructions that copy to shared memory without registers (cp.async)."""

HINTS_CACHES: bool = HAS_TIRX
"""Loads of kernels may carry a policy for the second-level cache (createpolicy)."""

BOUNDS_RESIDENT_BLOCKS: bool = HAS_TIRX
"""A kernel may set how many of its blocks a multiprocessor should hold (the second launch bound of CUDA C)."""

LEAVES_THREADS: bool = HAS_TIRX
"""A thread may end before its kernel does."""

HOST_CODE_ASSERTS: bool = HAS_TIRX
"""Assertions in a function's host code are compiled. With Relay, stitch ops are external functions without them."""

TAKES_WORKSPACE: bool = HAS_TIRX
"""A function's caller may pass it buffers besides inputs and outputs. Relay's executors cannot."""

DECLARES_DEVICE_FUNCTIONS: bool = HAS_TIRX
"""A call may carry the CUDA C of its callee. Otherwise the front end adds it to the generated code."""

COMPUTES_BFLOAT16: bool = HAS_TIRX
"""Vectors of bfloat16 can be loaded, converted and stored. Otherwise kernels handle their bits."""

COMPARES_NAN: bool = HAS_TIRX
"""LLVM accounts for NaN in floats. With Relay it assumes that no float differs from itself."""

FLOORS_DATA: bool = HAS_TIRX
"""Floor divisions of data are correct. With Relay some add a multiple of the divisor, which overflows."""

SIMPLIFIES_BOUNDS: bool = HAS_TIRX
"""TVM's simplifier draws right conclusions from conditions that bound integers."""

ALIGNS_PARAMETERS: bool = HAS_TIRX
"""Every executor gives kernels tensors that are aligned as the kernels declare them."""

WRITES_FLOAT32: bool = HAS_TIRX
"""CUDA C has all digits of float32 constants. With Relay it has seven."""

READS_TARGET_OPTIONS: bool = not HAS_TIRX
"""``tvm.target.Target`` takes options behind a kind, ``"cuda -arch=sm_80"``."""
