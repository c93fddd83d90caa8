# SPDX-License-Identifier: Apache-2.0
"""Check the attention kernel on a GPU against float64, and time it next to PyTorch's. With ``--long``, also cuDNN.

    python scripts/gpu_attention_check.py
    python scripts/gpu_attention_check.py --no-time
    python scripts/gpu_attention_check.py --long

The script needs a GPU and PyTorch. It prints a table last. The exit code is 0 only if all is right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import _long_attention
import numpy as np
import torch
import tvm
from _cuda_events import microseconds
from _gpu import need_gpu
from tvm import relax

import tvm_stitch.relax
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tvm_stitch.records.recorder import Recorder

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2, "float32": 1e-6}
BLOCKS, CALLS = 7, 20


def odd_cases() -> list[Case]:
    """Return odd, prime and small shapes, with masks of every kind."""
    cases = []
    for dtype in TOLERANCE:
        for size in (8, 16, 20, 33, 64, 80, 128):
            cases.append(Case(2, 3, 70, 45, size, dtype))
            cases.append(Case(1, 2, 131, 197, size, dtype, (1, 2, 131, 197), "float32", safe=True, flat=True))
        cases += [
            Case(3, 1, 16, 1, 64, dtype),
            Case(2, 2, 17, 130, 32, dtype, (2, 1, 1, 130)),
            Case(1, 4, 257, 64, 64, dtype, (1, 1, 257, 64), flat=True),
            Case(5, 7, 64, 1000, 64, dtype, (5, 1, 1, 1000), safe=True),
        ]
    return cases


def few_cases() -> list[Case]:
    """Return attention of few queries, over keys of odd numbers, with masks of every kind."""
    cases = []
    for dtype in TOLERANCE:
        for queries, keys, size in (
            (1, 1, 64),
            (1, 513, 128),
            (2, 127, 80),
            (4, 1025, 64),
            (7, 31, 33),
            (16, 4096, 256),
        ):
            cases += [
                Case(2, 3, queries, keys, size, dtype),
                Case(1, 4, queries, keys, size, dtype, (1, 1, 1, keys), "float32", safe=True, flat=True),
                Case(3, 2, queries, keys, size, dtype, (3, 2, queries, keys), safe=True),
            ]
    return cases


def timed_cases() -> list[Case]:
    """Return attention of BERT-base, ViT-B, Whisper-base, Swin-T, a diffusion model's block, a long
    sequence, and one token or four over a cache."""
    return [
        Case(32, 12, 128, 128, 64, mask=(32, 1, 1, 128)),
        Case(32, 12, 197, 197, 64),
        Case(8, 8, 1500, 1500, 64),
        Case(2048, 3, 49, 49, 32, mask=(1, 3, 49, 49)),
        Case(4, 8, 1024, 1024, 40),
        Case(2, 16, 4096, 4096, 128),
        Case(1, 12, 128, 128, 64),
        Case(32, 12, 128, 128, 64, "float32", mask=(32, 1, 1, 128)),
        Case(32, 12, 197, 197, 64, "float32"),
        Case(8, 8, 1500, 1500, 64, "float32"),
        Case(2048, 3, 49, 49, 32, "float32", mask=(1, 3, 49, 49)),
        Case(1, 16, 2048, 2048, 128, "float32"),
        Case(1, 32, 1, 512, 64, "bfloat16"),
        Case(1, 32, 1, 4096, 64, "bfloat16"),
        Case(8, 32, 1, 4096, 128, "bfloat16"),
        Case(1, 32, 4, 4096, 128, "bfloat16"),
    ]


class Compiled:
    """A compiled case with inputs on the device."""

    def __init__(self, case: Case, target: Any) -> None:
        self.case, recorder = case, Recorder()
        pipeline = tvm_stitch.relax.pipeline(target, None, recorder)
        self.machine = relax.VirtualMachine(
            tvm.compile(module(case), target, relax_pipeline=pipeline), tvm.cuda()
        )
        told = [how for name, how in recorder.computed.items() if name.startswith("attention")]
        if len(told) != 1 or not told[0].startswith("our kernel"):
            raise AssertionError(f"not computed by the attention kernel: {told}")
        self.arrays = inputs(case, np.random.default_rng())
        self.given = [_tensor(array) for array in self.arrays]

    def ours(self) -> Any:
        """Return the kernel's result <batch, queries, heads, size>."""
        return self.machine["main"](*self.given)

    def torch(self) -> Callable[[], Any]:
        """Return PyTorch's attention of the same inputs. Its kernels take <batch, heads, row, size>."""
        q, k, v, *mask = (torch.tensor(a.astype("float32")).cuda() for a in self.arrays)
        kind = getattr(torch, self.case.dtype)
        q, k, v = (x.to(kind).transpose(1, 2) for x in (q, k, v))
        full = (self.case.batch, self.case.heads, self.case.queries, self.case.keys)
        added = mask[0].to(kind).expand(full) if mask else None
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k, v, attn_mask=added, scale=self.case.scale)


def _tensor(array: np.ndarray) -> Any:
    return tvm.runtime.empty(array.shape, array.dtype.name, tvm.cuda()).copyfrom(array)


def check(case: Case, target: Any) -> str:
    """Describe the errors of a case. The text is empty if it is right."""
    try:
        compiled = Compiled(case, target)
        result, again = (compiled.ours().numpy() for _ in range(2))
    except Exception as error:  # of several types
        return f"{case}: {str(error).splitlines()[-1]}"
    wanted = reference(case, compiled.arrays)
    # All is zero for a query that sees no key.
    off = np.linalg.norm(result.astype("float64") - wanted) / (np.linalg.norm(wanted) or 1.0)
    if not off <= TOLERANCE[case.dtype]:
        return f"{case}: error {off:.1e}"
    return "" if np.array_equal(result, again) else f"{case}: two runs differ"


def long(target: Any, is_timed: bool) -> int:
    """Check and time attention over many keys, which cuDNN or the kernel computes."""
    print("errors of tvm_stitch and PyTorch, and what computed it")
    fine = []
    for line, is_fine in _long_attention.checked(target):
        print(line, flush=True)
        fine.append(is_fine)
    if is_timed:
        print("microseconds of tvm_stitch, PyTorch's least over it, what computed it, and PyTorch's ways")
        for line in _long_attention.timed(target):
            print(line, flush=True)
    return 0 if all(fine) else 1


def main() -> int:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-time", action="store_true", help="check only")
    parser.add_argument("--long", action="store_true", help="only attention that cuDNN may compute")
    options = parser.parse_args()
    need_gpu()
    target = tvm.target.Target.from_device(tvm.cuda())
    if options.long:
        return long(target, not options.no_time)
    cases = [*odd_cases(), *few_cases(), *timed_cases()]
    wrong = [problem for case in cases if (problem := check(case, target))]
    print(f"{len(cases)} cases, {len(wrong)} wrong", *wrong, sep="\n", flush=True)
    if not options.no_time:
        print(
            "microseconds: tvm_stitch, PyTorch, PyTorch over tvm_stitch; tvm_stitch's operations a second, 10^12"
        )
        for case in timed_cases():
            compiled = Compiled(case, target)
            times = microseconds({"ours": compiled.ours, "PyTorch": compiled.torch()}, BLOCKS, CALLS)
            operations = 4.0 * case.batch * case.heads * case.queries * case.keys * case.size
            ours, theirs = times["ours"], times["PyTorch"]
            print(
                f"{str(case):52} {ours:8.1f} {theirs:8.1f} {theirs / ours:6.2f} {operations / ours / 1e6:6.0f}",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
