# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and their parsers."""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import UsageError

TARGET_HELP = (
    "native (this machine's CPU); llvm (any CPU of its kind); cuda (this machine's device, sm_90 without one); "
    "a tag such as nvidia/nvidia-h100; "
    'JSON such as \'{"kind": "cuda", "arch": "sm_80"}\'; or options such as "cuda -arch=sm_80"'
)
MOST_ELEMENTS = 2**47
"""Most elements of an input. No machine addresses more bytes."""
MOST_REPEATS = 1_000_000
LONGEST_PATH_SHOWN = 60
PRECISIONS = ("float32", "float16", "bfloat16")
PRODUCTS = ("float32", "half")


def path_of(text: str) -> Path:
    """Return a path, for argparse. A text that cannot be a file's name is a usage error."""
    path = Path(text)
    try:
        if "\0" in text:
            raise argparse.ArgumentTypeError(f"{text} is not a path: it has a null character")
        path.exists()
    except OSError as error:  # too long a name, or a folder that this user may not look into
        shown = text if len(text) <= LONGEST_PATH_SHOWN else f"{text[:LONGEST_PATH_SHOWN]}..."
        raise argparse.ArgumentTypeError(f"{shown} is not a path: {error.strerror}") from None
    return path


def add_model_options(command: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the options for a model, its target, and how to compile it."""
    command.add_argument(
        "model",
        metavar="MODEL",
        type=path_of,
        nargs="?" if optional else None,
        help="an ONNX file, or a .pt2 file of torch.export.save",
    )
    command.add_argument("--target", default="native", help=f"{TARGET_HELP} (default: %(default)s)")
    command.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of StitchConfig; may be given several times",
    )
    add_shape(command)
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of a float32 model: products and what is element-wise in a half type, its inputs too "
        "(default: as it is)",
    )
    command.add_argument(
        "--products",
        choices=PRODUCTS,
        default="float32",
        help="with --precision: what products and convolutions give; half is faster on a GPU, and less exact "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--cuda-graph",
        action="store_true",
        help="capture the calls of static shapes as CUDA graphs (the option cuda_graph)",
    )
    command.add_argument(
        "--strict", action="store_true", help="fail where an operator or a scope would be left to TVM"
    )


def add_shape(command: argparse.ArgumentParser) -> None:
    """Add ``--shape``."""
    command.add_argument(
        "--shape",
        metavar="INPUT=1,128",
        action="append",
        default=[],
        help="the shape of an input with symbolic dimensions; may be given several times",
    )


def add_timing(command: argparse.ArgumentParser) -> None:
    """Add ``--repeats`` and ``--seed``."""
    command.add_argument("--repeats", type=int, default=10, help="timed calls of each (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, help="of the random inputs (default: %(default)s)")


def check_timing(args: argparse.Namespace) -> None:
    """Raise a UsageError for invalid numbers of ``--repeats`` and ``--seed``."""
    if args.repeats < 1:
        raise UsageError(f"--repeats must be at least 1, got {args.repeats}")
    if args.repeats > MOST_REPEATS:
        raise UsageError(f"--repeats must be at most {MOST_REPEATS}, got {args.repeats}")
    if args.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {args.seed}")


def add_output_options(command: argparse.ArgumentParser) -> None:
    """Add the options for the output of results and progress."""
    command.add_argument("--json", action="store_true", help="print JSON, for programs")
    command.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    command.add_argument("--debug", action="store_true", help="show the traceback of a failure")


def parse_target(text: str) -> Any:
    """Return a TVM target from the text of ``--target``.

    Raises:
        UsageError: if TVM knows no such target.
    """
    import tvm

    from ..support.failures import error_text, reraise_fatal
    from ..support.quiet import without_native_stderr
    from ..target import resolve_target

    try:
        with without_native_stderr():  # LLVM prints there what the error says
            target = resolve_target(text)
        if tvm.get_global_func(f"target.build.{target.kind.name}", allow_missing=True) is None:
            raise ValueError(f"this TVM generates no code for {target.kind.name}")
        return target
    except Exception as error:  # TVM raises several kinds, which all mean that the target is invalid
        reraise_fatal(error)
        said = error_text(error)
        more = "" if said.endswith("?") else f"; --target takes {TARGET_HELP}"  # "?": it names what was meant
        raise UsageError(f"bad target {text!r}: {said}{more}") from None


def parse_config(pairs: Sequence[str]) -> dict[str, Any]:
    """Return options from ``key=value`` pairs. Values are Python literals, true, false, none, or plain strings."""
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


def make_config(options: dict[str, Any]) -> Any:
    """Return a StitchConfig with the given options.

    Raises:
        UsageError: for an unknown option or a bad value.
    """
    from tvm_stitch import StitchConfig

    try:
        return StitchConfig(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--config: {error}") from None


def parse_shapes(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes from ``input=1,128`` pairs (``input=`` for a scalar)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        name, equals, dims = pair.rpartition("=")
        try:
            shape = tuple(int(d) for d in dims.split(",")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not equals or not name or any(d < 0 for d in shape):
            raise UsageError(f"--shape takes input=1,128 (sizes, not negative), got {pair!r}")
        if math.prod(shape) > MOST_ELEMENTS or max(shape, default=0) > MOST_ELEMENTS:
            raise UsageError(f"--shape {pair}: no tensor has more than {MOST_ELEMENTS} elements")
        if shapes.setdefault(name, shape) != shape:
            raise UsageError(
                f"--shape gives {name} two shapes, {list(shapes[name])} and {list(shape)}; give one"
            )
    return shapes
