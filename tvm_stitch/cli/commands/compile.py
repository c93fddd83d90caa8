# SPDX-License-Identifier: Apache-2.0
"""``tvm-stitch compile``: write a library, and a manifest that describes it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..dump import add_dump, dumped
from ..errors import Failure, UsageError, message_of
from ..options import add_model_options, path_of
from ..outputs import written_to
from ..progress import Progress, one_line, tell
from ..readers.model import check_options, read_job
from ..versions import versions

SUMMARY = "write a library and a manifest"
LIBRARY, MANIFEST = "model.so", "manifest.json"


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
    job = read_job(args, progress)
    check_linker(job.target)  # before minutes of work whose result could not be written
    from ...deploy.cpu_flags import needed_flags
    from ...execution.count import count_lowered
    from ...relax.build import build
    from ...relax.lowering.needs import needs
    from ..other_targets import by_tvm_alone

    with written_to(args.output, "-o") as folder:
        with progress(f"compiling for {args.target}"), by_tvm_alone(job.target), dumped(args):
            built = build(job.model.mod, job.target, job.config)
        left = built.recorder.declined
        for name, reason in left.items():
            tell(f"tvm-stitch: left to TVM: {name}: {reason}")
        kernels = count_lowered(built.lowered, job.target)
        library = args.output / LIBRARY
        data = {
            "model": str(args.model),
            "library": LIBRARY,
            "target": json.loads(str(job.target)),
            "cpu_flags": needed_flags(job.target),
            "config": job.config.to_dict(),
            "precision": args.precision,
            "products": args.products,
            "inputs": [dataclasses.asdict(spec) for spec in job.model.inputs],
            "outputs": [dataclasses.asdict(spec) for spec in job.model.outputs],
            "kernels": kernels.to_dict(),
            "stitched": sorted(built.recorder.plans),
            "left": left,
            "versions": versions(),
        }
        with progress(f"writing {library}"), by_tvm_alone(job.target):
            compiled = _export(built.executable, folder / LIBRARY, job.target)
        data["needs"] = needs(built.lowered, job.target, compiled)
        (folder / MANIFEST).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    counted = "1 kernel" if kernels.total == 1 else f"{kernels.total} kernels"
    counted += f" a call, {kernels.memory_intensive} of them memory-intensive"
    return data, one_line(f"{library}: {counted}")


def _export(executable: Any, path: Path, target: Any) -> bool:
    """Write a model's library, with compiled CUDA kernels if possible. Return whether they are compiled."""
    from ...deploy.export import export_library, kernel_compiler
    from ...deploy.linking import linking
    from ...support.failures import reraise_fatal

    if target.kind.name == "cuda" and kernel_compiler() is not None:
        try:
            export_library(executable, path, target)
            return True
        except Exception as error:  # the toolkit may be older than the architecture
            reraise_fatal(error)
            reason = message_of(error).splitlines()[-1]
            tell(f"tvm-stitch: kernels are compiled when they are first launched: {reason}")
    with linking(path):
        executable.export_library(str(path))
    return False
