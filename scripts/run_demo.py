# SPDX-License-Identifier: Apache-2.0
"""Show the effect of stitching on a whole model: times next to other compilers, kernels and bytes, a report.

`make run` runs this. It exits with 1 if the stitched model differs from ONNX Runtime by more than 1e-4.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)

from tvm_stitch.support.cores import sleep_soon, use_all_cores

use_all_cores()
sleep_soon()
import onnx  # noqa: E402
import tvm  # noqa: E402
from demo.contenders import compiled, peers  # noqa: E402
from demo.screen import Screen  # noqa: E402
from demo.showcase import Showcase, showcase  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.cli.errors import UsageError, message_of  # noqa: E402
from tvm_stitch.cli.options import parse_shapes  # noqa: E402
from tvm_stitch.execution import tensors, timing  # noqa: E402
from tvm_stitch.execution.runner import Runner  # noqa: E402
from tvm_stitch.importers.onnx import compare  # noqa: E402
from tvm_stitch.relax.report.measured import Calls, kernel_rounds, with_times  # noqa: E402
from tvm_stitch.repairs.legalize.take import stock_pipeline  # noqa: E402
from tvm_stitch.report.data import ModelReport, Totals  # noqa: E402
from tvm_stitch.report.words import bytes_in_words  # noqa: E402
from tvm_stitch.target import DEFAULT_ARCH, resolve_target  # noqa: E402
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs  # noqa: E402

TOLERANCE = 1e-4
BUILD = Path("build")


def main() -> int:
    """Run the demonstration and return its exit code."""
    args, screen, start = _arguments(), Screen(), time.perf_counter()
    try:
        model, inputs, config, title = _model(args, screen)
    except Exception as error:  # errors of files, of protobuf, of TVM's importer
        print(f"error: {message_of(error)}", file=sys.stderr)
        return 2
    gpu = tvm.cuda(0).exist
    cpu = resolve_target("native")
    machine = f"{cpu.attrs['mcpu']}, {os.environ['TVM_NUM_THREADS']} threads"
    device = tvm.cuda(0).device_name if gpu else "no CUDA device"
    screen.line(f"tvm_stitch {tvm_stitch.__version__} on TVM {tvm.__version__}: {machine}; {device}")
    screen.line(title)

    with screen.step("planning the kernels for this CPU"):
        report = tvm_stitch.explain(model.mod, cpu)
        planned = report.completed()
    off, timed = _on_cpu(screen, model, inputs, config, cpu, planned, args.repeats)
    report = dataclasses.replace(report, model=timed)
    if gpu:
        _on_gpu(screen, model, inputs, config, args.repeats)
    else:
        _for_gpu(screen, model)
    with screen.step("measuring one kernel"):
        shown = showcase(model.mod, planned, cpu)
        if shown is not None:
            times = _times_of(shown, cpu, args.repeats)
    if shown is not None:
        screen.title(shown.title)
        for line in shown.lines():
            screen.line(line)
        ours, stock = times
        spreads = f"{_spread(ours, 1e6, 'us')}, TVM {_spread(stock, 1e6, 'us')}"
        screen.line(f"  stitched {spreads}: {timing.comparison(ours, stock, 'TVM')}")

    path = BUILD / "report.html"
    with screen.step(f"writing {path}"):
        path.write_text(report.to_html(args.model.stem if args.model else "BERT encoder"), encoding="utf-8")
    screen.title(f"The report: {path} ({path.stat().st_size / 1e6:.1f} MB), for a browser")
    screen.line(
        "  the model's graph, every kernel with its plan, code and time, and why each boundary stands"
    )
    screen.line(f"total: {time.perf_counter() - start:.0f} s")
    if not off <= TOLERANCE:
        print(f"error: {off:.1e} against ONNX Runtime is more than {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="an ONNX file (default: a BERT encoder built here)")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,128",
        help="shape of an input with symbolic dimensions in that file; may be repeated",
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of each (default: %(default)s)")
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error(f"--repeats must be at least 2, got {args.repeats}")
    return args


def _model(
    args: argparse.Namespace, screen: Screen
) -> tuple[compare.OnnxModel, dict[str, Any], BertConfig | None, str]:
    """Return the imported model, its inputs, its source, and its title."""
    BUILD.mkdir(exist_ok=True)
    config = None if args.model else BertConfig()
    path = args.model or BUILD / "bert_encoder.onnx"
    with screen.step(f"building and importing {path}" if config else f"importing {path}"):
        if config:
            onnx.save(build_bert(config), str(path))
        elif not path.is_file():
            raise UsageError(f"no file {path}; give the path of an ONNX model: make run MODEL=...")
        model = compare.load_onnx(onnx.load(str(path)), parse_shapes(args.shape), names=True)
    try:
        inputs = random_inputs(config) if config else tensors.make_inputs(model.inputs)
    except ValueError as error:
        raise UsageError(f"{error}: make run MODEL={path} SHAPE=input=1,128") from None
    what = "ONNX model"
    if config:
        what = f"BERT encoder of {config.layers} layers, hidden {config.hidden}, sequence {config.sequence}"
    return model, inputs, config, f"{what} ({path}, {path.stat().st_size / 1e6:.1f} MB)"


def _on_cpu(
    screen: Screen, model: compare.OnnxModel, inputs: dict[str, Any], config: BertConfig | None, target: Any,
    report: ModelReport, repeats: int,
) -> tuple[float, ModelReport]:  # fmt: skip
    """Time all contenders on this CPU and print it. Return the stitched model's error, and the report with times."""
    runners = compiled(model.mod, target, inputs, screen)
    others = peers(model.proto, inputs, config, False, screen)
    with screen.step(f"timing {repeats} calls of each, in turn"):
        times = _times({**runners, **others}, repeats)
    error = compare.greatest_error(runners["stitched"].outputs(), others["ONNX Runtime"]())
    screen.title(_table_title("One call on this CPU"))
    _table(screen, times, {"stock TVM": report.stock, "stitched": report.stitched})
    _verdict(screen, times)
    turns = min(repeats, 3)  # stock TVM's products take a while
    with screen.step(f"timing every kernel in {turns} calls"):
        kernels = kernel_rounds(report, [runners["stitched"], runners["stock TVM"]], turns)
    own = dict(zip(("stitched", "stock TVM"), _between_products(report, kernels)))
    screen.line(
        "  Stock TVM has no schedule for products on a CPU, and spends most of its time in them. In kernels"
    )
    screen.line(f"  without one: stitched {_spread(own['stitched'])}, stock TVM {_spread(own['stock TVM'])};")
    screen.line(f"  there stitched is {timing.comparison(own['stitched'], own['stock TVM'], 'stock TVM')}")
    screen.line(f"  greatest difference between the results of stitching and ONNX Runtime: {error:.1e}")
    calls = f"this CPU, {repeats} calls ({turns} for each kernel)"
    return error, with_times(report, [times["stitched"], times["stock TVM"]], kernels, calls)


