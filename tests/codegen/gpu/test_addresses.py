# SPDX-License-Identifier: Apache-2.0
"""Buffers that device functions get by address keep all their elements in TVM's own lowering.

TVM trims a buffer after the last element that it sees read or written. It does not see elements that a device function
reads or writes behind the address of an element. Compilers may do anything with what lies behind a trimmed buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from models.decoder_step import Decoder, as_relax
from tvm import s_tir, tirx

from stitch_testing.random.graphs import emulated_target
from tests.plan.rows.packed import FORMS, product
from tvm_stitch import compat
from tvm_stitch.relax import pipeline

STEP = {"layers": 1, "hidden": 256, "heads": 4, "key_heads": 2, "inner": 512, "cache": 64, "words": 320}


@tvm.instrument.pass_instrument
class Sizes:
    """Counts buffers of which an address is taken, before and after TVM trims buffers."""

    def __init__(self) -> None:
        self.before: Counter[tuple[str, str, int]] = Counter()
        self.after: Counter[tuple[str, str, int]] = Counter()

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name.endswith("CompactBufferAllocation"):
            self.before += addressed(mod)

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name.endswith("CompactBufferAllocation"):
            self.after += addressed(mod)


def nodes(func: tirx.PrimFunc, kind: type) -> list[Any]:
    found: list[Any] = []
    compat.structural_walk(func.body, (kind, found.append), order="post")
    return found


def addressed(mod: tvm.IRModule) -> Counter[tuple[str, str, int]]:
    """Count allocated buffers of a function, name and number of elements, of which names an address is taken."""
    found: Counter[tuple[str, str, int]] = Counter()
    for name, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        calls, blocks, allocations = (
            nodes(func, kind) for kind in (tvm.ir.Call, s_tir.SBlock, tirx.AllocBuffer)
        )
        buffers = [each.buffer for each in allocations] + [b for block in blocks for b in block.alloc_buffers]
        taken = [compat.load_buffer(call.args[0]).name for call in calls if call.op.name == "tirx.address_of"]
        for buffer in buffers:
            if buffer.name in taken:
                elements = 1
                for extent in buffer.shape:
                    elements *= int(extent)
                found[name.name_hint, buffer.name, elements] += 1
    return found


def decoder(**changes: Any) -> Callable[[], tvm.IRModule]:
    return lambda: as_relax(Decoder(**(STEP | changes)))


MODULES = {
    "four tokens": decoder(tokens=4, dtype="float16"),
    "eight tokens": decoder(tokens=8),
    "four bits": decoder(bits=4, dtype="float16"),
} | {
    f"product, {name}": lambda name=name: product(FORMS[name], 4, 64, 512, 32, "float16")
    for name in ("8 bits of 32", "4 bits of 8", "bytes with zeros")
}


@pytest.mark.parametrize("name", MODULES)
def test_no_buffer_is_trimmed_that_a_function_gets(name: str) -> None:
    sizes, target = Sizes(), emulated_target()
    with tvm.transform.PassContext(instruments=[sizes]):
        tvm.compile(MODULES[name](), target, relax_pipeline=pipeline(target=target))
    assert sizes.before and sizes.after == sizes.before
