# SPDX-License-Identifier: Apache-2.0
"""Import, compile and check architectures of other people's packages, through PyTorch's programs and through ONNX.

    python scripts/architectures.py --jobs 2                     # all of them, as exported
    python scripts/architectures.py --dynamic --jobs 2           # those with a symbolic batch, length or cache
    python scripts/architectures.py --only bert,llama* --stock   # some, and TVM's compile time
    python scripts/architectures.py --markdown log.jsonl         # the tables of a former run

Models have random weights and few layers. They need transformers, timm, torchvision, diffusers and torch_geometric.
The way through ONNX needs onnxscript. Models of absent packages are listed as absent. A child process runs them,
so that a crash costs one model. Results are compared with PyTorch's in float64 and float32, or with ONNX Runtime's.
A dynamic variant is also called with another size than the exported one. The exit code is 1 if a result is wrong, or
an import or the compiler failed or crashed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _child_process import LinesOfJson, run_in_children  # noqa: E402

if TYPE_CHECKING:
    from families.spec import Architecture

PATHS = ("torch", "onnx")
OUTCOMES = ("right", "wrong", "refused", "failed", "crashed", "too slow")
"""Outcomes that count. A failed model ends in an error that names no operator."""
ASIDE = ("not exported", "absent")
"""Outcomes that say nothing of tvm_stitch: PyTorch's exporter fails, or a package is missing."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CHILD = Path(__file__).with_name("_architecture_run.py")
MODELS_OF_A_CHILD = 15
"""A child process is replaced after so many models: PyTorch and LLVM keep memory."""


@dataclass(frozen=True)
class Request:
    """One architecture, with the ways that it goes, and whether stock TVM compiles it too."""

    name: str
    family: str
    variant: str
    paths: tuple[str, ...]
    stock: bool = False

    @property
    def dynamic(self) -> bool:
        """True if a dimension is symbolic."""
        return self.variant != "static"


@dataclass(frozen=True)
class Result:
    """The outcome of an architecture by one way, with seconds of processor time by stage."""

    name: str
    family: str
    variant: str
    path: str
    outcome: str
    reason: str
    seconds: dict[str, float]


class Child:
    """A child process that runs architectures, and is started again if one ends it.

    Args:
        limit: seconds for building an architecture, and for each of its ways.
        memory: gigabytes of address space.
    """

    def __init__(self, limit: float, memory: float):
        self.limit = limit
        self._lines = LinesOfJson([str(CHILD), str(memory)])
        self._models = 0

    def results(self, request: Request) -> Iterator[Result]:
        """Yield the results of a request, one for each way."""
        left = list(request.paths)
        while left:
            if self._models >= MODELS_OF_A_CHILD:
                self.close()
            self._models += 1
            self._lines.write([request.name, request.dynamic, left, request.stock])
            at = ""
            while (line := self._lines.read(self.limit if at else 2 * self.limit)) is not None:
                kind, *rest = line
                if kind == "done":
                    return
                if kind == "begin":
                    at = rest[0]
                    continue
                left.remove(rest[0])
                yield _result(request, rest[0], rest[1], rest[2], dict(rest[3]))
            code = self.close()
            word, reason = (
                ("too slow", "no answer in time") if code is None else ("crashed", f"exit code {code}")
            )
            if at not in left:  # while it was built: no way is at fault
                yield from (_result(request, path, "not exported", reason, {}) for path in left)
                return
            left.remove(at)
            yield _result(request, at, word, reason, {})

    def close(self) -> int | None:
        """End the process, and return its exit code, or None if it was still running."""
        self._models = 0
        return self._lines.close()


def _result(request: Request, path: str, word: str, reason: str, seconds: dict[str, float]) -> Result:
    return Result(request.name, request.family, request.variant, path, word, reason, seconds)


def requests_for(
    architectures: Sequence[Architecture], dynamic: bool, paths: Sequence[str], stock: bool
) -> list[Request]:
    """Return the requests for architectures, by the ways that they have. Dynamic ones need a symbolic dimension."""
    requests = []
    for each in architectures:
        ways = tuple(path for path in paths if path in each.paths)
        if ways and (each.symbolic or not dynamic):
            requests.append(
                Request(each.name, each.family, each.symbolic if dynamic else "static", ways, stock)
            )
    return requests


