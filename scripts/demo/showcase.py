# SPDX-License-Identifier: Apache-2.0
"""One kernel of a model, before and after: TVM's launches for its operators, and the stitched kernel's passes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_stitch.relax.backend import backend_of
from tvm_stitch.repairs.legalize.take import LegalizeTakes
from tvm_stitch.report.data import Bytes, KernelCall, ModelReport, add_sizes
from tvm_stitch.report.words import bytes_in_words

from .part import Launch, launches, part_of

MOST_LINES = 6
"""Most lines of the table."""


@dataclass(frozen=True)
class Showcase:
    """A stitched kernel that a model calls ``count`` times, its operators as a module, and TVM's kernels of these."""

    call: KernelCall
    count: int
    sources: list[str]
    mod: tvm.IRModule
    before: list[Launch]
    passes: list[str]

    @property
    def title(self) -> str:
        """Return the kernel's operators, and its position in the model."""
        where = " to ".join(dict.fromkeys([self.sources[0], self.sources[-1]]))
        return f"One kernel of {self.count} such: {where}"

    def lines(self) -> list[str]:
        """Write TVM's kernels on the left, the passes of the stitched one on the right."""
        moved = add_sizes(
            *(launch.read for launch in self.before), *(launch.written for launch in self.before)
        )
        heads = (
            f"TVM: {len(self.before)} kernels, {bytes_in_words(moved)} moved",
            f"stitched: 1 kernel, {bytes_in_words(self.call.bytes_moved)} moved",
        )
        left = [f"{k.name[:26]:26} {_bytes(k.read)} in {_bytes(k.written)} out" for k in self.before]
        rows = max(len(left), len(self.passes))
        pairs = zip(_filled(left, rows), _filled(self.passes, rows))
        return [f"  {a:54}  {b}".rstrip() for a, b in [heads, *list(pairs)[:MOST_LINES]]]


def _bytes(size: Bytes) -> str:
    return f"{bytes_in_words(size):>8}"


def _filled(lines: list[str], count: int) -> list[str]:
    return lines + [""] * (count - len(lines))


def showcase(mod: tvm.IRModule, report: ModelReport, target: Any) -> Showcase | None:
    """Return the stitched kernel that saves most in a model's calls, or None in a model without one."""
    counts = Counter(k.function for k in report.kernels if k.kind == "stitched")
    first = {k.function: k for k in reversed(report.kernels) if k.kind == "stitched"}
    backend = backend_of(target)
    passes = [LegalizeTakes(), *backend.library_dispatch_passes(target), *backend.legalize_passes(target)]
    best, saved = None, 0
    for function, call in first.items():
        operators = [report.operators[i] for i in call.operators]
        try:
            part = part_of(mod, {o.name for o in operators})
            before = launches(part, tvm.transform.Sequential(passes), target)
        except Exception:  # symbolic shapes that no input defines, operators of several results...
            continue
        fewer = (len(before) - 1) * counts[function]
        if fewer > saved:
            told = [_pass(i, p) for i, p in enumerate(report.plans[function]["passes"])]
            sources = [o.source or o.name for o in operators]
            best, saved = Showcase(call, counts[function], sources, part, before, told), fewer
    return best


def _pass(number: int, told: dict[str, Any]) -> str:
    """Describe a sweep over a row's columns."""
    does = [
        *(f"reduces {name}" for name in told["reduces"]),
        *(f"keeps {name} on chip" for name in told["keeps"]),
        *(f"writes {name}" for name in told["outputs"]),
    ]
    return f"pass {number}: {', '.join(does)}".replace("_intermediate", "")
