#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time compiling, stitched and with TVM's own pipeline: in one run, in processor time, with stitching's stages.

    python scripts/bench_compile.py
    python scripts/bench_compile.py --models zoo:swin bert resnet18 --target llvm
    python scripts/bench_compile.py --models zoo --markdown

    python scripts/bench_compile.py --models torch:mamba@32 onnx:mamba@32 roi-align --most 2
    python scripts/bench_compile.py --apart --models onnx:timm:nf_regnet_b0@192 grid-cubic roi-align --most 2

Models are those of ``scripts/bench_models.py`` at full size, and with ``zoo:`` before the name the small ones of
tests/models/zoo. ``torch:NAME@SIZE`` and ``onnx:NAME@SIZE`` are architectures of ``scripts/architectures.py``, by
either importer, at a size of their symbolic dimension. ``onnx:timm:NAME@SIDE`` is any model of timm. ``roi-align``,
``grid-cubic`` and others are single operators of ONNX. With ``--apart`` each side has its own process and its own
importer, whose time has a column. These rows are for this CPU. The processor time of all
threads counts, so other work on the machine disturbs little. Each side compiles a model several times in turn, and the
least time counts. NVIDIA's compiler is left out on both sides: an empty function replaces it. The last columns are
shares of the stitched compile, in seconds:

    imports   passes before stitching: repairs, layouts, constants, legalization
    graph     reading functions and finding scopes
    plan      planning kernels and writing their code
    products  the same for matrix products, convolutions and attention
    passes    TVM's later passes
    code      LLVM, and all work outside of passes

Exit code: 0 no model takes more than ``--most`` times TVM's time, 1 one does or does not compile, 2 a usage error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import tvm
import tvm_ffi
from _compile_apart import PARTS, SIDES, seconds
from _compile_models import OPERATORS, PATHS, given
from models.registry import MODELS, check_packages
from models.spec import MissingPackages

import tvm_stitch
from stitch_testing.warned import warned
from tvm_stitch.repairs.legalize.take import stock_pipeline

ZOO = "zoo"
FULL = ("bert", "resnet18", "swin-t", "convnext-t")
TARGETS = {
    "llvm": tvm.target.Target("llvm"),
    "cuda": tvm.target.Target("nvidia/nvidia-h100", host="llvm"),
}
MOST = 1.3
"""Most allowed ratio of compile times, stitched over TVM's."""
COMPILE = "tvm_callback_cuda_compile"

STAGES: dict[str, tuple[str, ...]] = {
    "graph": ("StitchOps",),
    "plan": ("MergeStitchOps", "ScheduleStitchOps", "LiftWorkspace", "Stitch"),
    "products": ("ComputeTemplates", "FusedAttention", "LibraryMatmuls", "LibraryConvolutions"),
}
"""The passes of each stage, with the passes inside them. ``imports`` are all passes before scopes are identified."""
COLUMNS = ("imports", *STAGES, "passes", "code")


@tvm.instrument.pass_instrument
class Stages:
    """Add up the processor time of passes by stages. Passes that a stage's pass runs count for the stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(COLUMNS, 0.0)
        self._stack: list[tuple[str, float]] = []
        self._stitched = False
        self._begin = 0.0

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        outer = self._stack[-1][0] if self._stack else ""
        own = next((stage for stage, passes in STAGES.items() if info.name in passes), "")
        if own in ("graph", "plan"):
            self._stitched = True
        stage = own or (outer if outer in STAGES else "passes" if self._stitched else "imports")
        self._charge(outer)
        self._stack.append((stage, 0.0))

    def run_after_pass(self, _mod: tvm.IRModule, _info: Any) -> None:
        self._charge(self._stack.pop()[0])

    def _charge(self, stage: str) -> None:
        """Charge the time since the last call to the current stage, or to ``code`` outside of all passes."""
        now = time.process_time()
        self.seconds[stage or "code"] += now - self._begin
        self._begin = now

    def begin(self) -> None:
        self._begin = time.process_time()

    def end(self) -> None:
        self._charge("")


@dataclass
class Row:
    """Compile times of a model for a target in seconds. ``error`` says what failed. ``stock`` is None if TVM fails."""

    name: str
    target: str
    stock: float | None = None
    stitched: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the stitched time over TVM's."""
        return self.stitched / self.stock if self.stitched is not None and self.stock else None


@contextmanager
def no_cuda_compiler() -> Iterator[None]:
    """Generate CUDA C, but do not compile it, while this context is open."""
    before = tvm.get_global_func(COMPILE, allow_missing=True)
    tvm_ffi.register_global_func(COMPILE, lambda *_: bytearray(b"left out"), override=True)
    try:
        yield
    finally:
        if before is not None:
            tvm_ffi.register_global_func(COMPILE, before, override=True)


def stock(mod: tvm.IRModule, target: tvm.target.Target) -> None:
    """Compile with TVM's own pipeline."""
    tvm.compile(mod, target, relax_pipeline=stock_pipeline(target))


def stitched(mod: tvm.IRModule, target: tvm.target.Target) -> None:
    """Compile with stitching."""
    tvm_stitch.compile(mod, target)


