#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check steps of transformers' decoders with caches of a static size: kernels, and errors next to PyTorch's.

    python scripts/decoders.py                                    # all of them, in 10 minutes
    python scripts/decoders.py --only llama,t5* --dtypes float32  # some
    python scripts/decoders.py --count                            # kernels of CUDA alone, stitched
    python scripts/decoders.py --log log.jsonl                    # append each row to a file
    python scripts/decoders.py --markdown log.jsonl               # the tables of former runs

Models are small and have random weights. Kernels are counted for llvm and CUDA, with TVM's own pipeline too, which
needs no GPU. Numbers are those of the CPU. Errors are those of the scores relative to PyTorch's in float64.

Exit code: 1 if a step fails, has more kernels than TVM's, or an error of more than 1.2 times PyTorch's. Otherwise it is
0, or 2 for a usage error.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _checkout

sys.path.insert(0, str(_checkout.ROOT / "examples"))

from models.spec import _import_torchvision  # noqa: E402

if TYPE_CHECKING:
    from decoding.measure import Row

DTYPES = ("float32", "bfloat16")
TOKENS = (1, 4)
HEAD = (
    *("Decoder", "Type", "Tokens", "llvm, TVM", "llvm, stitched", "CUDA, TVM", "CUDA, stitched"),
    *("error", "PyTorch's", "ratio"),
)
Variant = tuple[str, int, bool]
"""The type of a step, its tokens, and whether caches have a symbolic length."""
MOST = 1.2
"""The largest error, relative to PyTorch's own."""


def problems(row: Row) -> list[str]:
    """Return what is wrong with a row."""
    wrong = [
        f"{own} kernels on {target}, and TVM has {stock}"
        for target, (own, stock) in row.kernels.items()
        if stock is not None and own > stock
    ]
    if row.ratio > MOST:
        wrong.append(f"{row.ratio:.2f} times PyTorch's error")
    return wrong


def table(rows: Sequence[Row], symbolic: bool) -> str:
    """Return the table of rows with caches of a static, or of a symbolic, length in Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in rows:
        if row.symbolic == symbolic:
            counts = [
                number
                for own, stock in row.kernels.values()
                for number in ("fails" if stock is None else stock, own)
            ]
            cells = [f"`{row.name}`", row.dtype, row.tokens, *counts]
            cells += [f"{row.error:.1e}", f"{row.torch_error:.1e}", f"{row.ratio:.2f}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def report(rows: Sequence[Row]) -> str:
    """Return the tables in Markdown."""
    kinds = [kind for kind in (False, True) if any(row.symbolic == kind for row in rows)]
    titles = {False: "Caches of a static length", True: "Caches of a symbolic length"}
    return "\n".join(f"{titles[kind]}:\n\n{table(rows, kind)}" for kind in kinds)


def logged(path: Path) -> list[Row]:
    """Return the rows of a log. A later row takes the place of a former one."""
    from decoding.measure import Row

    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        data: dict[str, Any] = json.loads(line)
        data["kernels"] = {name: tuple(counts) for name, counts in data["kernels"].items()}
        row = Row(**data)
        rows[row.name, row.dtype, row.tokens, row.symbolic] = row
    return list(rows.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="decoders, with commas; a name may have a *")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="types (default: %(default)s)")
    parser.add_argument(
        "--tokens", default=",".join(map(str, TOKENS)), help="new tokens of a step, with commas"
    )
    parser.add_argument(
        "--count", action="store_true", help="count the stitched kernels of CUDA, and run nothing"
    )
    parser.add_argument("--log", type=Path, help="append every row to this file, one JSON object a line")
    parser.add_argument("--markdown", type=Path, metavar="LOG", help="run nothing: print the tables of a log")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        _import_torchvision()
        import transformers  # noqa: F401
    except ImportError:
        parser.error("this script needs transformers: pip install transformers")
    if args.markdown:
        print(report(logged(args.markdown)))
        return 0
    dtypes = args.dtypes.split(",")
    if unknown := [each for each in dtypes if each not in DTYPES]:
        parser.error(f"no type {unknown[0]}; there are {', '.join(DTYPES)}")
    from decoding.cases import DECODERS

    patterns = args.only.split(",")
    chosen = [each for each in DECODERS if any(fnmatch.fnmatch(each.name, p) for p in patterns)]
    if not chosen:
        parser.error(f"no decoder {args.only}; there are {', '.join(each.name for each in DECODERS)}")
    tokens = [int(each) for each in args.tokens.split(",")]
    variants = [(dtype, count, False) for dtype in dtypes for count in tokens]
    variants += [(dtypes[0], tokens[0], True)]
    return _count(chosen, variants) if args.count else _run(chosen, variants, args.log)


def _count(chosen: Sequence[Any], variants: Sequence[Variant]) -> int:
    from decoding.measure import counted

    for decoder in chosen:
        for dtype, count, symbolic in variants:
            kernels = counted(decoder, dtype, count, symbolic)
            print(
                decoder.name,
                dtype,
                count,
                "symbolic" if symbolic else "static",
                kernels,
                sep="\t",
                flush=True,
            )
    return 0


def _run(chosen: Sequence[Any], variants: Sequence[Variant], log: Path | None) -> int:
    from decoding.measure import measured

    from tvm_stitch.support.failures import error_text, reraise_fatal

    rows, failed = [], False
    for decoder in chosen:
        for dtype, count, symbolic in variants:
            title = f"{decoder.name}, {dtype}, {count} tokens{', symbolic length' if symbolic else ''}"
            try:
                row = measured(decoder, dtype, count, symbolic)
            except Exception as error:
                reraise_fatal(error)
                print(f"{title}: {type(error).__name__}: {error_text(error)}", file=sys.stderr, flush=True)
                failed = True
                continue
            wrong = problems(row)
            failed = failed or bool(wrong)
            print(f"{title}: {'; '.join(wrong) or 'right'}", file=sys.stderr, flush=True)
            rows.append(row)
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    print(json.dumps(asdict(row)), file=file)
    print(report(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
