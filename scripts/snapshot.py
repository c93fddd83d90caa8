#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record the compiler's output for many models, and compare two records: a change of structure changes nothing.

    python scripts/snapshot.py record build/before               # in the environment with Relax
    python scripts/snapshot.py record build/before-relay         # in the one with Relay
    python scripts/snapshot.py compare build/before build/after  # exit code 1 if anything differs

A record has one file for each workload and target. It holds the text of the lowered module, its structural hash (which
sees constants too), and the text of ``explain``. Workloads are the small models of tests/models/zoo, the named cases,
the corpus and random graphs of the fuzzer, and random memory-intensive graphs. On CUDA, models are recorded twice:
without libraries, and as planned where cuBLASLt and cuDNN are installed.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import logging
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_STITCH_CUBLASLT", "none")

import tvm
from _checkout import ROOT

from tvm_stitch import compat

TARGETS = ("llvm", "cuda")
WITH_LIBRARIES = "cuda-libraries"
RANDOM = 250
"""Random graphs of each of the generators, without ``--random``."""
DIFFERENCES_SHOWN = 12


def _target(kind: str) -> Any:
    return (
        tvm.target.Target("llvm") if kind == "llvm" else tvm.target.Target("nvidia/nvidia-h100", host="llvm")
    )


# -- workloads -----------------------------------------------------------------------------------------------
def _zoo(name: str) -> tvm.IRModule:
    import torch

    from tests.models.zoo.models import MODELS

    torch.manual_seed(0)
    return MODELS[name]().mod


def _fuzz(seed: int) -> tvm.IRModule:
    from fuzzing.build import build
    from fuzzing.generate import Profile, generate

    return build(generate(seed, Profile()))


def _corpus(name: str) -> tvm.IRModule:
    from fuzzing.build import build
    from fuzzing.case import Case

    return build(Case.from_json((ROOT / "tests/fuzz/corpus" / name).read_text(encoding="utf-8")))


def _random(seed: int) -> tvm.IRModule:
    from stitch_testing.random.graphs import random_graph

    return random_graph(seed).mod


def _random_relay(seed: int) -> tvm.IRModule:
    from stitch_testing.relay.random_graphs import random_graph

    return random_graph(seed).mod


def _cases() -> dict[str, Callable[[], tvm.IRModule]]:
    if compat.HAS_RELAY:
        from stitch_testing.relay import cases

        return {f"case-{c.name}": c.build for c in (*cases.cases(), *cases.grid_cases())}
    from tvm_stitch.testing.workloads import cases as named
    from tvm_stitch.testing.workloads import grid_cases as named_grid

    return {f"case-{c.name}": c.build for c in (*named.cases(), *named_grid.grid_cases())}


def workloads(random: int) -> dict[str, tuple[Callable[..., tvm.IRModule], tuple[Any, ...]]]:
    """Return the function and arguments that build each workload, by name."""
    makers: dict[str, tuple[Callable[..., tvm.IRModule], tuple[Any, ...]]] = {}
    if compat.HAS_RELAY:
        makers |= {f"random-{seed}": (_random_relay, (seed,)) for seed in range(random)}
        return makers | {name: (_case, (name,)) for name in _cases()}
    from tests.models.zoo.models import MODELS

    makers |= {f"zoo-{name}": (_zoo, (name,)) for name in MODELS}
    makers |= {name: (_case, (name,)) for name in _cases()}
    makers |= {
        f"corpus-{p.stem}": (_corpus, (p.name,)) for p in sorted((ROOT / "tests/fuzz/corpus").glob("*.json"))
    }
    for seed in range(random):
        makers[f"random-{seed}"] = _random, (seed,)
        makers[f"fuzz-{seed}"] = _fuzz, (seed,)
    return makers


def _case(name: str) -> tvm.IRModule:
    return _cases()[name]()


# -- recording -----------------------------------------------------------------------------------------------
@tvm.ir.instrument.pass_instrument
class _BeforeShapes:
    """Keeps the module before VMShapeLower, which orders computations on symbols by their addresses."""

    mod: Any = None

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name == "VMShapeLower":
            self.mod = mod


def _of_relax(mod: tvm.IRModule, kind: str) -> Iterator[str]:
    import tvm_ffi

    import tvm_stitch
    from tvm_stitch.records.decisions import without_decisions
    from tvm_stitch.relax import pipeline

    target, before = _target(kind), _BeforeShapes()
    with target, tvm.transform.PassContext(instruments=[before]):
        lowered = pipeline(target)(mod)
    lowered = without_decisions(before.mod or lowered)
    yield f"structural hash {tvm_ffi.structural_hash(lowered):x}"
    yield lowered.script(show_meta=False)
    yield tvm_stitch.explain(mod, target).verbose()


