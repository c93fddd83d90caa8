# SPDX-License-Identifier: Apache-2.0
"""Names as identifiers of C and CUDA C."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tvm_stitch.compat.identifiers import LONGEST, identifier, is_identifier

PLAIN = [
    "x",
    "T_softmax_norm_intermediate_1",
    "lv15",
    "input_1",
    "_x",
    "Q",
    "aQ20Qb",
    "batch",
    "A",
    "x" * LONGEST,
]
OTHERS = [
    "", "x y", "input.1", "input:0", "0", "?", "é", "int", "float4", "blockIdx", "half", "exp", "expf", "max", "__x",
    "_X", "cudaMalloc", "NULL", "INFINITY", "unix", "TVMBackend", "named_x", "named_xQ20Qy", "x\n", "x){", "x" * 201,
    'x){asm volatile("trap;");}\n__device__ int pwned; //', "\ud800", "\U0010ffff",
]  # fmt: skip
PARTS = ["Q", "20", " ", "x", "named_", "_", "y", "Qhash", "é"]


@pytest.mark.parametrize("name", PLAIN, ids=lambda name: name[:20])
def test_an_identifier_stays(name: str) -> None:
    assert identifier(name) == name and is_identifier(name)


@pytest.mark.parametrize("name", OTHERS, ids=ascii)
def test_another_name_becomes_one(name: str) -> None:
    found = identifier(name)
    assert found != name and is_identifier(found) and found.isascii() and found.isidentifier()
    assert len(found) <= LONGEST


def test_two_names_never_become_one() -> None:
    rng = random.Random(0)
    names = {*PLAIN, *OTHERS}
    names |= {"".join(rng.choice(PARTS) for _ in range(rng.randint(1, 6))) for _ in range(20_000)}
    names |= {identifier(name) for name in names}
    names |= {f"{'a' * 300}{i}" for i in range(100)}
    found = {identifier(name) for name in names}
    assert len(found) == len(names) and all(map(is_identifier, found))


def test_a_compiler_takes_them_as_variables(tmp_path: Path) -> None:
    """The headers are those that kernels and TVM's C code include."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    names = dict.fromkeys(map(identifier, PLAIN + OTHERS))
    lines = [f"  int {name} = {i}; use({name});" for i, name in enumerate(names)]
    headers = ("cmath", "cstdint", "cstdio", "cstdlib", "cstring", "cfloat", "climits", "cerrno", "ctime")
    text = "\n".join([*(f"#include <{h}>" for h in headers), "void use(int);", "void f() {", *lines, "}"])
    (tmp_path / "a.cc").write_text(text)
    subprocess.run(["g++", "-fsyntax-only", tmp_path / "a.cc"], check=True)
