# SPDX-License-Identifier: Apache-2.0
"""Turn the CUDA C of a module into C++ that g++ compiles for the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .ptx import rewrite_ptx

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Headers of CUDA's C++ library have no suffix. The emulator's lie in the folder of the other headers.
_LIBRARY_HEADER = re.compile(r"#include <cuda/([\w/]+)>")
_QUALIFIERS = r"(?:\s|void\b|__\w+__\s*\([^()]*(?:\([^()]*\)[^()]*)*\))*"
_KERNEL = re.compile(
    r"__global__(?P<qualifiers>" + _QUALIFIERS + r")\b(?P<name>\w+)\s*\((?P<params>[^)]*)\)\s*(?P<end>[{;])"
)
_ALIGN = r"(?:alignas|__align__)\s*\(\s*(?P<align>\d+)\s*\)"
_SHARED = re.compile(
    r"(?P<extern>extern\s+)?__shared__\s+(?:"
    + _ALIGN
    + r"\s*)?(?P<type>[A-Za-z_][\w:\s<>,]*?[\w>])\s+(?P<name>[A-Za-z_]\w*)\s*"
    r"(?P<dims>(?:\[[^\]]*\]\s*)*);"
)
_GRID_BARRIER = (
    "CUDA_EMULATOR_GRID_BARRIER"  # a macro of emu_cuda.h, by which code can replace its own barrier
)
_ITS_NAMES = re.compile(rf"#define\s+(\w+)[^\n]*\b{_GRID_BARRIER}\b")
_BUILTINS = (
    " const uint3 threadIdx = emu_thread_idx(), blockIdx = emu_block_idx(), blockDim = emu_block_dim(),"
    " gridDim = emu_grid_dim(); (void)threadIdx; (void)blockIdx; (void)blockDim; (void)gridDim;"
)


@dataclass(frozen=True)
class PreparedSource:
    """C++ text, and for each kernel the names of its parameters in order and the length of its text.

    ``resident`` are kernels that wait for their whole grid although they are not launched cooperatively.
    """

    text: str
    kernels: dict[str, tuple[str, ...]]
    lengths: dict[str, int]
    resident: frozenset[str] = frozenset()


def prepare_source(cuda_source: str) -> PreparedSource:
    """Rewrite shared arrays, built-in variables and inline PTX, and add an entry per kernel. Lines keep their
    numbers.

    Raises:
        ValueError: if the source has no kernel, or a declaration of __shared__ is not understood.
    """
    # Comments go first (newlines stay), so that no pattern matches inside one.
    text = _COMMENT.sub(lambda m: " " + "\n" * m[0].count("\n"), cuda_source)
    text = rewrite_ptx(_LIBRARY_HEADER.sub(lambda m: f'#include "cuda_{m[1].replace("/", "_")}.h"', text))
    kernels: dict[str, tuple[str, ...]] = {}

    def enter(match: re.Match[str]) -> str:
        if match["end"] == ";":
            return match[0]
        params = [p.strip() for p in match["params"].split(",") if p.strip()]
        kernels[match["name"]] = tuple(re.split(r"[\s*&]", p)[-1] for p in params)
        return match[0] + _BUILTINS

    source = text
    starts = [m.start() for m in _KERNEL.finditer(text) if m["end"] == "{"]
    ends = [*starts[1:], len(text)]
    text = _KERNEL.sub(enter, _share(text, starts))
    if not kernels:
        raise ValueError("the source defines no kernel (__global__ function)")
    lengths = {name: end - start for name, start, end in zip(kernels, starts, ends, strict=True)}
    names = "|".join([_GRID_BARRIER, *_ITS_NAMES.findall(source)])
    waits = re.compile(rf"\b(?:{names})\b")
    resident = {
        n for n, start, end in zip(kernels, starts, ends, strict=True) if waits.search(source, start, end)
    }
    entries = "".join(f"EMU_ENTRY({name})\n" for name in kernels)
    full = f'#include "emu_cuda.h"\n#line 1 "kernel.cu"\n{text}\n{entries}'
    return PreparedSource(full, kernels, lengths, frozenset(resident))


def _share(text: str, kernel_starts: list[int]) -> str:
    """Replace shared array declarations. Numbers count per kernel, after those of device functions. 0 is dynamic."""
    first = kernel_starts[0] if kernel_starts else len(text)
    helpers = sum(1 for m in _SHARED.finditer(text) if m.start() < first)
    counts: dict[int, int] = {}

    def declare(match: re.Match[str]) -> str:
        kind, name, dims = " ".join(match["type"].split()), match["name"], match["dims"].strip()
        if match["extern"] or dims.replace(" ", "") == "[]":
            return f"{kind}* const {name} = ({kind}*)emu_dynamic_shared();"
        owner = sum(1 for start in kernel_starts if start <= match.start())
        counts[owner] = counts.get(owner, 0) + 1
        number = counts[owner] + (helpers if owner else 0)
        array = f"emu_array_{name}"
        align = match["align"] or f"alignof({kind})"
        return (
            f"typedef {kind} {array} {dims}; {array}& {name} = "
            f'*({array}*)emu_shared({number}, sizeof({array}), sizeof({kind}), {align}, "{name}");'
        )

    replaced = _SHARED.sub(declare, text)
    if rest := re.search(r"__shared__[^\n]*", replaced):
        raise ValueError(f"declaration of shared memory is not understood: {rest[0]}")
    return replaced
