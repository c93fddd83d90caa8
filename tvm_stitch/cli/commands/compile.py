# SPDX-License-Identifier: Apache-2.0
"""``tvm-stitch compile``: write a library, and a manifest that describes it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...deploy.folder import LIBRARY
from ..dump import add_dump, dumped
from ..errors import Failure, UsageError
from ..options import add_model_options, path_of
from ..outputs import written_to
from ..progress import Progress, one_line, tell
from ..readers.model import check_options, read_job

SUMMARY = "write a library and a manifest"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_options(command)
    command.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=path_of,
        default=Path("stitched"),
        help="(default: %(default)s)",
    )
    add_dump(command)


def check(args: argparse.Namespace) -> None:
    """Raise a UsageError for invalid options."""
    if args.output == Path():
        raise UsageError("-o is empty; give the folder to write to")
    check_options(args)


def run(args: argparse.Namespace, progress: Progress) -> tuple[dict[str, Any], str]:
    """Compile a model. Return the manifest, and a line about it."""
    from ...deploy.linking import LinkError, check_linker

    try:
        return _compiled(args, progress, check_linker)
    except LinkError as error:
        raise Failure(str(error)) from error


def _compiled(
    args: argparse.Namespace, progress: Progress, check_linker: Callable[[Any], None]
) -> tuple[dict[str, Any], str]:
    job = read_job(args, progress, state="in_place")
    check_linker(job.target)  # before minutes of work whose result could not be written
    from ...front.saved import facts_of, write
    from ...relax.build import build
    from ..other_targets import by_tvm_alone

    with written_to(args.output, "-o") as folder:
        with progress(f"compiling for {args.target}"), by_tvm_alone(job.target), dumped(args):
            built = build(job.model.mod, job.target, job.config)
        for name, reason in built.recorder.declined.items():
            _tell(f"left to TVM: {name}: {reason}")
        facts = {
            "model": str(args.model),
            "precision": args.precision,
            "products": args.products,
            **facts_of(built, job.target, job.config),
        }
        library = args.output / LIBRARY
        with progress(f"writing {library}"), by_tvm_alone(job.target):
            data = write(folder, built.executable, job.target, job.model.signature, facts, _tell)
    kernels = data["kernels"]
    counted = "1 kernel" if kernels["total"] == 1 else f"{kernels['total']} kernels"
    counted += f" a call, {kernels['memory_intensive']} of them memory-intensive"
    return data, one_line(f"{library}: {counted}")


def _tell(text: str) -> None:
    tell(f"tvm-stitch: {text}")
