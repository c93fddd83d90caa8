# SPDX-License-Identifier: Apache-2.0
"""Import PyTorch's own operator tests, compile them for a CPU, and compare with PyTorch.

    python scripts/opinfo.py --dtypes float32 --samples 4 --jobs 2
    python scripts/opinfo.py --ops add,softmax --dtypes float32,int64 --verbose
    python scripts/opinfo.py --share 0.1 --seed 7 --samples 6    # a tenth of the operators, other ones for each type
    python scripts/opinfo.py --jobs 12 --log log.jsonl           # continue: samples of the log are not repeated
    python scripts/opinfo.py --target cuda --samples 1           # CUDA kernels, in the emulator
    python scripts/opinfo.py --markdown log.jsonl                # the tables of a log

The operators are those of ``torch.testing._internal.common_methods_invocations.op_db`` that ``torch.export`` takes. A
child process runs them, so that a crash costs one sample. ``--output FILE`` writes a table of the outcomes in Markdown,
and ``--log FILE`` appends every sample. The exit code is 1 if a sample is wrong or crashed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _child_process import LinesOfJson, environment, run_in_children  # noqa: E402

DTYPES = ("float32", "float16", "int64", "uint8", "bool")
OUTCOMES = ("right", "wrong", "refused", "failed", "crashed")
TOGETHER = 24
"""Samples of one program. A program that fails is split until the sample is known."""
OPERATORS = 4
"""Operators of one request to a child."""
DONE = "done"
"""The outcome of an operator's last line in a log. Its sample is the number of samples asked for, not one of them."""
UNCOUNTED = ("skipped", DONE)
CHILD = Path(__file__).with_name("_opinfo_samples.py")
ALONE = {"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables of children: one thread each, since threads of several children wait for each other, and no GPU."""
ASIDE = ("linalg.", "fft.", "sparse.", "svd", "lu", "qr", "cholesky", "eig", "pinverse", "triangular_solve")
"""Beginnings of operators that do not count for the share: linear algebra, complex numbers, sparse tensors."""
ASIDE_TOO = frozenset(
    "logdet geqrf ormqr matrix_exp norm.nuc pca_lowrank svd_lowrank inverse cfloat cdouble chalf complex polar"
    " view_as_complex view_as_real stft istft to_sparse angle resize_ resize_as_ zero_ normal.in_place".split()
)


@dataclass(frozen=True)
class Request:
    """Samples of operators in one type: at most ``count`` of each, spread over all, or all if it is 0.

    ``known`` are the samples that a log has, as pairs of an operator and a number. They are not run.
    """

    operators: tuple[str, ...]
    dtype: str
    count: int
    known: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class Result:
    """The outcome of one sample."""

    operator: str
    dtype: str
    sample: int
    outcome: str
    reason: str


class Child:
    """A child process that runs samples. It is started again if one ends it, or takes more than ``limit`` seconds.

    A program of several samples, and the start with the samples of an operator, may take five times as long.
    """

    def __init__(self, limit: float, target: str = "llvm"):
        self.limit = limit
        self._lines = LinesOfJson([str(CHILD), target])

    def results(self, request: Request) -> Iterator[Result]:
        """Yield the results of a request's samples, and the ends of its operators."""
        known, alone = set(request.known), 0
        while True:
            self._lines.write(
                [request.operators, request.dtype, sorted(known), request.count, TOGETHER, alone]
            )
            waiting: list[tuple[str, int]] = []
            while True:
                line = self._lines.read(self.limit if len(waiting) == 1 else 5 * self.limit)
                if line is None:
                    break
                kind, *rest = line
                if kind == "done":
                    yield from self._ends(request)
                    return
                if kind == "begin":
                    waiting, alone = [(name, at) for name, at in rest[0]], max(0, alone - 1)
                    continue
                waiting.remove((rest[0], rest[1]))
                known.add((rest[0], rest[1]))
                yield Result(rest[0], request.dtype, *rest[1:])
            code = self._lines.close()
            if len(waiting) > 1:  # one of several samples ended the process: try these one by one
                alone = len(waiting)
                continue
            reason = "no answer in time" if code is None else f"exit code {code}"
            if (
                not waiting and len(request.operators) > 1
            ):  # between samples: PyTorch's own code ended the process
                for name in request.operators:
                    own = frozenset(each for each in known if each[0] == name)
                    yield from self.results(replace(request, operators=(name,), known=own))
                return
            if not waiting:
                yield Result(request.operators[0], request.dtype, 0, "skipped", f"its samples end: {reason}")
                yield from self._ends(request)
                return
            yield Result(waiting[0][0], request.dtype, waiting[0][1], "crashed", reason)
            known.add(waiting[0])

    @staticmethod
    def _ends(request: Request) -> Iterator[Result]:
        for name in request.operators:
            yield Result(name, request.dtype, request.count, DONE, "")

    def close(self) -> None:
        """End the process."""
        self._lines.close()


def run(
    requests: Sequence[Request], jobs: int, limit: float, heard: Any = None, target: str = "llvm"
) -> list[Result]:
    """Return the results of all requests, run by some child processes.

    Args:
        requests: the samples to run.
        jobs: number of child processes.
        limit: seconds for one program of samples.
        heard: called with each result as it comes.
        target: ``"llvm"``, or ``"cuda"`` in the emulator.
    """
    with environment(ALONE):
        return run_in_children(requests, jobs, lambda: Child(limit, target), heard)


def requests_for(
    names: Sequence[str],
    dtypes: Sequence[str],
    count: int,
    share: float = 1.0,
    seed: int = 0,
    former: Sequence[Result] = (),
) -> list[Request]:
    """Return the requests for operators in those of some types that they take, in a random order.

    In this order, a run that ends early has operators of all types, and costly operators do not come together.

    Args:
        names: operators with their variants, or beginnings of names that end in ``*``. None for all.
        dtypes: PyTorch's names of types.
        count: samples of each operator and type, spread over all of them. 0 for all.
        share: the share of these operators that a type gets, drawn at random.
        seed: of the draw and of the order.
        former: results of a log, which are left out.

    Raises:
        ValueError: if PyTorch tests no operator of a name, or the share is not between 0 and 1.
    """
    import torch
    from _opinfo_samples import operators

    known = operators()
    chosen = [name for name in known if not names or any(_matches(name, each) for each in names)]
    if unknown := [each for each in names if not any(_matches(name, each) for name in known)]:
        raise ValueError(f"PyTorch tests no operator {unknown[0]}")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"a share is more than 0 and at most 1, not {share}")
    done = {(each.operator, each.dtype) for each in former if each.outcome == DONE and each.sample == count}
    requests = []
    for dtype in dtypes:
        draw = random.Random(f"{seed} {dtype}")
        taken = [name for name in chosen if getattr(torch, dtype) in known[name].supported_dtypes("cpu")]
        taken = draw.sample(taken, max(1, round(share * len(taken))) if share < 1.0 else len(taken))
        taken = [name for name in taken if (name, dtype) not in done]
        seen = {
            (each.operator, each.sample) for each in former if each.dtype == dtype and each.outcome != DONE
        }
        for first in range(0, len(taken), OPERATORS):
            some = tuple(taken[first : first + OPERATORS])
            own = frozenset(each for each in seen if each[0] in some)
            requests.append(Request(some, dtype, count, own))
    random.Random(seed).shuffle(requests)
    return requests


