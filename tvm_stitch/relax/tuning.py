# SPDX-License-Identifier: Apache-2.0
"""TVM's tensor intrinsics for MetaSchedule, imported in seconds instead of a minute."""

from __future__ import annotations

import importlib
import inspect
from unittest import mock


def load_intrinsics() -> None:
    """Import TVM's tensor intrinsics. Tuning imports them anyway, in each worker of a builder too.

    Give it to builders as ``initializer``. Otherwise workers import the intrinsics while they build, and exceed the
    time limit of their first builds.

    For each intrinsic TVM reads the whole stack with its sources, which takes a minute in all. It only asks whether the
    function is defined in a class. None is here, and frames without sources give the same answer.
    """

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        frames, frame = [], inspect.currentframe()
        while frame := frame.f_back if frame else None:
            code = frame.f_code
            frames.append(
                inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
            )
        return frames

    with mock.patch.object(inspect, "stack", stack):
        importlib.import_module("tvm.s_tir.tensor_intrin")
