# SPDX-License-Identifier: Apache-2.0
"""Hand corrupted ONNX files to the command line, all in one process: no crash, no hang, no traceback.

    python scripts/corrupt_onnx.py --count 2000 --seed 0

Prints a table of outcomes by kind of corruption, and exits with 1 if a file crashed, hung or ended in a traceback. A
crash ends the process: ``--keep DIR`` then holds the file (``current.onnx``) and the seed that made it
(``current.json``), and ``--first N`` continues from there.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _onnx_corruptions import corrupted, valid_models

from tvm_stitch import cli

OUTCOMES = ("compiled", "refused", "failed", "traceback", "hang")


class Hang(BaseException):
    """Raised at the time limit of a file."""


def _stop(_number: int, _frame: Any) -> None:
    raise Hang


def run_one(command: list[str], limit: float) -> tuple[str, str]:
    """Return the outcome of a command line, and its output to stderr."""
    err = io.StringIO()
    faulthandler.dump_traceback_later(4 * limit, exit=True)  # for native code that does not return
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = cli.main(command)
    except Hang:
        return "hang", err.getvalue()
    except BaseException as error:
        return "traceback", f"{err.getvalue()}\n{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    said = err.getvalue()
    if "Traceback" in said or code not in (0, 1, 2):
        return "traceback", said
    return ("compiled", "failed", "refused")[code], said


def run(count: int, seed: int, first: int, every: int, limit: float, keep: Path) -> Counter[tuple[str, str]]:
    """Corrupt files and pass them on. Every ``every``-th file is compiled, the others are explained."""
    models = valid_models()
    counts: Counter[tuple[str, str]] = Counter()
    path = keep / "current.onnx"
    before = signal.signal(signal.SIGALRM, _stop)
    begin = time.perf_counter()
    try:
        for number in range(first, first + count):
            name, data = corrupted(models, seed, number)
            path.write_bytes(data)
            (keep / "current.json").write_text(
                json.dumps({"seed": seed, "number": number, "corruption": name})
            )
            words = (
                ["compile", str(path), "-o", str(keep / "out")]
                if number % every == 0
                else ["explain", str(path)]
            )
            outcome, said = run_one([*words, "--quiet"], limit)
            counts[name, outcome] += 1
            if outcome in ("traceback", "hang"):
                (keep / f"{outcome}-{number}.onnx").write_bytes(data)
                print(f"{outcome}: file {number} ({name}): {said.strip()[-600:]}", flush=True)
            if (number - first + 1) % 100 == 0:
                seconds = time.perf_counter() - begin
                print(f"{number - first + 1} files, {seconds:.0f} s", file=sys.stderr, flush=True)
    finally:
        signal.signal(signal.SIGALRM, before)
    return counts


def table(counts: Counter[tuple[str, str]]) -> str:
    """Write the outcomes by corruption."""
    lines = [f"{'corruption':28}" + "".join(f"{o:>11}" for o in OUTCOMES)]
    for name in sorted({name for name, _ in counts}):
        lines.append(f"{name:28}" + "".join(f"{counts[name, o]:11d}" for o in OUTCOMES))
    totals = [sum(n for (_, o), n in counts.items() if o == outcome) for outcome in OUTCOMES]
    return "\n".join([*lines, f"{'all':28}" + "".join(f"{n:11d}" for n in totals)])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first file (default: %(default)s)"
    )
    parser.add_argument("--every", type=int, default=10, help="compile every n-th (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="most seconds for a file (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="folder for the files (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        keep = args.keep or Path(temporary)
        keep.mkdir(parents=True, exist_ok=True)
        counts = run(args.count, args.seed, args.first, args.every, args.limit, keep)
    print(table(counts))
    return int(any(outcome in ("traceback", "hang") for _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
