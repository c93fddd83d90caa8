# SPDX-License-Identifier: Apache-2.0
"""Find and load a TVM that still has Relay, so that ``import tvm`` works without manual settings.

This module is imported whenever an interpreter starts (see ``_hook``), so it imports nothing itself.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["Problem", "Status", "ToolchainError", "__version__", "activate", "status"]

_HOMES = {
    "Problem": "report",
    "Status": "report",
    "ToolchainError": "errors",
    "activate": "activation",
    "status": "report",
}
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .activation import activate
    from .errors import ToolchainError
    from .report import Problem, Status, status


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
