# SPDX-License-Identifier: Apache-2.0
"""Tunes Relay modules with Ansor (auto_scheduler): resumes from its log, stops at a time limit, shows progress."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import auto_scheduler
from tvm.auto_scheduler import relay_integration

from comparison import tuning_time
from comparison.native import device_of
from comparison.progress import Progress
from comparison.take_turns import measured_in_turns
from tvm_stitch.execution.kernel_count import CONTRACTION_NAMES

DENIED_ON_CPU = (
    "Ansor was denied layout rewriting (LayoutRewriteOption.NO_REWRITE, AutoSchedulerLayoutRewrite disabled): with it "
    "this TVM measures no schedule of nn.dense. It could make Ansor's matrix products faster than shown."
)
ANSOR_DEFAULTS = (
    "Ansor has its defaults: sketch policy, 64 measurements a round at most, gradient task scheduler, tasks as "
    "auto_scheduler.extract_tasks gives them (element-wise operators alone are no tasks: TOPI's schedules serve them)."
)


#: Most seconds for building or running one candidate. Ansor's own limits are 15 and 10, but on a busy machine a new
#: worker needs as many to import TVM.
_PATIENCE = 60


@dataclass(frozen=True)
class Search:
    """The options of Ansor's search. The defaults are Ansor's own.

    ``model`` is the cost model, ``xgb`` or ``random``. ``population`` is the number of candidates of the evolutionary
    search.
    """

    model: str = "xgb"
    population: int = 2048

    def __post_init__(self) -> None:
        if self.model not in ("xgb", "random"):
            raise ValueError(f"no cost model '{self.model}': choose xgb or random")
        if self.population < 1:
            raise ValueError(f"the population must be at least 1, got {self.population}")


@dataclass(frozen=True)
class Tasks:
    """Search tasks, and the number of times that each occurs in the model."""

    tasks: Sequence[Any]
    weights: Sequence[int]

    def compute_intensive(self) -> Tasks:
        """Return the tasks whose function has a contraction, by the operators in its name."""
        return self._those(lambda task: any(word in task.desc for word in CONTRACTION_NAMES))

    def without(self, others: Tasks) -> Tasks:
        """Return the tasks that are not in ``others``."""
        known = {task.workload_key for task in others.tasks}
        return self._those(lambda task: task.workload_key not in known)

    def _those(self, wanted: Callable[[Any], bool]) -> Tasks:
        kept = [(task, weight) for task, weight in zip(self.tasks, self.weights) if wanted(task)]
        return Tasks([task for task, _ in kept], [weight for _, weight in kept])


@dataclass(frozen=True)
class History:
    """The contents of a log by task: trials, and the trials that gave no time."""

    trials: Counter[str]
    failed: Counter[str]

    def of(self, tasks: Tasks) -> int:
        """Count the trials of these tasks."""
        return sum(self.trials[task.workload_key] for task in tasks.tasks)

    def failed_of(self, tasks: Tasks) -> int:
        """Count the trials of these tasks that gave no time."""
        return sum(self.failed[task.workload_key] for task in tasks.tasks)


@contextmanager
def layout_rewrite_off() -> Iterator[None]:
    """Make tasks without layout rewriting while this context is open (see ``DENIED_ON_CPU``)."""
    option = auto_scheduler.LayoutRewriteOption
    original = option.get_target_default
    option.get_target_default = staticmethod(lambda *_args: option.NO_REWRITE)
    try:
        yield
    finally:
        option.get_target_default = original


def hardware_params(target: Any) -> Any:
    """Return a GPU's properties for Ansor, read from the device. None on a CPU, which Ansor inspects itself."""
    if target.kind.name != "cuda":
        return None
    device = device_of(target)
    return auto_scheduler.HardwareParams(
        num_cores=-1,
        vector_unit_bytes=16,
        cache_line_bytes=64,
        max_shared_memory_per_block=int(device.max_shared_memory_per_block),
        max_local_memory_per_block=2**31 - 1,
        max_threads_per_block=int(device.max_threads_per_block),
        max_vthread_extent=int(device.warp_size) // 4,
        warp_size=int(device.warp_size),
        target=target,
    )


def extract(mod: Any, params: Any, target: Any, within: Callable[[], Any] = nullcontext) -> Tasks:
    """Extract the tuning tasks of a Relay module with Ansor's own extraction.

    Args:
        within: makes the context for compiling the model, such as ``tvm_stitch.relay.enable``. Ansor compiles in its
            own thread, which contexts of this thread do not reach.
    """
    original = relay_integration.call_all_topi_funcs

    def compile_within(*args: Any, **kwargs: Any) -> None:
        with within():
            original(*args, **kwargs)

    relay_integration.call_all_topi_funcs = compile_within
    try:
        with layout_rewrite_off():
            tasks, weights = auto_scheduler.extract_tasks(
                mod["main"], params, target, hardware_params=hardware_params(target)
            )
    finally:
        relay_integration.call_all_topi_funcs = original
    return Tasks(tasks, weights)


@contextmanager
def tuned_schedules(log: Path) -> Iterator[None]:
    """Let ``relay.build`` use the best schedules of a log while this context is open."""
    options = {"relay.backend.use_auto_scheduler": True}
    with auto_scheduler.ApplyHistoryBest(str(log)):
        with tvm.transform.PassContext(
            opt_level=3, config=options, disabled_pass=["AutoSchedulerLayoutRewrite"]
        ):
            yield


