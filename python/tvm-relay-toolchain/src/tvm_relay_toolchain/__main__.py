# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_relay_toolchain``: prints what was found, what is missing and how to get it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from . import __version__
from .report import Status, status

_PROBE = """
import tvm_relay_toolchain
tvm_relay_toolchain.activate()
import tvm
from tvm.contrib.popen_pool import PopenWorker

def answer(x):
    return x + 1

worker = PopenWorker()
worker.send(answer, [41])
assert worker.recv() == 42
libraries = tvm.support.libinfo()
print("LLVM", libraries["LLVM_VERSION"], end=", ")
print("a CUDA device answers" if tvm.cuda().exist else "no CUDA device")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report. Return the exit code: 0 if TVM imports, 1 if something that it needs is missing."""
    parser = argparse.ArgumentParser(prog="tvm-relay-toolchain", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["doctor"], default="doctor", help="to report")
    parser.add_argument("--version", action="version", version=__version__)
    parser.parse_args(arguments)

    state = status()
    for line in describe(state):
        print(line)
    if not state.ok:
        return 1
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"import        fails:\n{probe.stderr.rstrip()}")
        return 1
    print(f"import        works, in a worker process too: {probe.stdout.strip()}")
    return 0


def describe(state: Status) -> list[str]:
    """Return the report, line by line."""
    lines = []

    def line(what: str, text: str) -> None:
        lines.append(f"{what:14}{text}")

    if state.tvm is None:
        line("TVM", "none")
    else:
        origin = {
            "wheel": "carried in the bitblas wheel",
            "path": "importable without this package",
            "environment": "named by TVM_HOME or TVM_LIBRARY_PATH",
        }[state.tvm.origin]
        relay = "with Relay" if state.tvm.has_relay else "without Relay"
        line("TVM", f"{state.tvm.version} {relay}, {origin}: {state.tvm.package}")
    line(
        "import hook",
        "installed" if state.hook else "not installed: call tvm_relay_toolchain.activate() first",
    )
    for soname, library in state.cuda.items():
        line(soname.split(".")[0], str(library.path) if library else "none")
    if state.driver is None:
        line("libcuda", "no NVIDIA driver; a stand-in is written when TVM is imported")
    else:
        line("libcuda", f"{'no NVIDIA driver; stand-in ' if state.driver.is_stub else ''}{state.driver.path}")
    nvrtc = state.cuda["libnvrtc.so.12"]
    line(
        "CUDA compiler",
        f"nvcc {state.nvcc[1]}, {state.nvcc[0]}" if state.nvcc else "NVRTC" if nvrtc else "none",
    )
    line("packages", ", ".join(f"{name} {version or 'missing'}" for name, version in state.packages.items()))
    for problem in state.problems:
        line("error" if problem.fatal else "note", f"{problem.what}\n{'':14}-> {problem.remedy}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
