# SPDX-License-Identifier: Apache-2.0
"""Run models by ``torch.compile`` with this package's backend, next to Inductor and PyTorch without a compiler.

    python scripts/torch_backend.py --file scripts/families/compiled.txt --contenders eager,arguments --log log.jsonl
    python scripts/torch_backend.py --only bert,gpt2,resnet10t        # some models
    python scripts/torch_backend.py --family vision --share 0.2       # a fifth of a family, drawn at random
    python scripts/torch_backend.py --contenders eager,constants      # without Inductor
    python scripts/torch_backend.py --markdown log.jsonl              # the tables of a former run

The models are those of ``architectures.py``: small, with random weights, of timm, torchvision, transformers and other
packages. ``compiled.txt`` names more than 60 that compile fast. Each model has a process of its own for each contender,
but the first compiler runs in that of PyTorch:

- ``eager``: PyTorch without a compiler.
- ``inductor``: ``torch.compile`` with its defaults, without its cache.
- ``arguments``: this package's backend, without its cache. Weights are arguments, as by default.
- ``constants``: the same with weights as constants.

Compile times are processor seconds, so that they do not depend on other work of the machine. Results are compared with
PyTorch's in float64 and float32. The exit code is 1 if a model of this package's
backend is wrong, failed or crashed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _child_process import LinesOfJson, environment, run_in_children  # noqa: E402

CONTENDERS = ("eager", "inductor", "arguments", "constants")
OWN = ("arguments", "constants")
"""The contenders with this package's backend."""
SLOWER = 1.5
"""A model that takes this many times as long to compile as Inductor takes is named."""
CHILD = Path(__file__).with_name("_torch_backend_run.py")


@dataclass(frozen=True)
class Request:
    """One model by some contenders, which share a process."""

    name: str
    contenders: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """The outcome of a model by a contender.

    Attributes:
        name: the model.
        contender: the contender.
        outcome: ``right``, ``wrong``, ``failed``, ``crashed``, ``too slow``, ``not built`` or ``absent``.
        reason: why, and for right results why graphs were left to PyTorch.
        graphs: graphs that the backend got.
        left: those of them that PyTorch runs.
        first_s: processor seconds of the first call, which traces and compiles, with those of compilers that it runs.
        call_s: median seconds of later calls.
        error: greatest error relative to float64, or None if the model does not run in float64.
    """

    name: str
    contender: str
    outcome: str
    reason: str = ""
    graphs: int = 0
    left: int = 0
    first_s: float | None = None
    call_s: float | None = None
    error: float | None = None


class Child:
    """A process for each request, which ends behind it, or at a limit of seconds."""

    def __init__(self, limit: float, seconds: float):
        self.limit, self.seconds = limit, seconds
        self._lines = LinesOfJson([str(CHILD)])

    def results(self, request: Request) -> Iterator[Result]:
        """Yield the results of a request. A contender behind one that crashed has a process of its own."""
        for contender in request.contenders:
            self._lines.write([request.name, contender, self.seconds])
            line = self._lines.read(self.limit)
            if line is not None:
                yield Result(request.name, contender, **line[0])
                continue
            code = self.close()
            if code is None:
                yield Result(request.name, contender, "too slow", "no answer in time")
            else:
                yield Result(request.name, contender, "crashed", f"exit code {code}")
        self.close()

    def close(self) -> int | None:
        """End the process, and return its exit code, or None if it was still running."""
        return self._lines.close()


def requests_for(names: Sequence[str], contenders: Sequence[str], share: float, seed: int) -> list[Request]:
    """Return the requests for a share of models, drawn at random, by all contenders.

    PyTorch without a compiler shares the process of the first compiler. Compilers share none.

    Raises:
        ValueError: if a contender is unknown, or the share is not between 0 and 1.
    """
    if unknown := [each for each in contenders if each not in CONTENDERS]:
        raise ValueError(f"there is no contender {unknown[0]}; there are {', '.join(CONTENDERS)}")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"a share is more than 0 and at most 1, not {share}")
    drawn = set(random.Random(seed).sample(list(names), max(1, round(share * len(names)))) if names else ())
    compilers = [each for each in contenders if each != "eager"]
    plain = ("eager",) if "eager" in contenders else ()
    shared = [(*plain, *compilers[:1]), *((each,) for each in compilers[1:])]
    return [Request(name, each) for name in names if name in drawn for each in shared]


def left_of(requests: Sequence[Request], former: Sequence[Result]) -> list[Request]:
    """Return the requests without the contenders that have a result already."""
    has = {(r.name, r.contender) for r in former}
    rest = [Request(r.name, tuple(c for c in r.contenders if (r.name, c) not in has)) for r in requests]
    return [request for request in rest if request.contenders]


def run(
    requests: Sequence[Request], limit: float, seconds: float, heard: Callable[[Result], None] | None = None
) -> list[Result]:
    """Return the results of all requests, one after the other.

    Args:
        requests: models and contenders.
        limit: seconds for one of them, with its imports.
        seconds: of timed calls.
        heard: called with each result as it comes.
    """
    alone = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with environment(alone):
        return run_in_children(requests, 1, lambda: Child(limit, seconds), heard)


