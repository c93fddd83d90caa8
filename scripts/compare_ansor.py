# SPDX-License-Identifier: Apache-2.0
"""Compare stitched Relay builds with stock and Ansor-tuned ones, all of them built and run by one process.

    python scripts/compare_ansor.py --model encoder --target llvm --trials 200 --out results/encoder
    python scripts/compare_ansor.py --model bert --layers 12 --target cuda --trials 1000 --out results/bert

Needs a TVM with Relay. Tuning writes its records to the log. Started again with the same log, it resumes. Results are a
table (Markdown), all numbers (JSON) and a plot, each with the conditions of measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
from comparison import ansor, options, tuning_time
from comparison.measure import Built, Variant
from comparison.relay_program import RelayProgram, kernels_noted
from comparison.relay_workloads import RelayWorkload, workload

from tvm_stitch import StitchConfig
from tvm_stitch import relay as stitch

TIMING = (
    "Whole: wall time of graph-executor runs, in blocks. Memory-intensive part: every memory-intensive node of the "
    "graph repeated on its own by TVM's time evaluator ({clock}), its inputs in the cache if they fit; the sum of the "
    "means. Medians and ranges over {blocks} blocks, variants in turn."
)


TEMPLATES = (
    "stitched + templates: templates of tvm_stitch (StitchConfig's default on a CPU) compute products and "
    "convolutions, and nothing is tuned. It differs from stitched, which has TOPI's, in these kernels and in their "
    "epilogues, which may be heavy. It differs from stitched + Ansor in the schedules, and it packs weights at "
    "compile time, which Ansor's builds do not."
)


class Builds:
    """The variants of one workload: four, and on a CPU a fifth."""

    def __init__(self, work: RelayWorkload, target: Any, args: argparse.Namespace) -> None:
        self._work, self._target, self._args = work, target, args
        self._search = ansor.Search(args.cost_model, args.population)
        self.log = Path(args.log or Path(args.out) / "ansor.json")
        self._tuning = options.Stopwatch()
        self.statements: list[str] = []

    def variants(self) -> list[Variant]:
        """Return all variants, in the order of the table."""
        variants = [
            Variant("stock", "stock", self.stock),
            Variant("tuned", "Ansor", self.tuned),
            Variant("stitched", "stitched", self.stitched),
            Variant("stitched_tuned", "stitched + Ansor", self.stitched_tuned),
        ]
        if self._target.kind.name == "llvm":
            variants.append(Variant("stitched_templates", "stitched + templates", self.stitched_templates))
        return variants

    def stock(self) -> Built:
        """Build with plain relay.build."""
        return self._build(nullcontext, nullcontext)

    def tuned(self) -> Built:
        """Build with relay.build and Ansor's schedules for TVM's own fusion."""
        tasks = self._extracted()
        self._tune(tasks, self._args.trials)
        return self._with_schedules(tasks, nullcontext)

    def stitched(self) -> Built:
        """Build with relay.build and stitching. TOPI schedules compute-intensive operators."""
        return self._build(_stitching_alone, nullcontext)

    def stitched_templates(self) -> Built:
        """Build with relay.build, stitching, and templates for compute-intensive operators."""
        self.statements.append(TEMPLATES)
        return self._build(stitch.enable, nullcontext)

    def stitched_tuned(self) -> Built:
        """Build with relay.build, stitching, and Ansor's schedules for the remaining compute-intensive operators.

        Operators that Ansor's own build has too are tuned with that build. The others have ``--stitched-trials``. By
        default all together get as many trials as Ansor gave to the compute-intensive tasks of its own build.
        """
        theirs, ours = self._tune_stitched()
        past = ansor.history(self.log, self._target)
        shared = len(ours.tasks) - len(ours.without(theirs).tasks)
        self.statements.append(
            f"stitched + Ansor: {len(ours.tasks)} compute-intensive tasks with {past.of(ours)} trials in all, "
            f"{shared} of them shared with Ansor's own build, whose {len(theirs.tasks)} compute-intensive tasks had "
            f"{past.of(theirs)}."
        )
        return self._with_schedules(ours, _stitching_alone)

    def tune(self, variants: Sequence[Variant]) -> None:
        """Tune the tasks of these variants, and build nothing."""
        for variant in variants:
            if variant.name == "tuned":
                self._tune(self._extracted(), self._args.trials)
            elif variant.name == "stitched_tuned":
                self._tune_stitched()

    def _extracted(self, within: Callable[[], Any] = nullcontext) -> ansor.Tasks:
        return ansor.extract(self._work.mod, self._work.params, self._target, within)

    def _tune_stitched(self) -> tuple[ansor.Tasks, ansor.Tasks]:
        """Tune tasks of the stitched build alone. Return the compute-intensive tasks of both builds."""
        theirs = self._extracted().compute_intensive()
        ours = self._extracted(_stitching_alone).compute_intensive()
        own, trials = ours.without(theirs), self._args.stitched_trials
        if trials is None:
            past = ansor.history(self.log, self._target)
            trials = max(past.of(theirs) - past.of(ours) + past.of(own), len(own.tasks))
        self._tune(own, trials)
        return theirs, ours

    def _tune(self, tasks: ansor.Tasks, trials: int) -> None:
        if tasks.tasks:
            options.say(f"{len(tasks.tasks)} tasks, {trials} trials in all, log {self.log}")
            left = self._args.time_limit - self._tuning.seconds
            with self._tuning:
                ansor.tune(tasks, self._target, self.log, trials, self._args.seed, left, self._search)

    def _with_schedules(self, tasks: ansor.Tasks, stitching: Callable[[], Any]) -> Built:
        past = ansor.history(self.log, self._target)
        if failed := past.failed_of(tasks):
            self.statements.append(
                f"{failed} of the {past.of(tasks)} trials of these {len(tasks.tasks)} tasks failed."
            )
        seconds, known = tuning_time.spent(
            ansor.times_of(self.log), {task.workload_key for task in tasks.tasks}
        )
        self.statements += tuning_time.gap(past.of(tasks), known)
        built = self._build(stitching, lambda: ansor.tuned_schedules(self.log))
        return Built(built.program, seconds, past.of(tasks), built.compile_seconds)

    def _build(self, stitching: Callable[[], Any], schedules: Callable[[], Any]) -> Built:
        import tvm

        with options.Stopwatch() as watch, kernels_noted() as noted:
            with tvm.transform.PassContext(opt_level=3), schedules(), stitching():
                lib = tvm.relay.build(self._work.mod, self._target, params=self._work.params)
        program = RelayProgram(lib, self._target, self._work.inputs, noted)
        return Built(program, compile_seconds=watch.seconds)


def _stitching_alone() -> Any:
    return stitch.enable(StitchConfig(compute="tvm"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add(parser, tuner="Ansor")
    parser.add_argument("--log", metavar="FILE", help="Ansor's records (default: ansor.json under --out)")
    parser.add_argument(
        "--cost-model", choices=["xgb", "random"], default="xgb", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--population",
        type=int,
        default=2048,
        help="candidates of the evolutionary search (default: %(default)s)",
    )
    parser.add_argument(
        "--stitched-trials",
        type=int,
        metavar="N",
        help="trials of tasks in the stitched build alone (default: as many as Ansor's own build gets)",
    )
    parser.add_argument(
        "--tune-only",
        action="store_true",
        help="tune for the --variants and stop: processes of several GPUs can share the work, each with its own --log, "
        "and a run with these logs in one file compares",
    )
    args = parser.parse_args(argv)

    def prepare(sizes: Any, target: Any) -> tuple[Any, Any]:
        work = workload(args.model, sizes)
        return work, Builds(work, target, args)

    def disclose(builds: Builds, target: Any) -> list[str]:
        gpu = target.kind.name == "cuda"
        statements = [
            f"{args.trials} trials asked for; Ansor's search: sketch policy, {args.cost_model} cost model, population "
            f"{args.population} (its default is 2048), seed {args.seed}.",
            ansor.ANSOR_DEFAULTS,
            *([] if gpu else [ansor.DENIED_ON_CPU]),
            TIMING.format(clock="CUDA events" if gpu else "the CPU's clock", blocks=args.blocks),
        ]
        return statements + builds.statements

    command = ["compare_ansor.py", *(sys.argv[1:] if argv is None else argv)]
    return options.run(parser, args, command, prepare, disclose, Builds.tune if args.tune_only else None)


if __name__ == "__main__":
    sys.exit(main())
