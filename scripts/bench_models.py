#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time whole models with stitching, stock TVM, PyTorch, Inductor, ONNX Runtime and XLA, in one run.

    python scripts/bench_models.py --models lstm,unet-block --target native
    python scripts/bench_models.py --models all --batch 8 --target cuda --dtype float16 --cuda-graph --json results.json
    python scripts/bench_models.py --models timm:convnextv2_tiny,transformers:roberta --target cuda --cuda-graph
    python scripts/bench_models.py --models path/to/model.onnx --no-stock

Weights are random and seeded, so nothing is downloaded. Every contender has a process of its own, with as many threads
as the others, and builds the model there anew. They are prepared one after the other (or --at-once). Then they take
turns: a block of calls each, a pause in which spinning threads go to sleep, the next contender. There are several
rounds, every other one backwards. So a machine that slows down slows all of them, and no pool of threads disturbs
another one. A contender that fails, takes too long or gives wrong results is left out with its reason, and the run
continues. Every result is compared with the same model's in float64.

Exit code: 0 the stitched build of every model is right, 1 one is wrong or failed, 2 a usage error, 130 an interrupt.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
from _gpu import need_gpu
from models import plot, report
from models.job import Job
from models.measure import Effort, measure_all
from models.process import CONTENDERS, REFERENCE
from models.registry import MODELS, check_packages, find
from models.spec import DTYPES, SIZES, MissingPackages

from tvm_stitch.support.cores import physical_cores

PACKAGES = ("apache-tvm", "torch", "onnxruntime", "jax", "torchax", "transformers", "timm", "triton")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        for model in MODELS.values():
            print(f"{model.name:16} {model.note}{_needs(model.packages)}")
        return 0
    names = _names(args, parser)
    contenders = _contenders(args, parser)
    need_gpu(args.target)
    try:
        check_packages([known for name in names if (known := find(name)) is not None])
        if args.plot:
            plot.check()
    except (MissingPackages, plot.NoMatplotlib) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options, shapes = _options(args, parser)
    limits = {"": args.limit, "stock": min(args.stock_limit, args.limit), REFERENCE: args.limit}
    effort = Effort(args.seconds, args.rounds, limits, args.at_once)
    models: list[dict[str, Any]] = []
    for at in range(0, len(names), args.models_at_once):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            jobs: list[Job] = []
            for name in names[at : at + args.models_at_once]:
                place = Path(folder) / str(len(jobs))
                place.mkdir()
                jobs.append(
                    Job(
                        name,
                        args.size,
                        args.batch,
                        args.dtype,
                        args.target,
                        args.threads,
                        str(place),
                        args.cuda_graph,
                        args.decompose,
                        args.products,
                        options,
                        shapes,
                        args.draws,
                    )
                )
            for result in measure_all(jobs, contenders, effort, _tell):
                models.append(result)
                print(report.detail(result, args.markdown), end="\n\n", flush=True)
                if args.json:  # after each model, so that an interrupt keeps the results
                    _write(args, models, contenders)
    if args.plot:
        plot.save(models, contenders, Path(args.plot))
    references = {model["reference"].get("what") for model in models} - {None}
    print(report.LEGEND.format(reference=" or ".join(sorted(references)) or "nothing"), end="\n\n")
    print(report.overview(models, contenders, args.markdown))
    rows = [model["contenders"].get(report.OURS, {}) for model in models]
    return 1 if any("failed" in row for row in rows) else 0


