# SPDX-License-Identifier: Apache-2.0
"""The function that MetaSchedule's workers call before they build."""

from __future__ import annotations

import inspect
import pickle
import sys

from tvm_stitch.relax.tuning import load_intrinsics


def test_intrinsics_are_loaded_and_the_stack_is_read_as_before() -> None:
    before = inspect.stack
    pickle.loads(pickle.dumps(load_intrinsics))()  # as workers get it
    assert "tvm.s_tir.tensor_intrin" in sys.modules
    assert inspect.stack is before and inspect.stack()[0].code_context is not None
