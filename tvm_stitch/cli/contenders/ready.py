# SPDX-License-Identifier: Apache-2.0
"""A contender in its process: stock TVM, the stitched model, or another runtime, ready to be called and timed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..measuring import random_inputs_here
from ..progress import Progress
from ..readers.model import Job, read_job

if TYPE_CHECKING:
    import numpy as np

STITCHED, STOCK, PEER = "stitched", "stock", "peer"
NAMES = (STITCHED, STOCK, PEER)
"""All contenders, in the order in which errors of preparing them are reported."""

PHASE, LONGEST = 0.2, 2.0
"""Least seconds of consecutive calls, and the seconds after which no further call begins."""

LEAST_CALLS, MOST_CALLS = 40, 5000
"""Calls that a phase has at least, unless they take too long, and at most.

On a busy machine the two threads of a call share a core until the system moves one of them. OpenMP's threads spin
meanwhile, and a call of 0.4 ms takes 50 ms. A limit by time alone would count few other calls.
"""

SLOW = 0.5
"""Seconds of a call from which on a turn is one call, without others before it."""

EXACT, ROUNDED = 1e-3, 1e-1
"""Differences, relative to the greatest value, that a right result has at most: of float32, and of half types and
quantized models.
"""


class Unavailable(Exception):
    """A contender does not take the model. The message is the reason, for the table."""


@dataclass(frozen=True)
class Ready:
    """A contender that can be called.

    Attributes:
        call: runs the model once, and waits for the device.
        outputs: the results of one call.
        facts: plain data about the contender.
    """

    call: Callable[[], Any]
    outputs: Sequence[np.ndarray]
    facts: Mapping[str, Any] = field(default_factory=dict)


def prepare(args: argparse.Namespace, name: str) -> Ready:
    """Read a model and make a contender of it.

    Args:
        args: the parsed options of ``tvm-stitch bench``.
        name: one of ``NAMES``.

    Raises:
        Unavailable: if stock TVM does not compile the model.
        UsageError, Failure: as :func:`readers.model.read_job` raises them.
    """
    job = read_job(args, Progress(enabled=False))
    inputs = random_inputs_here(job, args.seed)
    if name == PEER:
        call = job.model.peer(inputs)
        return Ready(call, call(), {"name": job.model.peer_name, "tolerance": _tolerance(job)})
    return _stock(job, inputs) if name == STOCK else _stitched(job, inputs)


def _stock(job: Job, inputs: Mapping[str, np.ndarray]) -> Ready:
    import tvm

    from ...repairs.legalize.take import stock_pipeline
    from ...support.failures import error_text, reraise_fatal

    passes = stock_pipeline(job.target)
    try:
        executable = tvm.compile(job.model.mod, job.target, relax_pipeline=passes)
    except Exception as err:  # a failure of stock TVM is a result to report
        reraise_fatal(err)
        raise Unavailable(error_text(err)) from err
    return _built(job, inputs, executable, passes)


def _stitched(job: Job, inputs: Mapping[str, np.ndarray]) -> Ready:
    import tvm_stitch

    from ...relax import pipeline

    executable = tvm_stitch.compile(job.model.mod, target=job.target, config=job.config)
    return _built(job, inputs, executable, pipeline(job.target, job.config))


def _built(job: Job, inputs: Mapping[str, np.ndarray], executable: Any, passes: Any) -> Ready:
    from ...execution.count import count_kernels
    from ...execution.runner import Runner

    runner = Runner(executable, job.target, list(inputs.values()))
    kernels = count_kernels(job.model.mod, job.target, passes).to_dict()
    return Ready(runner, runner.outputs(), {"kernels": kernels})


def _tolerance(job: Job) -> float:
    """Return the relative difference between right results of two runtimes."""
    from tvm import relax

    rounded = {"float16", "bfloat16", "int8", "uint8"}
    types = {spec.dtype for spec in (*job.model.inputs, *job.model.outputs)}

    def note(expr: Any) -> None:
        if isinstance(expr, relax.Expr) and isinstance(expr.ty, relax.TensorType):
            types.add(str(expr.ty.dtype))

    for _, function in job.model.mod.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, note)
    return ROUNDED if types & rounded else EXACT


def turn(call: Callable[[], Any]) -> list[float]:
    """Return the seconds of single calls, after a phase of calls that do not count.

    Their median counts. A mean would be decided by a few calls during which another process had a thread's core. In
    the first phase caches are filled, and threads get cores of their own.

    Args:
        call: is called repeatedly.
    """
    first = _seconds(call)
    if first >= SLOW:
        return [first]
    _phase(call)
    return _phase(call)


def _phase(call: Callable[[], Any]) -> list[float]:
    """Return the seconds of consecutive calls."""
    times: list[float] = []
    spent = 0.0
    while (spent < PHASE and len(times) < MOST_CALLS) or (len(times) < LEAST_CALLS and spent < LONGEST):
        times.append(_seconds(call))
        spent += times[-1]
    return times


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
