# SPDX-License-Identifier: Apache-2.0
"""The launch bound of a kernel: the blocks that a multiprocessor must hold, which limits their registers."""

from __future__ import annotations

from contextlib import ExitStack

from ... import compat
from ...compat import T, tir
from .. import builder as B

RESIDENT_BLOCKS = "{} blocks of this kernel fit a multiprocessor"
"""The message of a ``static_assert`` by which a kernel states its launch bound if TVM cannot set one.

The assertion always holds, so it has no effect in C++. ``tvm_stitch.relay.cuda_source`` turns it into the launch
bound. So the message is also true of the compiled code.
"""


def bound_registers(stack: ExitStack, blocks: int) -> None:
    """Limit the registers of the kernel being built so that a multiprocessor can hold ``blocks`` of its blocks.

    Call it after the launch of the kernel's threads: code before that stays on the host.
    """
    if compat.BOUNDS_RESIDENT_BLOCKS:
        bound = compat.const(blocks, "int32")
        stack.enter_context(T.attr(compat.const(0, "int32"), "tirx.launch_bounds_min_blocks_per_sm", bound))
    else:
        note = compat.string(RESIDENT_BLOCKS.format(blocks))
        B.evaluate(tir.call_extern("int32", "static_assert", compat.const(1, "bool"), note))
