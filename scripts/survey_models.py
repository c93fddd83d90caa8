#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compile many models side by side, check each against float64, and time it next to Inductor.

    python scripts/survey_models.py timm:tnt_s_legacy_patch16_224 torchvision:googlenet --dtype float16 --jobs 16
    python scripts/survey_models.py --file models.txt --batch 8 --seconds 540 --json survey.jsonl

Each model has a process of its own with one thread. It compiles with stitching and with Inductor (with CUDA graphs on
a GPU), while other processes compile too. Timed blocks hold a lock, but first runs of other processes may disturb
them, so the fastest calls are shown.
So a survey finds what is wrong, refused or slow. ``bench_models.py`` times models alone. Nothing begins ``--seconds``
after the start. A model that has not ended by then has the numbers that it has written.

Exit code: 0, or 1 if a result is wrong, a stitched build failed, or a process ended by itself.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
from _child_process import last_words
from _table import aligned
from models.errors import mean_error
from models.job import Job
from models.measure import WRONG
from models.process import told

INDUCTOR = {"cuda": "inductor_graphs", "native": "inductor"}
ROUNDS = 3
SECONDS = 0.12
"""Blocks of each contender of a model, and the time of one."""
WORSE = 3.0
"""An error that is larger than PyTorch's in the same type by this factor is wrong too, if it is larger than CLOSE."""
CLOSE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold the lock of timed blocks."""
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_one(model: str, args: argparse.Namespace) -> None:
    """Prepare, check and time one model. Lines of JSON go to the standard output, each with what is known so far."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    from models import torch_contenders, tvm_contenders
    from models.ready import Ready, run_block

    on_gpu = args.target == "cuda"
    job = Job(
        model,
        "full",
        args.batch,
        args.dtype,
        args.target,
        threads=1,
        folder=args.folder,
        cuda_graph=on_gpu,
        products=args.products,
    )
    row: dict[str, Any] = {"model": model}

    def tell() -> None:
        print(json.dumps(row), file=sys.__stdout__, flush=True)

    with only_one(Path(args.folder) / "lock"):
        reference = torch_contenders.reference(job)
    exact, row["eager_error"] = reference.outputs(), reference.told["pytorch_error"]
    ready: dict[str, Ready] = {}
    makers = {
        "stitched": tvm_contenders.stitched,
        "inductor": getattr(torch_contenders, INDUCTOR[args.target]),
    }
    for name, make in makers.items():
        if name == "inductor" and args.alone:
            break
        begin = time.perf_counter()
        try:
            made = make(job)
            row[f"{name}_error"] = mean_error(made.outputs(), exact)
            row[f"{name}_kernels"] = made.told.get("kernels", {}).get("total")
            ready[name] = made
        except Exception as error:
            row[f"{name}_failed"] = told(error)
        row[f"{name}_compile_s"] = round(time.perf_counter() - begin, 1)
        tell()
    best = dict.fromkeys(ready, float("inf"))
    with only_one(Path(args.folder) / "lock"):
        for _ in range(ROUNDS):
            for name, each in ready.items():
                begin = time.perf_counter()
                each.call()
                each.sync()
                one_call = time.perf_counter() - begin
                best[name] = min(best[name], run_block(each, SECONDS, one_call).best)
    row |= {f"{name}_ms": seconds * 1e3 for name, seconds in best.items()}
    tell()


def verdict(row: dict[str, Any], dtype: str) -> str:
    """Return a word on a row: whether its stitched result is right."""
    if "stitched_failed" in row:
        return "failed"
    if "stitched_error" not in row:
        return "not ready"
    error, eager = row["stitched_error"], row["eager_error"]
    if eager == float("inf") or eager > WRONG[dtype]:
        return "no reference"  # PyTorch's own result in the type is not near float64's either
    return "right" if error <= WRONG[dtype] and error <= max(WORSE * eager, CLOSE[dtype]) else "WRONG"


