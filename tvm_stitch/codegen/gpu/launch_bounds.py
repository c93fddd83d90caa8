# SPDX-License-Identifier: Apache-2.0
"""The launch bound of a kernel: how many of its blocks a multiprocessor must hold, which limits their registers."""

from __future__ import annotations

from contextlib import ExitStack

from ... import compat
from ...compat import T, tir
from .. import builder as B

RESIDENT_BLOCKS = "{} blocks of this kernel fit a multiprocessor"
"""What a kernel says of itself where TVM cannot set a launch bound: true as it stands, in C++ without meaning.

``tvm_stitch.relay.cuda_source`` makes it the launch bound, so that it is true of the code that is compiled as well.
"""


def bound_registers(stack: ExitStack, blocks: int) -> None:
    """Tell the compiler that a multiprocessor must be able to hold so many blocks of the kernel being built.

    To be called behind the launch of its threads: what stands before it stays on the host.
    """
    if compat.BOUNDS_RESIDENT_BLOCKS:
        bound = compat.const(blocks, "int32")
        stack.enter_context(T.attr(compat.const(0, "int32"), "tirx.launch_bounds_min_blocks_per_sm", bound))
    else:
        note = compat.string(RESIDENT_BLOCKS.format(blocks))
        B.evaluate(tir.call_extern("int32", "static_assert", compat.const(1, "bool"), note))
