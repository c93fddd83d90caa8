# SPDX-License-Identifier: Apache-2.0
"""The C++ compiler by which TVM links a model's library: checked before the work begins, with failures in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..target import other_machine
from .object_files import NotWritten, objects_in_child

if TYPE_CHECKING:
    from tvm.target import Target


class LinkError(RuntimeError):
    """A library cannot be linked. The message gives the reason and advice."""


def check_linker(target: Target) -> None:
    """Raise a LinkError if there is no compiler with which TVM could link a library for the target.

    Args:
        target: a TVM Target.
    """
    from tvm.support.cc import get_cc

    compiler = get_cc()
    if compiler is None:
        raise LinkError("a library is linked by a C++ compiler, and none is found: install g++, or set CXX")
    if shutil.which(compiler) is None:
        raise LinkError(
            f"a library is linked by a C++ compiler, and there is no {compiler}, which CXX or CC names"
        )
    named = os.environ.get("CXX") or os.environ.get("CC")
    if not named and (machine := other_machine(target)):
        raise LinkError(
            f"the library is for {machine}: set CXX to a compiler that links for it, such as {machine}-linux-gnu-g++"
        )


@contextlib.contextmanager
def linking(path: Path) -> Iterator[None]:
    """Turn errors of the linking code in this context into a LinkError. Object files are written in a child process.

    Raises:
        LinkError: if the compiler fails, with its first complaint, or if there is no space for an object file.
        RuntimeError: unchanged, if a disk is full.
    """
    try:
        with objects_in_child():
            yield
    except NotWritten as error:
        raise LinkError(str(error)) from None
    except RuntimeError as error:
        text = str(error)
        if "Compilation error:" not in text or os.strerror(errno.ENOSPC) in text:
            raise  # the command line explains a full disk better
        lines = [line.strip() for line in text.partition("Compilation error:")[2].splitlines()]
        messages = [line for line in lines if line and not line.startswith("Command line:")]
        errors = [
            line for line in messages if re.search(r"\b(error|cannot|fatal|No such|No space)\b", line, re.I)
        ]
        command = next((line for line in lines if line.startswith("Command line:")), "")
        compiler = (command.removeprefix("Command line:").split() or ["the C++ compiler"])[0]
        said = (errors or messages or ["no message"])[0]
        raise LinkError(f"{path.name} cannot be linked by {compiler} (CXX names another): {said}") from error