def survey(models: Sequence[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all models, and return a row of each that began."""
    end = time.monotonic() + args.seconds
    queue, rows, guard = list(models), [], threading.Lock()

    def work() -> None:
        while True:
            with guard:
                if not queue or time.monotonic() >= end:
                    return
                model = queue.pop(0)
            row = child(model, args, end)
            with guard:
                rows.append(row)
                if args.json:
                    with open(args.json, "a") as file:
                        file.write(json.dumps(row) + "\n")
                print(*cells(row, args.dtype), flush=True)

    threads = [threading.Thread(target=work) for _ in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def child(model: str, args: argparse.Namespace, end: float) -> dict[str, Any]:
    """Return the last row of a model's process."""
    command = [sys.executable, __file__, model, "--one", "--folder", args.folder, "--target", args.target]
    command += ["--batch", str(args.batch), "--dtype", args.dtype, "--products", args.products]
    command += ["--alone"] if args.alone else []
    late = False
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile() as err:
        environment = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **environment})
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        row: dict[str, Any] = json.loads(lines[-1]) if lines else {"model": model}
        if process.returncode != 0 and not late:
            row["ended"] = f"code {process.returncode}: {' '.join(last_words(err, 1, 2))}"[:300]
    return row


def cells(row: dict[str, Any], dtype: str) -> list[str]:
    """Return the cells of a row of the table."""
    ours, theirs = row.get("stitched_ms"), row.get("inductor_ms")
    number = lambda key, form: format(row[key], form) if row.get(key) is not None else "-"  # noqa: E731
    return [
        row["model"],
        verdict(row, dtype),
        number("stitched_ms", ".3f"),
        number("inductor_ms", ".3f"),
        f"{theirs / ours:.2f}" if ours and theirs else "-",
        number("stitched_kernels", "d"),
        number("stitched_error", ".1e"),
        number("eager_error", ".1e"),
        number("stitched_compile_s", ".0f"),
        number("inductor_compile_s", ".0f"),
        row.get("stitched_failed") or row.get("ended") or row.get("inductor_failed") or "",
    ]


HEAD = [
    "model",
    "result",
    "ms",
    "Inductor",
    "ratio",
    "kernels",
    "error",
    "PyTorch's",
    "compile s",
    "Inductor's",
    "",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", nargs="*", help="names such as timm:convit_tiny, as bench_models.py takes them")
    add("--file", type=Path, help="a file with a name in each line")
    add("--batch", type=int, default=1, help="batch size (default: %(default)s)")
    add("--dtype", choices=list(CLOSE), default="float16", help="type of the models (default: %(default)s)")
    add(
        "--products",
        choices=["float32", "half"],
        default="half",
        help="as in bench_models.py (default: half)",
    )
    add("--jobs", type=int, default=os.cpu_count() or 1, help="models at once (default: the processors)")
    add("--seconds", type=float, default=3600, help="seconds until all ends (default: %(default)s)")
    add("--alone", action="store_true", help="leave Inductor out")
    add("--json", help="append a line for each model to this file")
    add("--target", choices=list(INDUCTOR), default="cuda", help="where models run (default: %(default)s)")
    add("--folder", help=argparse.SUPPRESS)
    add("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    models = [*args.models, *(args.file.read_text().split() if args.file else [])]
    if not models:
        parser.error("name models, or give --file")
    if args.one:
        run_one(models[0], args)
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as args.folder:
        rows = survey(models, args)
    ordered = sorted(rows, key=lambda row: -row.get("inductor_ms", 0) / row.get("stitched_ms", 1))
    print(aligned(HEAD, [cells(row, args.dtype) for row in ordered]))
    begun = {row["model"] for row in rows}
    if left := [model for model in models if model not in begun]:
        print(f"not begun: {' '.join(left)}")
    return 1 if any(verdict(row, args.dtype) in ("failed", "WRONG") or "ended" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