def run(
    requests: Sequence[Request],
    jobs: int,
    limit: float,
    memory: float,
    heard: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Return the results of all requests, run by some child processes.

    Args:
        requests: the architectures to run.
        jobs: number of child processes.
        limit: seconds for one way of one architecture.
        memory: gigabytes of a child's address space.
        heard: called with each result as it comes.
    """
    results = run_in_children(requests, jobs, lambda: Child(limit, memory), heard)
    order = {(request.name, path): i for i, request in enumerate(requests) for path in request.paths}
    return sorted(results, key=lambda result: (order[result.name, result.path], PATHS.index(result.path)))


def summary(results: Sequence[Result]) -> str:
    """Return the table of outcomes by way and by static and dynamic variants, in Markdown."""
    words = [*OUTCOMES, *ASIDE]
    lines = [f"| Way | Variant | models | {' | '.join(words)} |", "|---" * (3 + len(words)) + "|"]
    for dynamic in (False, True):
        for path in PATHS:
            own = [r for r in results if r.path == path and (r.variant != "static") == dynamic]
            if own:
                counts = Counter(r.outcome for r in own)
                cells = [
                    path,
                    "dynamic" if dynamic else "static",
                    len(own),
                    *(counts[each] for each in words),
                ]
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def by_family(results: Sequence[Result]) -> str:
    """Return the table of architectures by family, each with its outcomes, in Markdown.

    A name has the outcomes of its ways behind it if they are not all right.
    """
    lines = ["| Family | right | models |", "|---|---|---|"]
    for family in dict.fromkeys(result.family for result in results):
        own = [r for r in results if r.family == family and r.outcome not in ASIDE]
        names = dict.fromkeys(r.name for r in own)
        right = sum(r.outcome == "right" for r in own)
        lines.append(f"| {family} | {right} of {len(own)} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def losses(results: Sequence[Result]) -> str:
    """Return the table of all outcomes that are not right, with their reasons, in Markdown."""
    lines = ["| Architecture | Way | Variant | Outcome | Reason |", "|---|---|---|---|---|"]
    order = [*OUTCOMES, *ASIDE]
    for r in sorted(results, key=lambda r: order.index(r.outcome)):
        if r.outcome != "right":
            reason = " ".join(COLOURS.sub("", r.reason).split()).replace("|", "\\|")[:160]
            lines.append(f"| `{r.name}` | {r.path} | {r.variant} | {r.outcome} | {reason} |")
    return "\n".join(lines)


def compile_times(results: Sequence[Result]) -> str:
    """Return a sentence on compile times of the models that stock TVM compiles too, or nothing if there are none."""
    both = [r.seconds for r in results if {"compile", "stock"} <= set(r.seconds)]
    if not both:
        return ""
    ratios = sorted(each["compile"] / max(each["stock"], 1e-9) for each in both)
    own, stock = sum(each["compile"] for each in both), sum(each["stock"] for each in both)
    return (
        f"tvm_stitch compiles {len(both)} of these models in {own:.0f} s of processor time, TVM in {stock:.0f} s"
        f" (median ratio {ratios[len(ratios) // 2]:.2f}, largest {ratios[-1]:.2f})."
    )


def report(results: Sequence[Result]) -> str:
    """Return all tables in Markdown."""
    parts = [summary(results), compile_times(results), by_family(results), losses(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def logged(path: Path) -> list[Result]:
    """Return the results of a log. A later result of a model takes the place of a former one."""
    results = [Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(r.name, r.variant, r.path): r for r in results}.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="architectures, with commas; a name may end in *")
    parser.add_argument("--family", default="", help="families, with commas")
    parser.add_argument("--dynamic", action="store_true", help="with a symbolic batch, length or cache")
    parser.add_argument("--path", choices=PATHS, help="one way alone (default: both)")
    parser.add_argument("--stock", action="store_true", help="compile with TVM's default pipeline too")
    parser.add_argument("--jobs", type=int, default=1, help="child processes (default: 1)")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds for one way (default: %(default)s)"
    )
    parser.add_argument(
        "--memory",
        type=float,
        default=24.0,
        help="gigabytes of a child's address space (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, help="write the tables to this file")
    parser.add_argument("--log", type=Path, help="append every result to this file, one JSON object a line")
    parser.add_argument("--markdown", type=Path, metavar="LOG", help="run nothing: print the tables of a log")
    parser.add_argument("--list", action="store_true", help="print the architectures and end")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.markdown:
        results = logged(args.markdown)
    else:
        from families import registry

        try:
            architectures = registry.chosen(args.only, args.family)
        except ValueError as error:
            parser.error(str(error))
        if args.list:
            for each in architectures:
                print(f"{each.name:32}{each.family:20}{each.maker:18}{each.symbolic}")
            return 0
        paths = (args.path,) if args.path else PATHS
        results = _run_logged(requests_for(architectures, args.dynamic, paths, args.stock), args)
    text = report(results)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    print(text)
    return int(any(r.outcome in ("wrong", "failed", "crashed") for r in results))


def _run_logged(requests: Sequence[Request], args: argparse.Namespace) -> list[Result]:
    log = args.log.open("a", encoding="utf-8") if args.log else None

    def heard(result: Result) -> None:
        print(f"{result.name} {result.variant} {result.path}: {result.outcome}", file=sys.stderr, flush=True)
        if log is not None:
            print(json.dumps(asdict(result)), file=log, flush=True)

    try:
        return run(requests, args.jobs, args.limit, args.memory, heard)
    finally:
        if log is not None:
            log.close()


if __name__ == "__main__":
    sys.exit(main())
