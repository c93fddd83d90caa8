# SPDX-License-Identifier: Apache-2.0
"""The command line: tvm-stitch compile|explain|bench MODEL.onnx --target TARGET.

Results go to stdout (with --json, JSON and nothing else), progress to stderr.
Exit codes: 0 fine, 1 failure, 2 usage error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import logging
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .failures import error_text, let_pass
from .graph.dtype import HALF
from .interrupts import watched
from .written_whole import written_whole

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_TARGET_HELP = (
    "llvm; native (llvm for this CPU); cuda (this machine's device, sm_90 without one); "
    "a tag such as nvidia/nvidia-h100; "
    'JSON such as \'{"kind": "cuda", "arch": "sm_80"}\'; or options such as "cuda -arch=sm_80"'
)


class UsageError(Exception):
    """Something the caller can put right: the message says what and how."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        return _run(argv)
    except KeyboardInterrupt:  # at whatever moment, in the handlers below too
        print("tvm-stitch: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has written its message, or the help
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    progress = _Progress(enabled=not args.quiet)
    logging.getLogger(__package__).addHandler(logging.NullHandler())  # what it warns of is in what is told
    try:
        # The compiler's own prints are no results.
        with watched(), contextlib.redirect_stdout(sys.stderr):
            data, text = args.run(args, progress)
        print(json.dumps(data, indent=2) if args.json else text)
    except UsageError as error:
        print(f"tvm-stitch: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except Exception as error:  # a failure ends in one line, not in a traceback
        if args.debug:
            raise
        message = f"{type(error).__name__}: {error_text(error)}"
        print(f"tvm-stitch: {args.command} failed: {message}", file=sys.stderr)
        print("tvm-stitch: --debug shows where", file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_OK


def parse_target(text: str) -> Any:
    """A TVM target from what ``--target`` takes.

    Raises:
        UsageError: when TVM knows no such target.
    """
    from .target import resolve_target

    try:
        return resolve_target(text)
    except Exception as error:  # TVM raises several kinds; all mean that the target is not one
        let_pass(error)
        reason = error_text(error).split(". Target creation", 1)[0]
        raise UsageError(f"bad target {text!r}: {reason}; --target takes {_TARGET_HELP}") from None


def parse_config(pairs: Sequence[str]) -> dict[str, Any]:
    """Options from ``key=value`` pairs; values are Python literals, true, false, none, or plain strings."""
    words = {"true": True, "false": False, "none": None}
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--config takes key=value, got {pair!r}")
        if value.lower() in words:
            options[key] = words[value.lower()]
            continue
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return options


def parse_shapes(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes from ``input=1,128`` pairs (``input=`` is a scalar's)."""
    shapes = {}
    for pair in pairs:
        name, equals, dims = pair.rpartition("=")
        try:
            shape = tuple(int(d) for d in dims.split(",")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(d < 0 for d in shape):
            raise UsageError(f"--shape takes input=1,128 (sizes, not negative), got {pair!r}")
        shapes[name] = shape
    return shapes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvm-stitch",
        description="Compile ONNX models with memory-intensive operators stitched into single kernels.",
    )
    parser.add_argument("--version", action=_Versions, help="print the versions of what works here")
    commands = parser.add_subparsers(dest="command", required=True, metavar="compile|explain|bench")
    for run, summary in (
        (_compile, "write a library and a manifest"),
        (_explain, "say which kernels a model gets, how they run, and why each boundary stands"),
        (
            _bench,
            "time stock TVM and stitching beside each other on this machine and compare with ONNX Runtime",
        ),
    ):
        command = commands.add_parser(run.__name__.lstrip("_"), help=summary, description=summary)
        command.set_defaults(run=run)
        command.add_argument("model", metavar="MODEL.onnx", type=Path)
        command.add_argument("--target", default="llvm", help=f"{_TARGET_HELP} (default: %(default)s)")
        command.add_argument(
            "--config",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="an option of StitchConfig; may be given several times",
        )
        command.add_argument(
            "--shape",
            metavar="INPUT=1,128",
            action="append",
            default=[],
            help="the shape of an input with symbolic dimensions; may be given several times",
        )
        command.add_argument(
            "--precision",
            choices=("float32", *HALF),
            default="float32",
            help="of a float32 model: products and what is element-wise in a half type, its inputs too "
            "(default: as it is)",
        )
        command.add_argument(
            "--cuda-graph",
            action="store_true",
            help="capture the calls of static shapes as CUDA graphs (the option cuda_graph)",
        )
        command.add_argument(
            "--strict", action="store_true", help="fail where an operator or a scope would be left to TVM"
        )
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
        command.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
        command.add_argument("--debug", action="store_true", help="show the traceback of a failure")
        if run is _compile:
            command.add_argument(
                "-o",
                "--output",
                metavar="DIR",
                type=Path,
                default=Path("stitched"),
                help="(default: %(default)s)",
            )
        if run is _explain:
            command.add_argument(
                "--html",
                metavar="FILE",
                type=Path,
                help="write a page of its own: the model's graph, every kernel, and every boundary",
            )
            command.add_argument(
                "--trace",
                metavar="FILE",
                type=Path,
                help="write one call as a timeline for ui.perfetto.dev, with the times of the cost model",
            )
            command.add_argument(
                "--why",
                nargs=2,
                metavar=("A", "B"),
                help="say why two operators, or two kernels, are or are not one kernel",
            )
            command.add_argument(
                "-v", "--verbose", action="store_true", help="print every plan and every boundary"
            )
        if run is _bench:
            command.add_argument(
                "--repeats", type=int, default=10, help="timed calls of each (default: %(default)s)"
            )
            command.add_argument(
                "--seed", type=int, default=0, help="of the random inputs (default: %(default)s)"
            )
    return parser


class _Versions(argparse.Action):
    """``--version``: one line for each package, and the end."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for name, version in _versions().items():
            print(name, version)
        parser.exit()


class _Progress:
    """Says on stderr what is being done, and how long it took."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        if self.enabled:
            print(f"{what} ...", file=sys.stderr, flush=True)
        yield
        if self.enabled:
            print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What all commands start from."""

    model: Any
    target: Any
    config: Any


def _job(args: argparse.Namespace, progress: _Progress) -> _Job:
    if not args.model.is_file():
        raise UsageError(f"no file {args.model}; give the path of an ONNX model")
    shapes = parse_shapes(args.shape)
    flags = {name: True for name in ("strict", "cuda_graph") if getattr(args, name)}
    config = _config(parse_config(args.config) | flags)
    target = parse_target(args.target)
    try:
        import onnx

        from tvm_stitch.onnx_check import InvalidModel, check_model
        from tvm_stitch.testing.compare import in_half, load_onnx
    except ImportError as error:
        raise RuntimeError(f"{error}; ONNX models need: pip install 'tvm-stitch[onnx]'") from error
    with progress(f"importing {args.model}"):
        try:
            proto = onnx.load(str(args.model))
            check_model(proto, args.model.parent)
        except InvalidModel as error:
            raise UsageError(f"{args.model} is no valid ONNX model: {error}") from None
        except Exception as error:  # protobuf raises kinds of its own, and external data may be missing
            let_pass(error)
            raise UsageError(f"{args.model} is no valid ONNX model: {error_text(error)}") from None
        try:
            model = load_onnx(proto, shapes, names=args.command == "explain")
        except ValueError as error:
            if shapes:
                raise UsageError(str(error)) from None
            raise
        if args.precision != "float32":
            model = in_half(model, args.precision)
    return _Job(model, target, config)


def _config(options: dict[str, Any]) -> Any:
    from tvm_stitch import StitchConfig

    try:
        return StitchConfig(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--config: {error}") from None


def _compile(args: argparse.Namespace, progress: _Progress) -> tuple[dict[str, Any], str]:
    if args.output == Path():
        raise UsageError("-o is empty; give the folder to write to")
    job = _job(args, progress)
    from tvm_stitch.relax.build import build
    from tvm_stitch.relax.needs import needs
    from tvm_stitch.testing.compare import output_specs
    from tvm_stitch.testing.count import count_lowered

    with _folder(args.output) as folder:
        with progress(f"compiling for {args.target}"):
            built = build(job.model.mod, job.target, job.config)
        left = built.recorder.declined
        for name, reason in left.items():
            print(f"tvm-stitch: left to TVM: {name}: {reason}", file=sys.stderr)
        kernels = count_lowered(built.lowered, job.target)
        library = args.output / "model.so"
        data = {
            "model": str(args.model),
            "library": library.name,
            "target": json.loads(str(job.target)),
            "config": job.config.to_dict(),
            "precision": args.precision,
            "inputs": [dataclasses.asdict(spec) for spec in job.model.inputs],
            "outputs": [dataclasses.asdict(spec) for spec in output_specs(job.model)],
            "kernels": kernels.to_dict(),
            "stitched": sorted(built.recorder.plans),
            "left": left,
            "versions": _versions(),
        }
        with progress(f"writing {library}"):
            compiled = _export(built.executable, folder / library.name, job.target)
        data["needs"] = needs(built.lowered, job.target, compiled)
        text = json.dumps(data, indent=2) + "\n"
        (folder / "manifest.json").write_text(text, encoding="utf-8")
    return data, f"{library}: {_kernels_text(kernels)}"


def _export(executable: Any, path: Path, target: Any) -> bool:
    """Write a model's library, where it can be with its CUDA kernels compiled; are they?"""
    from tvm_stitch.export import export_library, kernel_compiler

    if target.kind.name == "cuda" and kernel_compiler() is not None:
        try:
            export_library(executable, path, target)
            return True
        except Exception as err:  # the toolkit may be older than the architecture
            let_pass(err)
            reason = error_text(err).splitlines()[-1]
            print(f"tvm-stitch: kernels are compiled when they are first launched: {reason}", file=sys.stderr)
    executable.export_library(str(path))
    return False


@contextlib.contextmanager
def _folder(output: Path) -> Iterator[Path]:
    """A folder whose files are in ``output`` when all went well, and nowhere when not."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(written_whole(output))
        except OSError as error:
            raise UsageError(
                f"cannot write to {output}: {error.strerror}; give another folder with -o"
            ) from None
        yield folder


def _explain(args: argparse.Namespace, progress: _Progress) -> tuple[dict[str, Any], str]:
    outputs = [path for path in (args.html, args.trace) if path is not None]
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise UsageError("--html and --trace name one file; give two")
    job = _job(args, progress)
    import tvm_stitch

    with contextlib.ExitStack() as stack:
        files = {path: stack.enter_context(_file(path)) for path in outputs}
        with progress(f"planning for {args.target}"):
            report = tvm_stitch.explain(job.model.mod, job.target, job.config)
        if args.html is not None:
            with progress(f"writing {args.html}"):
                files[args.html].write_text(report.to_html(args.model.stem), encoding="utf-8")
        if args.trace is not None:
            with progress(f"writing {args.trace}"):
                files[args.trace].write_text(json.dumps(report.to_trace()), encoding="utf-8")
        if args.why:
            try:
                answer = report.why(*args.why)
            except ValueError as error:
                raise UsageError(f"--why: {error}") from None
            return {"why": answer}, answer
    return report.to_dict(), report.verbose() if args.verbose else str(report)


@contextlib.contextmanager
def _file(output: Path) -> Iterator[Path]:
    """A file to write that takes the place of ``output`` when all went well, and leaves it as it was when not."""
    if output.is_dir() or not output.name:
        raise UsageError(f"{output} is a folder; give the path of a file")
    try:
        with written_whole(output.parent) as folder:
            yield folder / output.name
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; give another path") from None


def _bench(args: argparse.Namespace, progress: _Progress) -> tuple[dict[str, Any], str]:
    if args.repeats < 1:
        raise UsageError(f"--repeats must be at least 1, got {args.repeats}")
    if args.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {args.seed}")
    job = _job(args, progress)
    import tvm
    from tvm import relax

    import tvm_stitch
    from tvm_stitch.relax import pipeline
    from tvm_stitch.testing import compare
    from tvm_stitch.testing.count import count_kernels

    if "gpu" in job.target.keys and not tvm.device(job.target.kind.name, 0).exist:
        raise RuntimeError(f"no {job.target.kind.name} device here; compile and explain need none")
    try:
        inputs = compare.make_inputs(job.model.inputs, args.seed)
    except ValueError as error:
        raise UsageError(f"{error}: --shape INPUT=1,128") from None
    mod, target = job.model.mod, job.target
    stock_pipeline = relax.get_default_pipeline(target)
    with progress("compiling with stock TVM"):
        stock = compare.Runner(
            tvm.compile(mod, target, relax_pipeline=stock_pipeline), target, list(inputs.values())
        )
    with progress("compiling with stitching"):
        stitched = compare.Runner(
            tvm_stitch.compile(mod, target=target, config=job.config), target, list(inputs.values())
        )
    with progress("running ONNX Runtime"):
        expected = compare.onnxruntime_outputs(job.model.proto, inputs)
    with progress(f"timing, {args.repeats} calls each"):
        seconds = compare.interleaved_seconds([stock, stitched], args.repeats)
    rows: dict[str, dict[str, Any]] = {}
    for name, runner, passes, median in (
        ("stock", stock, stock_pipeline, seconds[0]),
        ("stitched", stitched, pipeline(target, job.config), seconds[1]),
    ):
        kernels = count_kernels(mod, target, passes)
        rows[name] = {
            "median_ms": median * 1e3,
            "max_abs_error": compare.greatest_error(runner.outputs(), expected),
            "kernels": kernels.to_dict(),
        }
    ratio = seconds[0] / seconds[1]
    data = {
        "model": str(args.model),
        "target": json.loads(str(target)),
        "config": job.config.to_dict(),
        "precision": args.precision,
        "repeats": args.repeats,
        "seed": args.seed,
        **rows,
        "speedup": ratio,
        "versions": _versions(),
    }
    lines = [f"{'':10}{'median':>12}{'kernels':>9}{'memory-intensive':>18}{'error':>11}"]
    for name, row in rows.items():
        kernels_of = row["kernels"]
        lines.append(
            f"{name:10}{row['median_ms']:9.3f} ms{kernels_of['total']:9d}{kernels_of['memory_intensive']:18d}"
            f"{row['max_abs_error']:11.1e}"
        )
    lines.append(
        f"stitched is {ratio:.2f} times as fast as stock (error: the greatest absolute one to ONNX Runtime)"
    )
    return data, "\n".join(lines)


def _kernels_text(kernels: Any) -> str:
    return f"{kernels.total} kernels a call, {kernels.memory_intensive} of them memory-intensive"


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for package in ("tvm-stitch", "apache-tvm", "apache-tvm-ffi", "onnx"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return {**found, "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())
