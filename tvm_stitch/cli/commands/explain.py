# SPDX-License-Identifier: Apache-2.0
"""``tvm-stitch explain``: the kernels of a model, as text, as a page and as a timeline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..dump import add_dump, dumped
from ..errors import UsageError
from ..measuring import random_inputs_here
from ..options import (
    add_model_options,
    add_timing,
    check_timing,
    make_config,
    parse_config,
    parse_target,
    path_of,
)
from ..outputs import check_files, files_for
from ..progress import Progress
from ..readers.model import check_options, read_job

SUMMARY = "say which kernels a model gets, how they run, and why each boundary stands"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_options(command, optional=True)
    command.add_argument(
        "--html",
        metavar="FILE",
        type=path_of,
        help="write a page of its own: the model's graph, every kernel, and every boundary",
    )
    command.add_argument(
        "--trace",
        metavar="FILE",
        type=path_of,
        help="write one call as a timeline for ui.perfetto.dev",
    )
    command.add_argument(
        "--measure",
        action="store_true",
        help="run the model here on random inputs, stitched and with stock TVM in turn, and time every kernel; "
        "without it, times are the cost model's",
    )
    add_timing(command)
    command.add_argument(
        "--why",
        nargs=2,
        metavar=("A", "B"),
        help="say why two operators, or two kernels, are or are not one kernel",
    )
    command.add_argument("-v", "--verbose", action="store_true", help="print every plan and every boundary")
    command.add_argument(
        "--passes",
        action="store_true",
        help="print the compiler's passes instead, with their conditions and order; needs no model. "
        "Passes that do not run for --target and --config begin with -",
    )
    add_dump(command)


def check(args: argparse.Namespace) -> None:
    """Raise a UsageError for invalid options."""
    if args.passes:
        if args.model or args.html or args.trace or args.measure or args.why or args.dump:
            raise UsageError("--passes is about no model; give it with --target and --config only")
        make_config(parse_config(args.config))
        return
    if args.model is None:
        raise UsageError("give a MODEL to explain, or --passes")
    check_files(_files(args), [args.model])
    check_timing(args)
    if args.measure and args.why:
        raise UsageError("--why says reasons, which --measure does not change; give one of them")
    check_options(args)


def _files(args: argparse.Namespace) -> dict[str, Path | None]:
    return {"--html": args.html, "--trace": args.trace}


def run(args: argparse.Namespace, progress: Progress) -> tuple[dict[str, Any], str]:
    """Explain a model. Return the report as data and as text."""
    if args.passes:
        return _passes(args)
    with files_for(_files(args)) as files:
        job = read_job(args, progress, names=True)
        from ... import explain
        from ..other_targets import by_tvm_alone

        inputs = list(random_inputs_here(job, args.seed).values()) if args.measure else []
        with progress(f"planning for {args.target}"), dumped(args):
            report = explain(job.model.mod, job.target, job.config)
        if args.measure:
            with progress(f"compiling and timing every kernel, {args.repeats} calls"):
                report = report.measure(inputs, args.repeats)
        if "--html" in files:
            with progress(f"writing {args.html}"), by_tvm_alone(job.target):
                files["--html"].write_text(report.to_html(args.model.stem), encoding="utf-8")
        if "--trace" in files:
            with progress(f"writing {args.trace}"), by_tvm_alone(job.target):
                files["--trace"].write_text(json.dumps(report.to_trace()), encoding="utf-8")
        if args.why:
            try:
                answer = report.why(*args.why)
            except ValueError as error:
                raise UsageError(f"--why: {error}") from None
            return {"why": answer}, answer
    return report.to_dict(), report.verbose() if args.verbose else str(report)


def _passes(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from ...relax.pipeline import passes_table

    text = passes_table(parse_target(args.target), make_config(parse_config(args.config)))
    return {"passes": text}, text
