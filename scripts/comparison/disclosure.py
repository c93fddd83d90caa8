# SPDX-License-Identifier: Apache-2.0
"""The facts that belong to the figures of a comparison: machine, date, versions, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tvm


def facts(command: Sequence[str], device: str = "") -> dict[str, str]:
    """Return facts by name: the command, the date (UTC), the machine, and the versions of all contenders.

    Args:
        command: the program's arguments, its own name first.
        device: the accelerator's name, empty for a CPU.
    """
    named = {
        "command": shlex.join([Path(command[0]).name, *command[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
    }
    if device:
        named["device"] = device
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    named["load when started"] = f"{load} (1, 5 and 15 minutes)"
    named["system"] = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    named["tvm"] = f"{tvm.__version__}, LLVM {tvm.target.codegen.llvm_version_major()}"
    named["tvm_stitch"] = _version_of_this()
    named["numpy"] = importlib.metadata.version("numpy")
    named["xgboost"] = xgboost_version() or "none"
    return named


def processor() -> str:
    """Return the CPU's name and the number of cores that this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("TVM_NUM_THREADS")
    return f"{name}, {cores} cores" + (f", TVM_NUM_THREADS={threads}" if threads else "")


def xgboost_version() -> str | None:
    """Return the version of xgboost, under either of its names. None if it is not installed."""
    for name in ("xgboost", "xgboost-cpu"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _version_of_this() -> str:
    """Return the commit in a checkout, else the installed version."""
    root = Path(__file__).resolve().parents[2]
    try:
        version = importlib.metadata.version("tvm_stitch")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=root,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version}, commit {done.stdout.strip()}"
