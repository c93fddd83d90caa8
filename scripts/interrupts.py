# SPDX-License-Identifier: Apache-2.0
"""Interrupt compiles at random moments: every interrupt ends its compile, and leaves nothing behind.

    python scripts/interrupts.py --count 50            # with either TVM: Relax, or Relay

Half of the interrupts end compiles in this process, through tvm_stitch's Python API; half end ``tvm-stitch compile`` in
a process of its own (with Relay, which has no command line, a program that builds). The moment is a random part of
the time that such a compile takes when nobody disturbs it. An interrupt that came too late, when the compile was done,
is counted apart. Behind every interrupt in this process, the same model is compiled again: it must be stitched in full.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

OUTCOMES = ("interrupted", "too late", "swallowed", "another error", "left behind", "not stitched after")
TOO_LATE = 0.05
"""Seconds before the end of a compile in which it may have been done already."""

RELAY = importlib.util.find_spec("tvm.relay") is not None

Compile = Callable[[], int]


def relax_compile() -> int:
    """Compile a model with Relax; the number of its stitch ops."""
    from tvm import relax
    from tvm.relax import op as R

    from tvm_stitch.relax.build import build

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([8, 32], "float32"))
    w = relax.Var("w", relax.TensorType([32, 32], "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            value = x
            for _ in range(4):
                value = builder.emit(R.matmul(value, w))
                value = builder.emit(R.nn.softmax(builder.emit(R.nn.gelu(value))))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return len(build(builder.get(), "llvm").recorder.plans)


def relay_compile() -> int:
    """Compile a model with Relay; the number of its stitch ops."""
    import tvm
    from tvm import relay

    import tvm_stitch

    x = value = relay.var("x", shape=(8, 32), dtype="float32")
    w = relay.var("w", shape=(32, 32), dtype="float32")
    for _ in range(4):
        value = relay.nn.softmax(relay.exp(relay.tanh(relay.nn.dense(value, w))))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], value))
    with tvm_stitch.relay.enable() as recorder:
        relay.build(mod, "llvm")
    return len(recorder.plans)


def in_process(work: Compile, count: int, rng: random.Random) -> Counter[str]:
    """Interrupt compiles in this process, from another thread."""
    found: Counter[str] = Counter()
    work()
    begin = time.perf_counter()
    whole = work()
    takes = time.perf_counter() - begin
    for _ in range(count):
        sent: list[float] = []

        def send(sent: list[float] = sent) -> None:
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(rng.random() * takes, send)
        outcome = "swallowed"
        try:
            begin = time.perf_counter()
            timer.start()
            try:
                work()
                end = time.perf_counter()
            except KeyboardInterrupt:
                outcome = "interrupted"
            except BaseException as error:
                outcome = "another error"
                print(f"{outcome}: {type(error).__name__}: {error}", file=sys.stderr)
            else:
                timer.cancel()
                timer.join()
                if not sent or sent[0] > end - TOO_LATE:
                    outcome = "too late"
                takes = min(takes, end - begin) if not sent else takes
        except KeyboardInterrupt:  # between the compile and here
            outcome = "too late"
        timer.join()
        found[outcome] += 1
        if outcome == "interrupted" and rng.random() < 0.3 and work() != whole:
            found["not stitched after"] += 1
    return found


def in_programs(command: list[str], count: int, rng: random.Random, output: Path) -> Counter[str]:
    """Interrupt programs that compile, from when they say that they begin."""
    found: Counter[str] = Counter()
    takes = _program_seconds([*command, str(output / "whole")])
    for number in range(count):
        folder = output / f"out{number}"
        earlier = folder / "model.so"
        if number % 2:  # an earlier output is to stay as it is
            folder.mkdir()
            earlier.write_text("earlier")
        process = subprocess.Popen(
            [*command, str(folder)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(rng.random() * takes)
        running = process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        code = process.wait()
        held = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
        whole = held == ["manifest.json", "model.so"] and earlier.read_bytes() != b"earlier"
        untouched = held == ["model.so"] and earlier.read_bytes() == b"earlier" if number % 2 else held == []
        if code == 130:
            found["interrupted"] += 1
            if not untouched and not whole:
                found["left behind"] += 1
                print(f"left behind: {held}", file=sys.stderr)
        elif code == 0 and (not running or "done" in said or _last_moment(said)):
            found["too late"] += 1
        elif code == -signal.SIGINT and whole:  # the program was on its way out
            found["too late"] += 1
        else:
            found["swallowed" if code == 0 else "another error"] += 1
            print(f"exit code {code}: {said[-500:]}", file=sys.stderr)
    return found


def _last_moment(said: str) -> bool:
    return any(line.startswith("writing") and line.endswith(" s") for line in said.splitlines())


def _program_seconds(command: list[str]) -> float:
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    begin = time.perf_counter()
    process.stderr.read()
    if process.wait():
        raise RuntimeError(f"{command} does not compile")
    return time.perf_counter() - begin


def _command(folder: Path) -> list[str]:
    """A program that compiles, and writes to the folder that is its last argument."""
    if RELAY:
        return [sys.executable, str(Path(__file__).resolve()), "--build"]
    import onnx

    from tvm_stitch.testing.bert import BertConfig, build_bert

    path = folder / "model.onnx"
    config = BertConfig(layers=1, hidden=16, heads=2, ffn=32, vocabulary=24, sequence=8)
    onnx.save(build_bert(config), str(path))
    return [sys.executable, "-m", "tvm_stitch.cli", "compile", str(path), "-o"]


def _build_program() -> int:
    """What is interrupted with Relay: a program that compiles inside ``enable``."""
    import tvm  # noqa: F401

    import tvm_stitch  # noqa: F401

    print("begins", file=sys.stderr, flush=True)
    try:
        relay_compile()
        print("done", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--count", type=int, default=50, help="interrupts of each kind (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--build", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build:
        return _build_program()
    rng = random.Random(args.seed)
    name = "Relay" if RELAY else "Relax"
    found = {f"{name}, Python": in_process(relay_compile if RELAY else relax_compile, args.count, rng)}
    with tempfile.TemporaryDirectory() as folder:
        found[f"{name}, program"] = in_programs(_command(Path(folder)), args.count, rng, Path(folder))
    print(f"{'':16}" + "".join(f"{outcome:>20}" for outcome in OUTCOMES))
    for kind, counts in found.items():
        print(f"{kind:16}" + "".join(f"{counts[outcome]:20d}" for outcome in OUTCOMES))
    return int(any(counts[outcome] for counts in found.values() for outcome in OUTCOMES[2:]))


if __name__ == "__main__":
    sys.exit(main())
