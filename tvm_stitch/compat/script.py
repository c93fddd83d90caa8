# SPDX-License-Identifier: Apache-2.0
"""TVMScript without a look at the callers: ``@Script.prim_func(...)`` in place of ``@T.prim_func(...)``.

TVM's decorator reads the sources of all functions on the stack, to find variables of theirs. In the middle of the
import of a large program that takes longer than compiling a small model. Functions at the top level of a module have
no such variables. The parser knows its decorators by the name ``prim_func`` behind a dot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Script:
    """Holds the decorator under the name that TVM's parser knows."""

    @staticmethod
    def prim_func(**_options: bool) -> Callable[[Any], Any]:
        """Return a decorator that makes a PrimFunc of a function at the top level of a module.

        Args:
            _options: options of ``T.prim_func`` that TVM's parser reads from the source, such as ``private``.
        """
        from tvm.script.parser._core import parse, utils

        def parsed(func: Any) -> Any:
            return parse(func, utils.inspect_function_capture(func))

        parsed.dispatch_token = "tirx"  # type: ignore[attr-defined]
        return parsed