def _of_relay(mod: tvm.IRModule, kind: str) -> Iterator[str]:
    from tvm_stitch import relay as stitch_relay

    emitted: list[str] = []
    with _emitted(emitted):
        report = stitch_relay.explain(mod, _target(kind))
    yield from emitted
    yield report.verbose()


class _emitted:
    """Collect the text of each function that the code generator emits while this context is open."""

    def __init__(self, texts: list[str]):
        self.texts = texts

    def __enter__(self) -> None:
        from tvm_stitch.codegen import emit as module

        original = module.emit

        def emit(*args: Any, **kwargs: Any) -> Any:
            artifact = original(*args, **kwargs)
            self.texts.append(artifact.script(show_meta=False))
            return artifact

        self.places = [m for m in sys.modules.values() if vars(m).get("emit") is original]
        self.original = original
        for place in self.places:
            place.emit = emit  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        for place in self.places:
            place.emit = self.original  # type: ignore[attr-defined]


class _with_libraries:
    """Plan as if NVIDIA's libraries were installed while this context is open."""

    def __enter__(self) -> None:
        from tvm_stitch.compute.cuda import library

        self.module, self.original = library, library.why_not
        library.why_not = lambda *_args: None

    def __exit__(self, *_: object) -> None:
        self.module.why_not = self.original


_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def _record(job: tuple[str, str, str, int]) -> tuple[str, float]:
    folder, name, kind, random = job
    began = time.perf_counter()
    logging.disable(logging.WARNING)
    build, args = workloads(random)[name]
    texts: list[str] = []
    try:
        mod = build(*args)
        if compat.HAS_RELAY:
            texts += _of_relay(mod, kind)
        elif kind == WITH_LIBRARIES:
            with _with_libraries():
                texts += _of_relax(mod, "cuda")
        else:
            texts += _of_relax(mod, kind)
    except Exception as err:  # the error has to stay the same too
        texts.append(f"raised {type(err).__name__}: {str(err).splitlines()[0] if str(err) else ''}")
    text = _ADDRESS.sub("0x", "\n----\n".join(texts))
    (Path(folder) / f"{name}.{kind}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return f"{name}.{kind}", time.perf_counter() - began


def record(folder: Path, random: int, jobs: int, only: str) -> None:
    """Write the compiler's output for every workload into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = []
    for name in workloads(random):
        kinds = [*TARGETS, *([WITH_LIBRARIES] if name.startswith("zoo-") else [])]
        todo += [(str(folder), name, kind, random) for kind in kinds if re.search(only, f"{name}.{kind}")]
    began = time.perf_counter()
    times: list[tuple[str, float]] = []
    for libraries in (False, True):  # in processes of their own: whether a library is there is looked up once
        jobs_of = [job for job in todo if (job[2] == WITH_LIBRARIES) is libraries]
        with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
            times += pool.imap_unordered(_record, jobs_of)
    slowest = sorted(times, key=lambda done: -done[1])[:5]
    print(f"{len(todo)} records in {time.perf_counter() - began:.0f} s; slowest: {slowest}")


# -- comparing -----------------------------------------------------------------------------------------------
def compare(before: Path, after: Path, shown: int) -> int:
    """Print the differences between two folders, for names in both, and return the number of differing records."""
    names = sorted(p.name for p in after.glob("*.gz"))
    missing = [name for name in names if not (before / name).exists()]
    differing = [
        name for name in names if name not in missing and _bytes(before / name) != _bytes(after / name)
    ]
    families = Counter(name.split("-")[0] for name in differing)
    print(f"{len(names) - len(missing)} records compared, {len(differing)} differ {dict(families) or ''}")
    for name in missing:
        print(f"not in {before}: {name}")
    for name in differing[:shown]:
        print(f"== {name}")
        old, new = (gzip.decompress((f / name).read_bytes()).decode().splitlines() for f in (before, after))
        for line in list(difflib.unified_diff(old, new, lineterm="", n=0))[2:12]:
            print("  ", line[:160])
    return len(differing) + len(missing)


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--random", type=int, default=RANDOM)
    recording.add_argument("--jobs", type=int, default=2)
    recording.add_argument("--only", default="", help="a regular expression of the names to record")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--shown", type=int, default=DIFFERENCES_SHOWN)
    options = parser.parse_args(argv)
    if options.command == "record":
        record(options.folder, options.random, options.jobs, options.only)
        return 0
    return 1 if compare(options.before, options.after, options.shown) else 0


if __name__ == "__main__":
    sys.exit(main())
