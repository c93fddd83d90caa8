# SPDX-License-Identifier: Apache-2.0
"""Checks of a report's notes, and a PyTorch model of equal blocks with attention."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm

from tvm_stitch import Report
from tvm_stitch.relax import in_half_precision
from tvm_stitch.report.data import KernelCall, ModelReport

GENERAL = ("our kernel", "TVM", "a function outside the module")
"""The notes of kernels about which no decision is known."""
WORDS = {
    " heads of ": ("attention",),
    "cuBLASLt": ("matmul", "einsum", "dense"),
    "depthwise": ("conv",),
    "cuDNN: channels": ("conv",),
    "cuDNN is not": ("conv",),
    " channels x ": ("conv",),
    " units": ("_kernel",),
    " radices ": ("fourier",),
    " elements": ("topk", "sort"),
}
"""By text in notes, words for kernels. One is in the name of a kernel with such a note, or of an operator in it."""


def wrong_notes(report: Report) -> list[str]:
    """Return the faults of a report's notes: functions with several kinds or notes, and notes of other operators."""
    model = report.model
    assert model is not None
    of_function: dict[str, set[tuple[str, str]]] = defaultdict(set)
    faults = []
    for kernel in model.kernels:
        if kernel.kind != "library":
            of_function[kernel.function].add((kernel.kind, kernel.note))
        if kernel.kind in ("compute", "library"):
            faults += [f"{kernel.function}: {kernel.note}"] if not _fits(model, kernel) else []
    several = {name: notes for name, notes in of_function.items() if len(notes) > 1}
    return [*faults, *(f"{name} has {sorted(notes)}" for name, notes in several.items())]


def _fits(model: ModelReport, kernel: KernelCall) -> bool:
    names = [kernel.function, *(model.operators[i].operator for i in kernel.operators)]
    told = [words for text, words in WORDS.items() if text in kernel.note]
    if " heads of " in kernel.note:
        names = names[:1]
    return all(any(word in name for word in words for name in names) for words in told)


def equal_blocks(count: int, queries: int = 16, half: bool = True) -> tvm.IRModule:
    """Return a vision transformer of equal blocks, imported from PyTorch, in float16 or in float32."""
    import torch

    from tvm_stitch.importers.torch import from_exported_program

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
            self.qkv, self.proj = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
            self.fc1, self.fc2 = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

        def forward(self, x: Any) -> Any:
            images, rows, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(images, rows, 3, 2, 32).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.proj(mixed.transpose(1, 2).reshape(images, rows, 64))
            return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x))))

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(count))).eval()
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(4, queries, 64),))
    mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    return in_half_precision(mod, "float16", "half") if half else mod
