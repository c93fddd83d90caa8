# SPDX-License-Identifier: Apache-2.0
"""Measure how long reports of whole models take to open in a headless Chromium, and whether it complains.

    python scripts/report_opening.py [bert resnet50 unet ...] [--target cuda] [--repeats 3]

Models are those of scripts/models, and a whole U-Net. Their packages have to be installed. Each has a line: its
operators and kernels, the page's size, and the seconds of opening. They run from the browser's start until all is drawn
and a kernel's panel is open. The table's head has the time of an empty page. The exit code is 1 if a page takes longer
than 3 s, or the browser complains.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _browser import Outcome, find_browser, in_browser
from models import registry
from models.spec import MissingPackages, Model, make

import tvm_stitch
from tvm_stitch.importers.torch import from_exported_program


def _unet(size: str, batch: int) -> tuple[Any, list[Any]]:
    from models import networks

    return networks.unet(size, batch)


MODELS = {**registry.MODELS, "unet": Model("unet", _unet)}
DEFAULT = ("bert", "resnet50", "unet")
MOST_SECONDS = 3.0
EMPTY = '<!doctype html><html><head></head><body data-ready="yes"></body></html>'
STEPS = """
  const cards = document.querySelectorAll(".card");
  click(cards[0]);
  return { cards: cards.length, panel: document.getElementById("panel").classList.contains("open") };
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and return the exit code: 2 if something is missing."""
    parser = argparse.ArgumentParser(description="How long reports take to open in a headless Chromium.")
    parser.add_argument("models", nargs="*", default=list(DEFAULT), metavar="MODEL", help="their names")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    if unknown := [name for name in args.models if name not in MODELS]:
        parser.error(f"no model {unknown[0]}; there are {', '.join(MODELS)}")
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    if find_browser() is None:
        print("error: no Chromium found: install one, or name one in CHROMIUM", file=sys.stderr)
        return 2
    try:
        registry.check_packages([MODELS[name] for name in args.models])
    except MissingPackages as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    empty, _ = opened(EMPTY, "return null", args.repeats)
    print(
        f"{'model':16}{'operators':>10}{'kernels':>9}{'page':>9}{'opens in':>10}   an empty page: {empty:.2f} s"
    )
    passed = True
    for name in args.models:
        report = tvm_stitch.explain(imported(name, args.size), args.target)
        page = report.to_html(name)
        seconds, outcome = opened(page, STEPS, args.repeats)
        model = report.completed()
        wrong = [*outcome.complaints, *([] if outcome.found["panel"] else ["no panel opened"])]
        wrong += [f"longer than {MOST_SECONDS:g} s"] if seconds > MOST_SECONDS else []
        passed &= not wrong
        told = f"{len(model.operators):10}{len(model.kernels):9}{len(page) / 1e6:6.2f} MB{seconds:8.2f} s"
        print(f"{name:16}{told}   {'; '.join(wrong)}".rstrip(), flush=True)
    return 0 if passed else 1


def imported(name: str, size: str) -> object:
    """Import a model, with the names of its modules."""
    import torch

    mod = make(MODELS[name], size, 1, "float32")
    program = torch.export.export(mod.module, tuple(mod.inputs))
    return from_exported_program(program)


def opened(page: str, steps: str, repeats: int) -> tuple[float, Outcome]:
    """Return the median seconds of a browser that opens a page, runs steps in it and ends, and the last outcome."""
    seconds = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            start = time.perf_counter()
            outcome = in_browser(page, steps, Path(folder))
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), outcome


if __name__ == "__main__":
    sys.exit(main())
