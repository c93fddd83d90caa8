# SPDX-License-Identifier: Apache-2.0
"""The error of this package."""

from __future__ import annotations


class ToolchainError(ImportError):
    """No usable TVM with Relay, or a library it needs is missing; the message says how to get it.

    An ImportError, since ``import tvm`` raises it: guards such as ``pytest.importorskip`` see what they expect.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, name="tvm")