_MODELS = "comma-separated names (--list), names of timm:, torchvision: or transformers:, paths of ONNX files, or all"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", default="all", help=_MODELS)
    add("--list", action="store_true", help="list the models and end")
    add("--size", choices=SIZES, default="full", help="size of the models (default: %(default)s)")
    add("--batch", type=_positive, default=1, help="batch size (default: %(default)s)")
    add("--dtype", choices=DTYPES, default="float32", help="type of the models (default: %(default)s)")
    add("--shape", action="append", default=[], metavar="INPUT=1,128", help="shape of an ONNX file's input")
    add(
        "--target",
        choices=["llvm", "native", "cuda"],
        default="native",
        help="target of the TVM contenders; llvm is the baseline, SSE2 on x86 (default: %(default)s)",
    )
    add(
        "--threads",
        type=_positive,
        default=physical_cores(),
        help="threads of every contender (default: %(default)s)",
    )
    add("--contenders", help=f"comma-separated, of {', '.join(CONTENDERS)} (default: those of the target)")
    add("--no-stock", action="store_true", help="leave stock TVM out")
    add(
        "--cuda-graph",
        action="store_true",
        help="replay CUDA graphs in the TVM contenders; adds inductor-graphs (inductor-tuned has graphs too)",
    )
    add("--decompose", action="store_true", help="decompose batch norms first (the TVM contenders)")
    add(
        "--products",
        choices=["float32", "half"],
        default="float32",
        help="result type of products in a half model, and of their sums (the TVM contenders)",
    )
    add("--config", action="append", default=[], metavar="KEY=VALUE", help="options of StitchConfig")
    add("--seconds", type=float, default=1.0, help="seconds of a block of calls (default: %(default)s)")
    add("--rounds", type=_positive, default=5, help="blocks of each contender (default: %(default)s)")
    add(
        "--at-once",
        type=_positive,
        default=1,
        help="contenders prepared at the same time, if there are cores for them (default: %(default)s)",
    )
    add(
        "--models-at-once",
        type=_positive,
        default=1,
        help="models prepared before the first is timed; each keeps its memory (default: %(default)s)",
    )
    add(
        "--draws",
        type=_positive,
        default=1,
        help="number of random inputs for the errors (default: %(default)s)",
    )
    add("--limit", type=float, default=900, help="most seconds to prepare a contender (default: %(default)s)")
    add("--stock-limit", type=float, default=180, help="the same for stock TVM (default: %(default)s)")
    add("--json", metavar="FILE", help="write all measurements to this file")
    add("--plot", metavar="FILE", help="draw the ratios to this file, with matplotlib")
    add("--markdown", action="store_true", help="tables as Markdown")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _names(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    names = list(MODELS) if args.models == "all" else args.models.split(",")
    files = [name for name in names if name.endswith(".onnx")]
    if unknown := [name for name in names if name not in files and find(name) is None]:
        parser.error(
            f"unknown models {', '.join(unknown)}: choose from {', '.join(MODELS)}, a name such as "
            "timm:convnextv2_tiny, torchvision:densenet121 or transformers:roberta, or an ONNX file"
        )
    if absent := [name for name in files if not Path(name).is_file()]:
        parser.error(f"no file {', '.join(absent)}")
    if files and args.dtype != "float32":
        parser.error("an ONNX file is run in the types that it has: leave --dtype out")
    return names


def _contenders(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    names = ["stitched", "stock", "eager", "inductor", "inductor-frozen"]
    names += ["inductor-graphs"] if args.cuda_graph else []
    names += ["inductor-tuned"] if args.target == "cuda" else []
    names += ["onnxruntime", "xla"]
    if args.contenders:
        names = args.contenders.split(",")
    if unknown := [name for name in names if name not in CONTENDERS]:
        parser.error(f"unknown contenders {', '.join(unknown)}: choose from {', '.join(CONTENDERS)}")
    return [name for name in names if not (args.no_stock and name == "stock")]


def _options(
    args: argparse.Namespace, parser: argparse.ArgumentParser
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return options of StitchConfig, and shapes of an ONNX file's inputs."""
    if not args.config and not args.shape:
        return {}, {}
    # Not at the top: usage errors and --list need no TVM.
    from tvm_stitch import StitchConfig
    from tvm_stitch.cli.errors import UsageError
    from tvm_stitch.cli.options import parse_config, parse_shapes

    try:
        options = parse_config(args.config)
        StitchConfig(**options)
        return options, parse_shapes(args.shape)
    except (UsageError, ValueError) as error:
        parser.error(str(error))


def _write(args: argparse.Namespace, models: list[dict[str, Any]], contenders: list[str]) -> None:
    from comparison.disclosure import facts

    devices = {row["device"] for m in models for row in m["contenders"].values() if "device" in row}
    settings = {key: value for key, value in vars(args).items() if key not in ("json", "plot", "list")}
    data = {
        "environment": facts(sys.argv, ", ".join(sorted(devices))) | {"versions": _versions()},
        "settings": settings | {"contenders": contenders},
        "models": models,
        "summary": report.summary(models, contenders),
    }
    Path(args.json).write_text(json.dumps(data, indent=1))


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _needs(packages: Sequence[str]) -> str:
    return f" (needs {', '.join(packages)})" if packages else ""


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
