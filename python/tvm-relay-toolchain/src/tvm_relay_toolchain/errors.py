# SPDX-License-Identifier: Apache-2.0
"""The error of this package."""

from __future__ import annotations


class ToolchainError(ImportError):
    """No usable TVM with Relay, or a library that it needs, was found. The message says how to get it.

    It is an ImportError, because ``import tvm`` raises it, and guards such as ``pytest.importorskip`` expect one.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, name="tvm")
