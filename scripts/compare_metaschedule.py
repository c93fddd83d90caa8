# SPDX-License-Identifier: Apache-2.0
"""Compare stitched Relax builds with stock and MetaSchedule-tuned ones, all of them built and run by one process.

    python scripts/compare_metaschedule.py --model encoder --target llvm --trials 200 --out results/encoder
    python scripts/compare_metaschedule.py --model bert --layers 12 --target cuda --trials 1000 --out results/bert

Tuning writes its records to the database. Started again with the same database, it resumes. Results are a table
(Markdown), all numbers (JSON) and a plot, each with the conditions of measurement.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
from comparison import metaschedule, options, tuning_time
from comparison.measure import Built, Variant
from comparison.relax_program import RelaxProgram
from comparison.relax_workloads import RelaxWorkload, workload
from tvm import relax

import tvm_stitch.relax

TIMING = (
    "Whole: wall time of calls of the virtual machine, in blocks. Memory-intensive part: every memory-intensive "
    "function that it calls repeated on its own by TVM's time evaluator ({clock}), its inputs in the cache if they "
    "fit; the sum of the means. Medians and ranges over {blocks} blocks, variants in turn."
)
SCALAR = (
    "TVM has no default schedules for CPUs: what no tuning record serves runs as plain loops on one core."
)


class Builds:
    """The four variants of one workload."""

    def __init__(self, work: RelaxWorkload, target: Any, args: argparse.Namespace) -> None:
        self._work, self._target, self._args = work, target, args
        self.records = metaschedule.Records(Path(args.log or Path(args.out) / "metaschedule"))
        self._tuning = options.Stopwatch()
        self.statements: list[str] = []

    def variants(self) -> list[Variant]:
        """Return all variants, in the order of the table."""
        return [
            Variant("stock", "stock", self.stock),
            Variant("tuned", "MetaSchedule", self.tuned),
            Variant("stitched", "stitched", self.stitched),
            Variant("stitched_tuned", "stitched + MetaSchedule", self.stitched_tuned),
        ]

    def stock(self) -> Built:
        """Build with TVM's default pipeline."""
        return self._build(relax.get_default_pipeline(self._target))

    def tuned(self) -> Built:
        """Build with TVM's own fusion and MetaSchedule's schedules."""
        tasks = metaschedule.extract(self._work.mod, self._target, stitched=False)
        return self._tuned(tasks, self._args.trials, stitched=False)

    def stitched(self) -> Built:
        """Build with the stitching pipeline."""
        return self._build(tvm_stitch.relax.pipeline(self._target))

    def stitched_tuned(self) -> Built:
        """Build with stitching, and MetaSchedule's schedules for the remaining compute-intensive functions.

        These have as many trials as MetaSchedule gave to the compute-intensive tasks of TVM's own fusion. Tasks of both
        builds keep theirs.
        """
        theirs, ours = (
            metaschedule.extract(self._work.mod, self._target, stitched).compute_intensive()
            for stitched in (False, True)
        )
        trials, _ = self.records.of(theirs)
        known = {self.records.key(task) for task in theirs.tasks}
        shared = sum(self.records.key(task) in known for task in ours.tasks)
        self.statements.append(
            f"stitched + MetaSchedule: {len(ours.tasks)} compute-intensive tasks, {shared} of them shared with "
            f"MetaSchedule's own build, tuned until they had as many trials ({trials}) as its {len(theirs.tasks)}."
        )
        return self._tuned(ours, trials, stitched=True)

    def _tuned(self, tasks: metaschedule.Tasks, trials: int, stitched: bool) -> Built:
        args = self._args
        if tasks.tasks:
            options.say(f"{len(tasks.tasks)} tasks, {trials} trials in all, records in {self.records.folder}")
            left = args.time_limit - self._tuning.seconds
            with self._tuning:
                metaschedule.tune(
                    tasks, self.records, trials, args.seed, left, args.cost_model, args.strategy
                )
        finished, failed = self.records.of(tasks)
        if failed:
            self.statements.append(
                f"{failed} of the {finished} trials of these {len(tasks.tasks)} tasks failed."
            )
        built = self._build(metaschedule.tuned_pipeline(self._target, stitched, self.records.database))
        seconds, known = self.records.seconds_of(tasks)
        self.statements += tuning_time.gap(finished, known)
        return Built(built.program, seconds, finished, built.compile_seconds)

    def _build(self, pipeline: Any) -> Built:
        program = RelaxProgram(self._work.mod, self._target, pipeline, self._work.inputs)
        return Built(program, compile_seconds=program.compile_seconds)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add(parser, tuner="MetaSchedule")
    has_xgboost = importlib.util.find_spec("xgboost") is not None
    parser.add_argument(
        "--log", metavar="DIR", help="MetaSchedule's database (default: metaschedule under --out)"
    )
    parser.add_argument(
        "--cost-model",
        choices=["xgb", "mlp", "random"],
        default="xgb" if has_xgboost else "random",
        help="(default: xgb, MetaSchedule's own, if xgboost is installed, else random)",
    )
    parser.add_argument(
        "--strategy",
        choices=["evolutionary", "replay-trace"],
        default="evolutionary",
        help="of the search; replay-trace only samples, which is quick (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    if importlib.util.find_spec("psutil") is None:
        parser.error("MetaSchedule needs psutil: pip install psutil")
    if args.cost_model == "xgb" and not has_xgboost:
        parser.error("--cost-model xgb needs xgboost: pip install xgboost (or xgboost-cpu)")

    def prepare(sizes: Any, target: Any) -> tuple[Any, Any]:
        work = workload(args.model, sizes)
        return work, Builds(work, target, args)

    def disclose(builds: Builds, target: Any) -> list[str]:
        gpu = target.kind.name == "cuda"
        denied = "" if args.cost_model == "xgb" else " (its default, xgb, was denied it)"
        return [
            f"{args.trials} trials asked for; MetaSchedule's search: {args.strategy} (its default is evolutionary), "
            f"cost model {args.cost_model}{denied}, seed {args.seed}.",
            metaschedule.DEFAULTS,
            *([] if gpu else [SCALAR]),
            TIMING.format(clock="CUDA events" if gpu else "the CPU's clock", blocks=args.blocks),
            *builds.statements,
        ]

    command = ["compare_metaschedule.py", *(sys.argv[1:] if argv is None else argv)]
    return options.run(parser, args, command, prepare, disclose)


if __name__ == "__main__":
    sys.exit(main())