def table(results: Sequence[Result]) -> str:
    """Return the table of models in Markdown: outcomes, seconds of first calls, milliseconds of calls, and errors."""
    contenders = [each for each in CONTENDERS if any(r.contender == each for r in results)]
    compiling = [each for each in contenders if each != "eager"]
    head = ["Model", "outcome", "graphs", "left"]
    head += [f"compile, {each}" for each in compiling]
    head += [f"call, {each}" for each in contenders] + [f"error, {each}" for each in contenders]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in dict.fromkeys(r.name for r in results):
        of = {r.contender: r for r in results if r.name == name}
        own = [of[each] for each in OWN if each in of]
        cells = [f"`{name}`", ", ".join(dict.fromkeys(r.outcome for r in own))]
        cells += [str(max((r.graphs for r in own), default="")), str(max((r.left for r in own), default=""))]
        cells += [_number(of[each].first_s if each in of else None, "{:.1f} s") for each in compiling]
        calls = [of[each].call_s if each in of else None for each in contenders]
        cells += [_number(None if s is None else 1e3 * s, "{:.2f} ms") for s in calls]
        cells += [_number(of[each].error if each in of else None, "{:.0e}") for each in contenders]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def reasons(results: Sequence[Result]) -> str:
    """Return the table of results that are not right, and of graphs that PyTorch runs, in Markdown."""
    rows = [r for r in results if r.reason and (r.contender in OWN or r.outcome != "right")]
    if not rows:
        return ""
    lines = ["| Model | contender | outcome | reason |", "|---|---|---|---|"]
    for r in rows:
        reason = " ".join(r.reason.split()).replace("|", "\\|")[:200]
        lines.append(f"| `{r.name}` | {r.contender} | {r.outcome} | {reason} |")
    return "\n".join(lines)


def slower_to_compile(results: Sequence[Result], times: float = SLOWER) -> list[str]:
    """Return the models that this package compiles more than ``times`` as long as Inductor."""
    seconds = {(r.name, r.contender): r.first_s for r in results if r.first_s is not None}
    return [
        name
        for (name, contender), first in seconds.items()
        if contender == "arguments" and first > times * seconds.get((name, "inductor"), float("inf"))
    ]


def summary(results: Sequence[Result]) -> str:
    """Return the number of models with right results, and the names of models that compile slowly."""
    own = [r for r in results if r.contender in OWN]
    models = {r.name for r in own}
    right = models - {r.name for r in own if r.outcome != "right"}
    compared = {r.name for r in results if r.contender == "inductor" and r.first_s is not None} & models
    text = f"{len(right)} of {len(models)} models are right."
    if compared:
        slow = slower_to_compile(results)
        text += (
            f" {len(slow)} of the {len(compared)} that Inductor compiled too take more than {SLOWER} times as long"
            f" to compile{': ' + ', '.join(slow) if slow else ''}."
        )
    return text


def report(results: Sequence[Result]) -> str:
    """Return a summary and all tables in Markdown."""
    return "\n\n".join(part for part in (summary(results), table(results), reasons(results)) if part) + "\n"


def logged(path: Path) -> list[Result]:
    """Return the results of a log. A later result takes the place of a former one."""
    found = [Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(r.name, r.contender): r for r in found}.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="models, with commas; a name may end in *")
    parser.add_argument("--file", type=Path, help="a file with names of models, one a line")
    parser.add_argument("--family", default="", help="families, with commas")
    parser.add_argument("--share", type=float, default=1.0, help="share of these models (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of that share")
    parser.add_argument(
        "--contenders", default=",".join(CONTENDERS), help="with commas (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed calls (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds for one model (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="write the tables to this file")
    parser.add_argument(
        "--log",
        type=Path,
        help="append every result to this file as a line of JSON, and skip models that it has already",
    )
    parser.add_argument("--markdown", type=Path, metavar="LOG", help="run nothing: print the tables of a log")
    parser.add_argument("--list", action="store_true", help="print the models and end")
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
            names = ",".join(filter(None, [args.only, *(_named(args.file) if args.file else [])]))
            models = [a for a in registry.chosen(names, args.family) if "torch" in a.paths]
            chosen = requests_for([a.name for a in models], args.contenders.split(","), args.share, args.seed)
        except ValueError as error:
            parser.error(str(error))
        if args.list:
            print("\n".join(f"{each.name:32}{each.family:20}{each.maker}" for each in models))
            return 0
        results = _run_logged(chosen, args)
    text = report(results)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    print(text)
    return int(any(r.contender in OWN and r.outcome in ("wrong", "failed", "crashed") for r in results))


def _named(path: Path) -> list[str]:
    """Return the names in a file. A line that begins with ``#`` is a comment."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _run_logged(requests: Sequence[Request], args: argparse.Namespace) -> list[Result]:
    former = logged(args.log) if args.log and args.log.exists() else []
    log = args.log.open("a", encoding="utf-8") if args.log else None

    def heard(result: Result) -> None:
        print(f"{result.name} {result.contender}: {result.outcome}", file=sys.stderr, flush=True)
        if log is not None:
            print(json.dumps(asdict(result)), file=log, flush=True)

    try:
        return [*former, *run(left_of(requests, former), args.limit, args.seconds, heard)]
    finally:
        if log is not None:
            log.close()


if __name__ == "__main__":
    sys.exit(main())
