# SPDX-License-Identifier: Apache-2.0
"""``activate``: make sure that ``import tvm`` gives a TVM with Relay, or explain why it cannot."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from . import _hook, loading, locate
from .errors import ToolchainError
from .report import Status, status


def activate(*, force: bool = False) -> Status:
    """Make ``import tvm`` give a TVM with Relay, in this process and in its children.

    If this package is installed, ``import tvm`` alone does the same. Call this function if the package is merely on
    ``sys.path``, to check before importing, or to hide another TVM. TVM itself is not imported.

    Args:
        force: use the wheel's TVM even if another one is installed, which it hides with a warning.

    Raises:
        ToolchainError: if there is no TVM with Relay, a library is missing, or another TVM is imported already.
    """
    if "tvm" in sys.modules:
        _check_imported(force)
        return status()
    other = locate.importable()
    wheel = locate.bundled()
    if force and wheel is not None and other is not None and not other.same(wheel):
        warnings.warn(
            f"TVM {other.version} in {other.package} is hidden by TVM {wheel.version} in {wheel.package}, in this "
            "process and in those it starts",
            stacklevel=2,
        )
    locate.forced = locate.forced or force
    tvm = locate.choose()
    if tvm is None:
        raise ToolchainError(f"no TVM with Relay was found: pip install --no-deps {locate.WHEEL}")
    if not tvm.has_relay:
        raise ToolchainError(
            f"TVM {tvm.version} in {tvm.package} has no Relay: give the TVM with Relay an environment of its own, or "
            "hide this one with tvm_relay_toolchain.activate(force=True)"
        )
    _hook.install()
    if tvm.origin == "wheel":
        loading.prepare(tvm, _hook.at_startup)
    return status()


def _check_imported(force: bool) -> None:
    """Raise a ToolchainError unless ``activate`` could have chosen the TVM that is imported already."""
    imported = locate.TvmInstall(Path(str(sys.modules["tvm"].__file__)).parent, "path")
    wheel = locate.bundled()
    if not imported.has_relay or (force and not imported.same(wheel)):
        raise ToolchainError(
            f"TVM {imported.version} in {imported.package} is imported already: call tvm_relay_toolchain.activate "
            "before anything imports tvm"
        )
