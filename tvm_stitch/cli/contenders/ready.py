# SPDX-License-Identifier: Apache-2.0
"""A contender in its process: stock TVM, the stitched model, or another runtime, ready to be called and timed."""

from __future__ import annotations

import argparse
import dataclasses
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
        call: runs the model once as a user's program does, and waits for the device.
        outputs: the results of one call.
        facts: plain data about the contender.
        restore: called before each call, outside its time, if calls change buffers or inputs.
    """

    call: Callable[[], Any]
    outputs: Sequence[np.ndarray]
    facts: Mapping[str, Any] = field(default_factory=dict)
    restore: Callable[[], None] | None = None


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
        peer = job.model.peer(inputs)
        facts = {"name": job.model.peer_name, "tolerance": _tolerance(job)}
        return Ready(peer.run, peer(), facts, peer.restore)
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
    """Return an executable that is called with the arrays of a user: on a CPU those of the peer, else the device's.

    The new values of buffers and inputs that the model changes are results. So each call begins with the first ones.
    """
    from ...execution.count import count_kernels
    from ...execution.runner import Runner
    from ...front.compiled import Compiled
    from ...front.tensors import given_back

    signature = job.model.signature
    if signature.changed:
        signature = dataclasses.replace(signature, changed=(), returns=None, returned={}, integers=())
    runner = Runner(executable, job.target, list(inputs.values()))
    on_cpu = "gpu" not in job.target.keys
    kind = "tvm" if not on_cpu else "torch" if signature.of_torch else "numpy"
    args, named = signature.unplaced([given_back(each, kind) for each in runner.arguments])
    model = Compiled(executable, signature, job.target, {}, _no_report)

    def call() -> Any:
        result = model(*args, **named)
        if not on_cpu:
            runner.device.sync()
        return result

    kernels = count_kernels(job.model.mod, job.target, passes).to_dict()
    return Ready(call, runner.outputs(), {"kernels": kernels})


def _no_report() -> Any:
    raise RuntimeError("a contender of bench has no report")


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


def turn(call: Callable[[], Any], restore: Callable[[], None] | None = None) -> list[float]:
    """Return the seconds of single calls, after a phase of calls that do not count.

    Their median counts. A mean would be decided by a few calls during which another process had a thread's core. In
    the first phase caches are filled, and threads get cores of their own.

    Args:
        call: is called repeatedly.
        restore: called before each call, outside its time, or None.
    """
    first = _seconds(call, restore)
    if first >= SLOW:
        return [first]
    _phase(call, restore)
    return _phase(call, restore)


def _phase(call: Callable[[], Any], restore: Callable[[], None] | None) -> list[float]:
    """Return the seconds of consecutive calls."""
    times: list[float] = []
    spent = 0.0
    while (spent < PHASE and len(times) < MOST_CALLS) or (len(times) < LEAST_CALLS and spent < LONGEST):
        times.append(_seconds(call, restore))
        spent += times[-1]
    return times


def _seconds(call: Callable[[], Any], restore: Callable[[], None] | None) -> float:
    if restore is not None:
        restore()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
