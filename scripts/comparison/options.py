# SPDX-License-Identifier: Apache-2.0
"""The command line and the main steps that all comparisons share."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from comparison import disclosure, native, workload_sizes
from comparison.measure import run_variants
from comparison.plot import save_plots
from comparison.results import Comparison
from comparison.table import markdown

MODELS = "encoder, bert, add_layernorm_softmax, or a file MODEL.onnx"


def say(line: str) -> None:
    """Report progress to the user, separately from the results."""
    print(line, file=sys.stderr, flush=True)


class Stopwatch:
    """Measure the time inside its contexts. ``seconds`` is the sum."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.seconds += time.perf_counter() - self._start


def add(parser: argparse.ArgumentParser, tuner: str) -> None:
    """Add the options of every comparison."""
    parser.add_argument("--model", default="encoder", help=f"{MODELS} (default: %(default)s)")
    workload_sizes.add_options(parser)
    parser.add_argument(
        "--target",
        default="llvm",
        help="llvm (this CPU), cuda (this GPU), or a TVM target (default: %(default)s)",
    )
    parser.add_argument(
        "--trials", type=int, default=200, help=f"{tuner}'s, earlier runs' included (default: %(default)s)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=float("inf"),
        metavar="S",
        help="seconds of tuning in this run; 0 only uses the log",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search (default: %(default)s)")
    parser.add_argument(
        "--variants", help="comma-separated names of columns, such as stock,stitched; all by default"
    )
    parser.add_argument("--blocks", type=int, default=7, help="turns of each variant (default: %(default)s)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="variants with a larger error are not timed (default: %(default)s)",
    )
    parser.add_argument("--out", default="comparison", metavar="DIR", help="(default: %(default)s)")


def run(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    command: Sequence[str],
    prepare: Callable[[Any, Any], tuple[Any, Any]],
    disclose: Callable[[Any, Any], list[str]],
    instead: Callable[[Any, Any], None] | None = None,
) -> int:
    """Build, check and time all variants, and write table, numbers and plot. Return the exit code.

    Args:
        command: the program's name and arguments, to disclose.
        prepare: makes of sizes and target the workload (``title``, ``reference()``) and its builds (``variants()``).
        disclose: returns statements to print with the figures, from the builds and the target.
        instead: called with the builds and the chosen variants instead of comparing them.
    """
    try:
        sizes = workload_sizes.sizes_from(args)
        target = native.target_of(args.target)
        work, builds = prepare(sizes, target)
        variants = builds.variants()
        if args.variants:
            known = {variant.name: variant for variant in variants}
            if unknown := set(args.variants.split(",")) - set(known):
                raise ValueError(f"no variant {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
            variants = [known[name] for name in args.variants.split(",")]
        if args.blocks < 1 or args.trials < 1:
            raise ValueError("--blocks and --trials must be at least 1")
    except (ValueError, FileNotFoundError) as err:
        parser.error(str(err))
    if instead is not None:
        instead(builds, variants)
        return 0
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    facts = disclosure.facts(command, native.device_name(target))
    say(f"{work.title} on {target}")
    records = run_variants(variants, work.reference(), args.blocks, args.tolerance, say)
    comparison = Comparison(work.title, str(target), records, facts, disclose(builds, target))
    page = markdown(comparison)
    (out / "table.md").write_text(page)
    (out / "results.json").write_text(comparison.to_json())
    written = [out / "table.md", out / "results.json", *save_plots(comparison, out)]
    say(f"written: {', '.join(map(str, written))}")
    print(page)
    return 1 if any(record.problem for record in records) else 0
