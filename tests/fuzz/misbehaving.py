# SPDX-License-Identifier: Apache-2.0
"""Answers of a child process: crashes, hangs and stray writes where the test asks for them."""

from __future__ import annotations

import ctypes
import os
import time

import numpy as np
import tvm
from fuzzing import workers
from fuzzing.workers import Answer, Work


def answer(work: Work) -> Answer:
    """Ends the process, sleeps, or writes beyond a tensor (far, or by one byte) for a backend of that name."""
    if work.settings.backend == "crash":
        os.abort()
    if work.settings.backend == "hang":
        time.sleep(600)
    if work.settings.backend in ("far", "near"):
        tensor = tvm.runtime.tensor(np.zeros(3, "int8"))
        ctypes.memset(tensor.data_ptr() + (3 if work.settings.backend == "near" else 64), 1, 1)
        del tensor
    return workers.answer(work)
