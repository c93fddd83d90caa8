# SPDX-License-Identifier: Apache-2.0
"""``status``: the parts of the Relay toolchain that were found, and those that are missing."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from dataclasses import dataclass, field

from . import _hook, libraries, locate

REQUIRED = {
    "attrs": "attrs",
    "cloudpickle": "cloudpickle",
    "decorator": "decorator",
    "ml_dtypes": "ml_dtypes",
    "numpy": "numpy",
    "psutil": "psutil",
    "scipy": "scipy",
    "setuptools": "setuptools",
    "tornado": "tornado",
    "typing_extensions": "typing_extensions",
}
"""Distributions that TVM imports, with pip's requirement for each.

Without cloudpickle every measurement fails. setuptools has the distutils that Python 3.12 dropped.
"""

OPTIONAL = {
    "xgboost": ("xgboost-cpu", "the learned cost models of Ansor and AutoTVM"),
    "onnx": ("onnx", "relay.frontend.from_onnx"),
}
"""Packages, with pip's requirement and the feature that needs each."""


@dataclass(frozen=True)
class Problem:
    """Something missing or unsuitable, the remedy, and whether ``import tvm`` fails because of it."""

    what: str
    remedy: str
    fatal: bool = True


@dataclass(frozen=True)
class Status:
    """The state of the toolchain.

    Attributes:
        tvm: the TVM that ``import tvm`` gives, or None.
        hook: whether every process of this Python finds it by itself.
        cuda: the CUDA libraries by soname (runtime and NVRTC). None for a missing one.
        driver: the driver's library or, once loaded, its stub. None without a driver.
        nvcc: path and release of nvcc, or None.
        packages: version of each relevant Python package. None for a missing one.
        problems: the missing parts.
    """

    tvm: locate.TvmInstall | None
    hook: bool
    cuda: dict[str, libraries.Library | None]
    driver: libraries.Library | None
    nvcc: tuple[str, str] | None
    packages: dict[str, str | None]
    problems: tuple[Problem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """True if nothing prevents ``import tvm`` and its worker processes."""
        return not any(problem.fatal for problem in self.problems)


def status() -> Status:
    """Examine the toolchain. This loads the CUDA libraries, but not TVM."""
    tvm = locate.choose()
    cuda = {soname: libraries.load(soname) for soname in libraries.CUDA_LIBRARIES}
    packages = {name: _version(name) for name in (*REQUIRED, "xgboost", "onnx")}
    packages["xgboost"] = packages["xgboost"] or _version("xgboost-cpu")
    return Status(
        tvm=tvm,
        hook=_hook.at_startup,
        cuda=cuda,
        driver=libraries.load_driver(),
        nvcc=_nvcc(),
        packages=packages,
        problems=tuple(_problems(tvm, cuda, packages)),
    )


def _problems(
    tvm: locate.TvmInstall | None,
    cuda: dict[str, libraries.Library | None],
    packages: dict[str, str | None],
) -> list[Problem]:
    """Return all missing parts, the worst first."""
    problems = []
    if tvm is None:
        problems.append(Problem("no TVM with Relay", f"pip install --no-deps {locate.WHEEL}"))
    elif not tvm.has_relay:
        remedy = "give the TVM with Relay an environment of its own, or call tvm_relay_toolchain.activate(force=True)"
        problems.append(Problem(f"TVM {tvm.version} in {tvm.package} has no Relay", remedy))
    for soname, library in cuda.items():
        if library is None:
            needed = tvm is None or tvm.origin == "wheel"
            remedy = f"pip install {libraries.CUDA_LIBRARIES[soname][1]}"
            problems.append(Problem(f"no {soname}", remedy, fatal=needed))
    for name, requirement in REQUIRED.items():
        if packages[name] is None:
            problems.append(Problem(f"no {name}", f"pip install {requirement}"))
    for name, (requirement, use) in OPTIONAL.items():
        if packages[name] is None:
            problems.append(
                Problem(f"no {name}: {use} will not work", f"pip install {requirement}", fatal=False)
            )
    return problems


def _version(distribution: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvcc() -> tuple[str, str] | None:
    """Return the path and the release of the nvcc on PATH, or None."""
    path = shutil.which("nvcc")
    if path is None:
        return None
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release ([\d.]+)", text)
    return (path, release[1]) if release else None
