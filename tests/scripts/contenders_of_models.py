# SPDX-License-Identifier: Apache-2.0
"""Contenders that the tests of `bench_models.py` start in processes of their own. Most of them misbehave."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import numpy as np
from models.job import Job, Unavailable
from models.ready import Ready

LOCKS: list[Any] = []
EXACT = np.array([1.0, -4.0, 2.0])


def _gives(values: Any, **told: Any) -> Ready:
    return Ready(lambda: None, lambda: [[np.asarray(values, np.float32)]], told={"compile_s": 0.5, **told})


def reference(job: Job) -> Ready:
    return Ready(lambda: None, lambda: [[EXACT]], told={"what": "the truth", "pytorch_error": 1e-7})


def good(job: Job) -> Ready:
    return _gives(EXACT + 2e-5, threads=os.environ["TVM_NUM_THREADS"])


def holds_a_lock(job: Job) -> Ready:
    LOCKS.append(multiprocessing.get_context("spawn").RLock())  # as tqdm does: a named semaphore
    return _gives(EXACT)


def wrong(job: Job) -> Ready:
    return _gives(EXACT + [0.0, 0.1, 0.0])


def raises(job: Job) -> Ready:
    raise ValueError("first line\nno such operator")


def absent(job: Job) -> Ready:
    raise Unavailable("not installed: nothing")


def crashes(job: Job) -> Ready:
    os.abort()


def hangs(job: Job) -> Ready:
    time.sleep(60)
    raise AssertionError("it should have been ended")


def stops_in_a_block(job: Job) -> Ready:
    calls = [0]

    def call() -> None:
        calls[0] += 1
        if calls[0] > 2:
            raise RuntimeError("out of memory")

    ready = _gives(EXACT)
    ready.call = call
    return ready
