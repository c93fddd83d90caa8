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

STOCK = "stock"
"""The word of ``--against`` for TVM's own pipeline."""

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
        "--save", metavar="FILE", type=path_of, help="write the report, for --against of another call"
    )
    command.add_argument(
        "--against",
        metavar="FILE|stock",
        help="print the difference to a saved report of the model, or to stock TVM; --html writes it as a page",
    )
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
        others = (
            args.model,
            args.html,
            args.trace,
            args.measure,
            args.why,
            args.dump,
            args.save,
            args.against,
        )
        if any(others):
            raise UsageError("--passes is about no model; give it with --target and --config only")
        make_config(parse_config(args.config))
        return
    if args.model is None:
        raise UsageError("give a MODEL to explain, or --passes")
    if args.against == "":
        raise UsageError("--against is empty; give the file of a saved report, or stock")
    saved = [Path(args.against)] if args.against not in (None, STOCK) else []
    check_files(_files(args), [args.model, *saved])
    if args.why and args.against:
        raise UsageError("--why is about one report, and --against about two; give one of them")
    check_timing(args)
    if args.measure and args.why:
        raise UsageError("--why says reasons, which --measure does not change; give one of them")
    check_options(args)


def _files(args: argparse.Namespace) -> dict[str, Path | None]:
    return {"--html": args.html, "--trace": args.trace, "--save": args.save}


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
        compared = _compared(report, args.against) if args.against else None
        if "--html" in files:
            with progress(f"writing {args.html}"), by_tvm_alone(job.target):
                page = (compared or report).to_html(args.model.stem)
                files["--html"].write_text(page, encoding="utf-8")
        if "--save" in files:
            with progress(f"writing {args.save}"), by_tvm_alone(job.target):
                report.save(files["--save"])
        if "--trace" in files:
            with progress(f"writing {args.trace}"), by_tvm_alone(job.target):
                files["--trace"].write_text(json.dumps(report.to_trace()), encoding="utf-8")
        if args.why:
            try:
                answer = report.why(*args.why)
            except ValueError as error:
                raise UsageError(f"--why: {error}") from None
            return {"why": answer}, answer
        if compared is not None:
            return compared.to_dict(), str(compared)
    return report.to_dict(), report.verbose() if args.verbose else str(report)


def _compared(report: Any, against: str) -> Any:
    try:
        return report.against(against)
    except OSError as error:
        raise UsageError(f"--against: {against} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--against: {error}") from None


def _passes(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from ...relax.pipeline import passes_table

    text = passes_table(parse_target(args.target), make_config(parse_config(args.config)))
    return {"passes": text}, text
