# SPDX-License-Identifier: Apache-2.0
"""TVM is imported without PyTorch, and takes its tensors later."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from tvm_stitch.cli.late_torch import import_without_torch
{first}
tvm = import_without_torch("tvm")
before = "torch" in sys.modules
import torch
x = torch.arange(3.0)
assert tvm.get_global_func("ffi.Map")(0, x)[0].shape == (3,)  # a tensor is an argument
assert tvm.runtime.from_dlpack(x).numpy().tolist() == [0, 1, 2]
print(before)
"""


@pytest.mark.parametrize(
    ("first", "imported"), [("", "False"), ("import torch", "True"), ("import tvm", "True")]
)
def test_torch_comes_later(first: str, imported: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, imported), done.stderr