def history(log: Path, target: Any) -> History:
    """Return the records of a log for this target, or nothing if the file does not exist.

    Raises:
        ValueError: when the log holds records, but all for other targets: it belongs to another machine or run.
    """
    counts: Counter[str] = Counter()
    others: set[str] = set()
    failed: Counter[str] = Counter()
    if log.exists() and log.stat().st_size:
        for measured, result in auto_scheduler.RecordReader(str(log)):
            if str(measured.task.target) != str(target):
                others.add(str(measured.task.target))
                continue
            counts[measured.task.workload_key] += 1
            failed[measured.task.workload_key] += result.error_no != 0
    if others and not counts:
        raise ValueError(
            f"{log} was tuned for {', '.join(sorted(others))}, not for {target}: give another --log"
        )
    return History(counts, failed)


class _TimeIsUp(Exception):
    """Ends the task scheduler between two rounds."""


class _Watch(auto_scheduler.task_scheduler.TaskSchedulerCallback):
    """Shows progress and notes the time after every round, and stops when the time is up."""

    def __init__(self, progress: Progress, deadline: float, times: Path) -> None:
        self._progress, self._deadline, self._times = progress, deadline, times
        self._noted = time.monotonic()
        self._done = 0

    def post_tune(self, task_scheduler: Any, task_id: int) -> None:
        costs = [cost for cost in task_scheduler.best_costs if cost < 1e9]
        complete = len(costs) == len(task_scheduler.tasks)
        best = float(task_scheduler.cur_score) if complete else None
        self._progress.show(len(costs), task_scheduler.ct, best)
        now = time.monotonic()
        trials = {task_scheduler.tasks[task_id].workload_key: task_scheduler.ct - self._done}
        tuning_time.note(self._times, now - self._noted, trials)
        self._noted, self._done = now, task_scheduler.ct
        if now > self._deadline:
            raise _TimeIsUp


def tune(
    extracted: Tasks,
    target: Any,
    log: Path,
    trials: int,
    seed: int,
    limit: float = float("inf"),
    search: Search = Search(),
) -> None:
    """Tune until the log holds ``trials`` for these tasks, or ``limit`` seconds are over.

    Args:
        trials: in all, those that the log holds already included.
        seed: of the search. Measured times still differ from run to run.

    Raises:
        ValueError: when ``trials`` does not even give each task one.
    """
    if not extracted.tasks:
        return
    if trials < len(extracted.tasks):
        raise ValueError(
            f"{trials} trials are too few for {len(extracted.tasks)} tasks: each needs at least one"
        )
    past = history(log, target)
    left = trials - past.of(extracted)
    if left <= 0 or limit <= 0:
        return
    order = sorted(range(len(extracted.tasks)), key=lambda i: past.trials[extracted.tasks[i].workload_key])
    chosen = sorted(order[:left])  # Ansor refuses fewer trials than tasks: the least tuned ones get them
    tasks, weights = [extracted.tasks[i] for i in chosen], [extracted.weights[i] for i in chosen]
    log.parent.mkdir(parents=True, exist_ok=True)
    resumed = str(log) if past.of(extracted) else None
    start = time.monotonic()
    watch = _Watch(Progress(len(tasks), left, past.of(extracted), limit), start + limit, times_of(log))
    scheduler = auto_scheduler.TaskScheduler(tasks, weights, load_log_file=resumed, callbacks=[watch])
    options = auto_scheduler.TuningOptions(
        num_measure_trials=left,
        builder=auto_scheduler.LocalBuilder(timeout=_PATIENCE, n_parallel=len(os.sched_getaffinity(0))),
        runner=_runner(target),
        measure_callbacks=[auto_scheduler.RecordToFile(str(log))],
        verbose=0,
    )
    random.seed(seed)
    np.random.seed(seed)
    with measured_in_turns(), suppress(_TimeIsUp):
        scheduler.tune(options, search_policy=_policies(tasks, search, resumed, seed, left))


def times_of(log: Path) -> Path:
    """Return the file next to a log that holds the tuning time."""
    return log.with_name(log.name + ".times")


def _runner(target: Any) -> Any:
    if target.kind.name == "cuda":
        return auto_scheduler.LocalRunner(timeout=_PATIENCE)  # the mean over 100 ms
    # As its own tutorial measures networks on a CPU: single runs with inputs from memory.
    return auto_scheduler.LocalRunner(timeout=_PATIENCE, repeat=10, enable_cpu_cache_flush=True)


def _policies(tasks: Sequence[Any], search: Search, resumed: str | None, seed: int, trials: int) -> list[Any]:
    """Make a sketch policy for each task, all with one cost model. Candidates in the log are not measured again."""
    if search.model == "xgb":
        cost_model = auto_scheduler.XGBModel(
            num_warmup_sample=len(tasks) * min(64, trials // len(tasks)), seed=seed
        )
        if resumed:
            cost_model.update_from_file(resumed)
    else:
        cost_model = auto_scheduler.RandomModel()
    preload = [auto_scheduler.PreloadMeasuredStates(resumed)] if resumed else None
    return [
        auto_scheduler.SketchPolicy(
            task,
            cost_model,
            params={"evolutionary_search_population": search.population},
            seed=seed + place,
            verbose=0,
            init_search_callbacks=preload,
        )
        for place, task in enumerate(tasks)
    ]