def timed(step: Callable[[], None]) -> float:
    """Return the processor time of a step."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def measure(name: str, mod: tvm.IRModule, kind: str, repeats: int) -> Row:
    """Compile a model both ways in turn, and return the least time of each."""
    row, target = Row(name, kind), TARGETS[kind]
    for _ in range(repeats):
        try:
            took = timed(lambda: stock(mod, target))
            row.stock = took if row.stock is None else min(row.stock, took)
        except Exception as err:  # TVM does not compile some models
            row.error = f"TVM: {type(err).__name__}"
        stages = Stages()
        try:
            with tvm.transform.PassContext(opt_level=3, instruments=[stages]):
                stages.begin()
                took = timed(lambda: stitched(mod, target))
                stages.end()
        except Exception as err:
            row.error, row.stitched = f"{type(err).__name__}: {err}".splitlines()[0], None
            break
        if row.stitched is None or took < row.stitched:
            row.stitched, row.stages = took, stages.seconds
    return row


def load(name: str, size: str) -> tvm.IRModule:
    """Return a model's module with bound weights."""
    if name.startswith(f"{ZOO}:"):
        from tests.models.zoo.models import MODELS as SMALL

        return SMALL[name.removeprefix(f"{ZOO}:")]().mod
    if name in OPERATORS or name.startswith(PATHS):
        from tvm_stitch.importers.onnx.load import from_onnx
        from tvm_stitch.importers.torch import from_exported_program

        model = given(name)
        return from_exported_program(model) if name.startswith("torch:") else from_onnx(model)
    from models.importing import import_torch
    from models.spec import make

    return import_torch(make(MODELS[name], size, 1, "float32"))


def measure_apart(name: str, most: float, markdown: bool) -> tuple[str, bool]:
    """Return the row of a model that each side imports and compiles in its own process, and whether it is slow."""
    spent = {side: seconds(side, name, "native") for side in SIDES}
    stock, own = (
        [spent[side][part] for part in PARTS] if "error" not in spent[side] else [] for side in SIDES
    )
    parts: list[float | None] = [*(stock or [None] * 2), *(own or [None] * 2)]
    ratios: list[float | None] = [own[1] / stock[1], sum(own) / sum(stock)] if stock and own else [None, None]
    cells = [name, *("-" if p is None else f"{p:.2f}" for p in [*parts, *ratios])]
    for side in SIDES:
        if "error" in spent[side]:
            print(f"{name}: {side} fails: {spent[side]['error']}", file=sys.stderr)
    slow = not own or (ratios[1] is not None and ratios[1] > most)
    line = (
        "| " + " | ".join(cells) + " |" if markdown else f"{name:32}" + "".join(f"{c:>9}" for c in cells[1:])
    )
    return line, slow


def run_apart(names: Sequence[str], most: float, markdown: bool) -> int:
    """Print the table of ``--apart`` and return the exit code."""
    head = ["model", "import", "compile", "import", "compile", "ratio", "of both"]
    if markdown:
        print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    else:
        print(f"{head[0]:32}" + "".join(f"{c:>9}" for c in head[1:]))
    slow = False
    for name in names:
        line, late = measure_apart(name, most, markdown)
        print(line, flush=True)
        slow |= late
    return 1 if slow else 0


def names_of(wanted: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the names of models. ``zoo`` means all of the zoo."""
    from tests.models.zoo.models import MODELS as SMALL

    zoo = [f"{ZOO}:{name}" for name in SMALL]
    names = [each for name in wanted for each in (zoo if name == ZOO else [name])]
    known = [*MODELS, *zoo, *OPERATORS]
    if unknown := [name for name in names if name not in known and not name.startswith(PATHS)]:
        parser.error(f"no model {unknown[0]}; there are {', '.join([ZOO, *zoo, *MODELS])}")
    return names


def table(rows: Sequence[Row], markdown: bool) -> str:
    """Write the rows as text, in columns or in Markdown."""
    head = ["model", "target", "TVM", "stitched", "ratio", *COLUMNS]
    lines = [[row.name, row.target, *_numbers(row)] for row in rows]
    if markdown:
        ruled = [head, ["---"] * len(head), *lines]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in ruled)
    return "\n".join(
        "".join(f"{c:24}" if i == 0 else f"{c:>9}" for i, c in enumerate(cells)) for cells in [head, *lines]
    )


def _numbers(row: Row) -> list[str]:
    seconds = [row.stock, row.stitched, row.ratio, *(row.stages.get(c) for c in COLUMNS)]
    return ["-" if s is None else f"{s:.2f}" for s in seconds]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=[ZOO, *FULL], metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument("--target", choices=[*TARGETS, "both"], default="both")
    parser.add_argument(
        "--size", choices=["full", "small"], default="full", help="of models that are not the zoo's"
    )
    parser.add_argument(
        "--repeats", type=int, default=2, metavar="N", help="compiles of each side (default: 2)"
    )
    parser.add_argument("--most", type=float, default=MOST, metavar="RATIO", help="(default: %(default)s)")
    parser.add_argument("--apart", action="store_true", help="each side in its own process, with its import")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error("--repeats must be 1 or more")
    names = names_of(args.models, parser)
    if args.apart:
        if other := [name for name in names if name not in OPERATORS and not name.startswith(PATHS)]:
            parser.error(f"--apart takes models that both sides import; {other[0]} is none")
        return run_apart(names, args.most, args.markdown)
    try:
        check_packages([MODELS[name] for name in names if name in MODELS])
    except MissingPackages as err:
        print(err, file=sys.stderr)
        return 2
    kinds = list(TARGETS) if args.target == "both" else [args.target]
    rows: list[Row] = []
    with warned(), no_cuda_compiler():  # without messages about operators left to TVM
        for i, name in enumerate(names):
            mod = load(name, args.size)
            for kind in kinds:
                if i == 0:  # the first compile also loads libraries, which must not count
                    measure(name, mod, kind, 1)
                rows.append(measure(name, mod, kind, args.repeats))
                print(table(rows[-1:], False).splitlines()[-1], file=sys.stderr)
    print(table(rows, args.markdown))
    slow = [row for row in rows if row.stitched is None or (row.ratio or 0.0) > args.most]
    for row in slow:
        why = row.error if row.stitched is None else f"{row.ratio:.2f} times what TVM takes"
        print(f"{row.name} for {row.target}: {why}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