def logged(path: Path) -> list[Result]:
    """Return the results of a log: the last one of each sample. A line that was cut off is removed from the file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    results = [Result(*json.loads(line)) for line in whole.splitlines()]
    return list({(r.operator, r.dtype, r.sample, r.outcome == DONE): r for r in results}.values())


def without(results: Sequence[Result], outcomes: Sequence[str]) -> list[Result]:
    """Return results of a log without those of some outcomes, and without the ends of their operators."""
    left_out = {(r.operator, r.dtype) for r in results if r.outcome in outcomes}
    return [
        r
        for r in results
        if r.outcome not in outcomes and not (r.outcome == DONE and (r.operator, r.dtype) in left_out)
    ]


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def is_aside(operator: str) -> bool:
    """Return whether an operator does not count for the share: linear algebra, complex numbers, changes in place."""
    return operator.startswith(ASIDE) or operator in ASIDE_TOO


def summary(results: Sequence[Result]) -> str:
    """Return the table of outcomes by type, in Markdown."""
    lines = [f"| Type | samples | {' | '.join(OUTCOMES)} | right, others aside |", "|---" * 8 + "|"]
    for dtype in dict.fromkeys(result.dtype for result in results):
        counts = Counter(r.outcome for r in results if r.dtype == dtype and r.outcome not in UNCOUNTED)
        inside = [
            r for r in results if r.dtype == dtype and r.outcome not in UNCOUNTED and not is_aside(r.operator)
        ]
        share = sum(r.outcome == "right" for r in inside) / max(len(inside), 1)
        cells = [dtype, counts.total(), *(counts[each] for each in OUTCOMES), f"{share:.1%}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def details(results: Sequence[Result]) -> str:
    """Return a table of the operators that are not right in all samples, with the reason of one sample, in Markdown."""
    by_operator: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.outcome not in UNCOUNTED:
            by_operator[result.operator].append(result)
    lines = [f"| Operator | {' | '.join(OUTCOMES)} | reason |", "|---" * 7 + "|"]
    for operator, each in sorted(by_operator.items()):
        counts = Counter(result.outcome for result in each)
        if set(counts) == {"right"}:
            continue
        reason = next(r.reason for r in sorted(each, key=lambda r: -OUTCOMES.index(r.outcome)) if r.reason)
        reason = " ".join(reason.split()).replace("|", "\\|")[:160]
        lines.append(f"| `{operator}` | {' | '.join(str(counts[o]) for o in OUTCOMES)} | {reason} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.markdown:
        results = logged(args.markdown)
    else:
        results = _run_logged(args, parser)
    text = f"{summary(results)}\n\n{details(results)}\n"
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    print(text if not args.verbose else summary(results))
    return int(any(result.outcome in ("wrong", "crashed") for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="", help="operators, with commas; a name may end in *")
    parser.add_argument(
        "--dtypes", default=",".join(DTYPES), help="types, with commas (default: %(default)s)"
    )
    parser.add_argument(
        "--samples", type=int, default=0, help="samples of each operator and type (default: all)"
    )
    parser.add_argument("--share", type=float, default=1.0, help="share of the operators (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of that share, and of the order")
    parser.add_argument("--jobs", type=int, default=1, help="child processes (default: 1)")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds for one sample (default: %(default)s)"
    )
    parser.add_argument(
        "--target", default="llvm", choices=("llvm", "cuda"), help="cuda: kernels run in the emulator"
    )
    parser.add_argument("--output", type=Path, help="write the tables to this file")
    parser.add_argument(
        "--log",
        type=Path,
        help="append every sample to this file, one JSON list a line; samples that it has are not run",
    )
    parser.add_argument(
        "--again", default="", help="outcomes, with commas: samples of the log with these are run again"
    )
    parser.add_argument("--markdown", type=Path, metavar="LOG", help="run nothing: print the tables of a log")
    parser.add_argument("--verbose", action="store_true", help="print every sample that is not right")
    return parser


def _run_logged(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Result]:
    """Return the results of the log, if there is one, and those of a run of all other samples."""
    former = without(logged(args.log), args.again.split(",")) if args.log else []
    try:
        names = [n for n in args.ops.split(",") if n]
        requests = requests_for(names, args.dtypes.split(","), args.samples, args.share, args.seed, former)
    except ValueError as error:
        parser.error(str(error))
    log = args.log.open("a", encoding="utf-8") if args.log else None

    def heard(result: Result) -> None:
        if log is not None:
            fields = [result.operator, result.dtype, result.sample, result.outcome, result.reason]
            print(json.dumps(fields), file=log, flush=True)
        if args.verbose and result.outcome not in ("right", *UNCOUNTED):
            print(
                f"{result.operator} {result.dtype} {result.sample}: {result.outcome}: {result.reason}",
                flush=True,
            )

    try:
        return former + run(requests, args.jobs, args.limit, heard, args.target)
    finally:
        if log is not None:
            log.close()


if __name__ == "__main__":
    sys.exit(main())
