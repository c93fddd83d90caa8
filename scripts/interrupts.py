# SPDX-License-Identifier: Apache-2.0
"""Interrupt compiles at random moments: every interrupt ends its compile, and leaves nothing behind.

    python scripts/interrupts.py --count 50            # with either TVM: Relax, or Relay

Half of the interrupts end compiles in this process, through tvm_stitch's Python API. The others end
``tvm-stitch compile`` in a process forked from this one (with Relay, which has no command line, a program that builds).
The moment is a random fraction of the time of an undisturbed compile. Interrupts before the compile began or after it
was done are counted separately. After some interrupts in this process, the same model is compiled again: it must be
stitched in full.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

OUTCOMES = (
    "interrupted",
    "too early",
    "too late",
    "swallowed",
    "another error",
    "left behind",
    "not stitched after",
)
AROUND = 99
"""Exit code of a process that was interrupted before its program began."""
TOO_LATE = 0.05
"""Seconds before the expected end in which a compile may already be done."""

RELAY = importlib.util.find_spec("tvm.relay") is not None

Compile = Callable[[], int]
Program = Callable[[Path], int]


def relax_compile() -> int:
    """Compile a model with Relax, and return the number of its stitch ops."""
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
    """Compile a model with Relay, and return the number of its stitch ops."""
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
    outcomes: Counter[str] = Counter()
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
        outcomes[outcome] += 1
        if outcome == "interrupted" and rng.random() < 0.3 and work() != whole:
            outcomes["not stitched after"] += 1
    return outcomes


def in_programs(program: Program, count: int, rng: random.Random, output: Path) -> Counter[str]:
    """Interrupt processes that compile and write to a folder, from their start on."""
    outcomes: Counter[str] = Counter()
    takes = 0.0
    for _ in range(2):  # the first one is slower
        code, takes, _ = _forked(program, output / "whole", None)
        if code:
            raise RuntimeError(f"the program ends with {code} without an interrupt")
    for number in range(count):
        folder = output / f"out{number}"
        earlier = folder / "model.so"
        if number % 2:  # an earlier output must remain unchanged
            folder.mkdir()
            earlier.write_bytes(b"earlier")
        code, _, sent = _forked(program, folder, rng.random() * takes)
        held = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
        before = ["model.so"] if number % 2 else []
        untouched = held == before and (not before or earlier.read_bytes() == b"earlier")
        if code == 130 and _is_whole(folder):  # it came while both files were moved to their place
            outcomes["too late"] += 1
        elif code == 130:
            outcomes["interrupted"] += 1
            if not untouched:
                outcomes["left behind"] += 1
                print(f"left behind: {held}", file=sys.stderr)
        elif code == 0:
            outcomes["swallowed" if sent else "too late"] += 1
        elif code == AROUND:
            outcomes["too early"] += 1
        else:
            outcomes["another error"] += 1
            print(f"exit code {code}", file=sys.stderr)
    return outcomes


def _is_whole(folder: Path) -> bool:
    """Return whether there is a complete new output."""
    library, manifest = folder / "model.so", folder / "manifest.json"
    if not (library.exists() and manifest.exists()) or len(list(folder.iterdir())) != 2:
        return False
    return (
        library.read_bytes()[:4] == b"\x7fELF" and json.loads(manifest.read_text())["library"] == library.name
    )


def _forked(program: Program, folder: Path, after: float | None) -> tuple[int, float, bool]:
    """Run a program in a child process, and interrupt it after some seconds.

    A forked child has TVM loaded, so that the moment falls into the compile.

    Returns: the exit code, the seconds that it took, and whether it was interrupted while the program ran. A program
        says through a pipe that it is done, and then waits until its parent knows.
    """
    told, tell = os.pipe()
    begin = time.perf_counter()
    child = os.fork()
    if not child:
        os.close(told)
        code = AROUND
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            code = 1
            code = program(folder)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.write(tell, b"done")
        finally:
            os._exit(code)
    os.close(tell)
    done, _, _ = select.select([told], [], [], after)
    if not done:
        os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    os.close(told)
    return os.waitstatus_to_exitcode(status), time.perf_counter() - begin, not done


def _command_line(folder: Path) -> Program:
    """Run ``tvm-stitch compile`` on a small encoder."""
    import onnx

    from tvm_stitch import cli
    from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

    path = folder / "model.onnx"
    config = BertConfig(layers=1, hidden=16, heads=2, ffn=32, vocabulary=24, sequence=8)
    onnx.save(build_bert(config), str(path))
    return lambda output: cli.main(["compile", str(path), "-o", str(output), "--quiet"])


def _relay_program(_folder: Path) -> int:
    """Build inside ``enable``: Relay has no command line, and this program replaces it."""
    try:
        relay_compile()
    except KeyboardInterrupt:
        return 130
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--count", type=int, default=50, help="interrupts of each kind (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    args = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell starts what is in its background without
    rng = random.Random(args.seed)
    name = "Relay" if RELAY else "Relax"
    outcomes = {f"{name}, Python": in_process(relay_compile if RELAY else relax_compile, args.count, rng)}
    with tempfile.TemporaryDirectory() as folder:
        program = _relay_program if RELAY else _command_line(Path(folder))
        outcomes[f"{name}, program"] = in_programs(program, args.count, rng, Path(folder))
    print(f"{'':16}" + "".join(f"{outcome:>20}" for outcome in OUTCOMES))
    for kind, counts in outcomes.items():
        print(f"{kind:16}" + "".join(f"{counts[outcome]:20d}" for outcome in OUTCOMES))
    return int(any(counts[outcome] for counts in outcomes.values() for outcome in OUTCOMES[3:]))


if __name__ == "__main__":
    sys.exit(main())