def _on_gpu(
    screen: Screen, model: compare.OnnxModel, inputs: dict[str, Any], config: BertConfig | None, repeats: int
) -> None:
    """Time all contenders on this machine's CUDA device."""
    target = resolve_target("cuda")
    with screen.step("planning the kernels for this GPU"):
        report = tvm_stitch.explain(model.mod, target).completed()
    runners = compiled(model.mod, target, inputs, screen)
    others = peers(model.proto, inputs, config, True, screen)
    with screen.step(f"timing {repeats} calls of each on the GPU, in turn"):
        times = _times({**runners, **others}, repeats)
    screen.title(_table_title("One call on this GPU"))
    _table(screen, times, {"stock TVM": report.stock, "stitched": report.stitched})
    _verdict(screen, times)


def _for_gpu(screen: Screen, model: compare.OnnxModel) -> None:
    """Plan the kernels that a GPU would run, without a GPU."""
    target = resolve_target({"kind": "cuda", "arch": DEFAULT_ARCH})
    with screen.step(f"planning the kernels for a GPU ({DEFAULT_ARCH})"):
        report = tvm_stitch.explain(model.mod, target).completed()
    screen.title(_table_title(f"One call on a GPU ({DEFAULT_ARCH}; planned, not run)", timed=False))
    _table(screen, {}, {"stock TVM": report.stock, "stitched": report.stitched})


def _times(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, timing.Times]:
    return dict(zip(calls, timing.interleaved(list(calls.values()), repeats), strict=True))


def _between_products(report: ModelReport, turns: Sequence[Sequence[Calls]]) -> list[timing.Times]:
    """Return the time of calls in kernels without a product or convolution, stitched and by TVM alone."""
    alone = ("stitched", "tvm")
    ours = {k.function for k in report.kernels if k.kind in alone}
    stock = {k.function for k in report.stock_kernels if k.kind in alone}
    return [
        timing.Times(tuple(sum(s for name, s in call if name in names) for call in calls))
        for names, calls in zip((ours, stock), turns)
    ]


def _times_of(shown: Showcase, target: Any, repeats: int) -> tuple[timing.Times, timing.Times]:
    """Return the times of one kernel's operators, stitched and by TVM."""
    inputs = list(tensors.make_inputs(tensors.specs_of_inputs(shown.mod)).values())
    stock = tvm.compile(shown.mod, target, relax_pipeline=stock_pipeline(target))
    runners = [Runner(built, target, inputs) for built in (tvm_stitch.compile(shown.mod, target), stock)]
    ours, theirs = timing.interleaved(runners, repeats)
    return ours, theirs


def _table_title(what: str, timed: bool = True) -> str:
    head = f"{what:37}{'median':>12}{'middle half of calls':>25}" if timed else f"{what:74}"
    return f"{head}{'kernels':>9}{'without product':>17}{'moved':>10}"


def _table(screen: Screen, times: dict[str, timing.Times], totals: dict[str, Totals | None]) -> None:
    for name in times or totals:
        row = f"  {name:35}"
        if name in times:
            low, high = times[name].middle
            row += f"{times[name].median * 1e3:9.1f} ms{low * 1e3:12.1f} to {high * 1e3:6.1f} ms"
        else:
            row += " " * 37
        if (total := totals.get(name)) is not None:
            row += f"{total.kernels:9d}{total.memory:17d}{bytes_in_words(total.bytes):>10}"
        screen.line(row, "bold green" if name == "stitched" else "")


def _verdict(screen: Screen, times: dict[str, timing.Times]) -> None:
    said = [timing.comparison(times["stitched"], t, name) for name, t in times.items() if name != "stitched"]
    screen.line("  stitched is", "bold")
    for words in said:
        screen.line(f"    {words}", "bold")


def _spread(times: timing.Times, scale: float = 1e3, unit: str = "ms") -> str:
    low, high = times.middle
    return f"{times.median * scale:.2f} {unit} ({low * scale:.2f} to {high * scale:.2f})"


if __name__ == "__main__":
    sys.exit(main())
