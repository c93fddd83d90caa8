# SPDX-License-Identifier: Apache-2.0
"""Operands of float operations that TVM's simplifier sees through, and the identities that hide them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch.repairs.tir.arithmetic import HostArithmetic


def nan_equals_itself(passes: Any) -> bool:
    def body(emit: Any, x: Any) -> Any:
        doubled = emit(R.add(x, x))
        return R.equal(doubled, doubled)

    (result,) = faults.on_cpu(build(body, ((4,), "float32")), [np.full(4, np.nan, "float32")], passes)
    return bool(result.all())


def test_fault() -> None:
    faults.needed(nan_equals_itself(None), "tir/opaque.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not nan_equals_itself(faults.ours(faults.LLVM))
    monkeypatch.setattr(HostArithmetic, "identity", lambda self, x, second=False: x)
    assert nan_equals_itself(faults.ours(faults.LLVM))
