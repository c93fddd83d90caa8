# SPDX-License-Identifier: Apache-2.0
"""``tvm-stitch bench``: time stock TVM, stitching, and ONNX Runtime or PyTorch on this machine, alternately."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...deploy.versions import versions
from ..measuring import random_inputs_here
from ..options import add_model_options, add_timing, check_timing
from ..progress import Progress
from ..readers.model import check_options, read_job

SUMMARY = "time stock TVM, stitching, and ONNX Runtime or PyTorch in turn on this machine, and compare their results"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_options(command)
    add_timing(command)


def check(args: argparse.Namespace) -> None:
    """Raise a UsageError for invalid options."""
    check_timing(args)
    check_options(args)


def run(args: argparse.Namespace, progress: Progress) -> tuple[dict[str, Any], str]:
    """Time a model. Return the figures as data and as a table."""
    job = read_job(args, progress)
    import tvm

    import tvm_stitch

    from ...execution.count import count_kernels
    from ...execution.runner import Runner
    from ...execution.timing import Times, comparison, interleaved
    from ...importers.onnx.compare import greatest_error
    from ...relax import pipeline
    from ...repairs.legalize.take import stock_pipeline
    from ...support.failures import error_text, reraise_fatal

    on_gpu = "gpu" in job.target.keys
    inputs = random_inputs_here(job, args.seed)
    mod, target, peer_name = job.model.mod, job.target, job.model.peer_name
    stock_passes = stock_pipeline(target)
    stock, failed = None, ""
    with progress("compiling with stock TVM"):
        try:
            built = tvm.compile(mod, target, relax_pipeline=stock_passes)
        except Exception as err:  # a failure of stock TVM is a result to report
            reraise_fatal(err)
            failed = error_text(err)
        else:
            stock = Runner(built, target, list(inputs.values()))
    with progress("compiling with stitching"):
        stitched = Runner(
            tvm_stitch.compile(mod, target=target, config=job.config), target, list(inputs.values())
        )
    with progress(f"running {peer_name}"):
        peer = job.model.peer(inputs)
        expected = peer()
    with progress(f"timing, {args.repeats} calls each"):
        timed = {"stock": stock, "stitched": stitched, "peer": peer}
        calls = {name: call for name, call in timed.items() if call is not None}
        times: dict[str, Times] = dict(zip(calls, interleaved(list(calls.values()), args.repeats)))
    rows: dict[str, dict[str, Any]] = {}
    for name, runner, passes in (
        ("stock", stock, stock_passes),
        ("stitched", stitched, pipeline(target, job.config)),
    ):
        if runner is None:
            rows[name] = {"failed": failed}
            continue
        rows[name] = {
            **times[name].to_dict(),
            "max_abs_error": greatest_error(runner.outputs(), expected),
            "kernels": count_kernels(mod, target, passes).to_dict(),
        }
    data = {
        "model": str(args.model),
        "target": json.loads(str(target)),
        "config": job.config.to_dict(),
        "precision": args.precision,
        "products": args.products,
        "repeats": args.repeats,
        "seed": args.seed,
        **rows,
        "peer": {"name": peer_name, **times["peer"].to_dict()},
        "speedup": times["stock"].median / times["stitched"].median if "stock" in times else None,
        "versions": versions(),
    }
    shown = f"{peer_name} (CPU)" if on_gpu else peer_name
    lines = [f"{'':20}{'median':>12}{'middle half':>22}{'kernels':>9}{'memory-intensive':>18}{'error':>11}"]
    for name, title in (("stock", "stock TVM"), ("stitched", "stitched"), ("peer", shown)):
        if name not in times:
            lines.append(f"{title:20}does not compile it: {failed}")
            continue
        low, high = times[name].middle
        line = f"{title:20}{times[name].median * 1e3:9.3f} ms{low * 1e3:9.3f} to {high * 1e3:6.3f} ms"
        if name in rows:
            kernels = rows[name]["kernels"]
            line += (
                f"{kernels['total']:9d}{kernels['memory_intensive']:18d}{rows[name]['max_abs_error']:11.1e}"
            )
        lines.append(line)
    lines.append(f"error: the greatest absolute difference to {peer_name}; middle half: of the calls")
    for name, title in (("stock", "stock TVM"), ("peer", shown)):
        if name in times:
            lines.append(f"stitched is {comparison(times['stitched'], times[name], title)}")
    return data, "\n".join(lines)
