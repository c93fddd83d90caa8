# SPDX-License-Identifier: Apache-2.0
"""A separate process for each contender: it prepares a model, and runs blocks of calls on request.

So threads that spin in one contender's pool are gone (or asleep) at another's turn. A crash or a hang costs one row,
and a process's memory is one contender's. The module multiprocessing is not used. Its processes share a tracker of
resources, and would report leaks after one that holds a lock was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from _child_process import last_words

from .job import Job, Unavailable

#: Modules and functions. Each function makes a Ready of a Job, in the contender's process.
CONTENDERS = {
    "stitched": "models.tvm_contenders:stitched",
    "stock": "models.tvm_contenders:stock",
    "eager": "models.torch_contenders:eager",
    "inductor": "models.torch_contenders:inductor",
    "inductor-frozen": "models.torch_contenders:inductor_frozen",
    "inductor-graphs": "models.torch_contenders:inductor_graphs",
    "inductor-tuned": "models.torch_contenders:inductor_tuned",
    "onnxruntime": "models.other_contenders:onnxruntime",
    "xla": "models.other_contenders:xla",
}
REFERENCE = "reference"
REFERENCES = {False: "models.torch_contenders:reference", True: "models.other_contenders:reference"}
"""The reference of a PyTorch model, and of an ONNX file."""
SLOW = 5.0
"""A call that takes longer is not repeated to find a faster one, in seconds."""


class Failed(Exception):
    """A contender failed, or its process ended or took too long: the message says how."""


class Process:
    """The process of a contender of a job."""

    def __init__(self, contender: str, job: Job) -> None:
        place = REFERENCES[job.is_onnx] if contender == REFERENCE else CONTENDERS[contender]
        self._errors = tempfile.NamedTemporaryFile()
        # A separate folder: Inductor's cache of an earlier run would shorten its compile time.
        cache = Path(job.folder) / f"{contender}.cache"
        threads = str(job.threads)
        added = {
            "TVM_NUM_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "HF_HUB_OFFLINE": "1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **added},
                stdin=subprocess.DEVNULL,
                stdout=self._errors,  # compilers and exporters warn and print
                stderr=self._errors,
            )
        with contextlib.suppress(ConnectionError):  # the next request finds out that the process has ended
            self._pipe.send((contender, place, job))

    def ask(self, what: str, limit: float, **arguments: Any) -> Any:
        """Return the process's answer to "prepare", "block" or "finish".

        Raises:
            Failed: with the reason. Without an answer in ``limit`` seconds the process is ended.
        """
        try:
            self._pipe.send((what, arguments))
            if not self._pipe.poll(limit):
                raise Failed(f"no answer in {limit:.0f} s")
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            words = "; ".join(
                [f"its process ended with code {self._process.poll()}", *last_words(self._errors, 2, 3)]
            )
            self.stop()
            raise Failed(words) from None
        except BaseException:
            self.stop()
            raise
        if kind == "failed":
            self.stop()
            raise Failed(answer)
        return answer

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._errors.close()


_CHILD = "import sys; sys.path[:] = sys.argv[2:]; from models.process import serve; serve(int(sys.argv[1]))"


def serve(file: int) -> None:
    """Answer requests on the connection of that number until it is closed. Runs in the contender's process."""
    faulthandler.enable()
    pipe: Connection = Connection(file)
    served = _Served(*pipe.recv())
    while True:
        try:
            what, arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = ("done", getattr(served, what)(**arguments))
        except Unavailable as error:
            answer = ("failed", str(error))
        except KeyboardInterrupt:
            return
        except Exception as error:
            answer = ("failed", told(error))
        pipe.send(answer)


class _Served:
    """The contender in its process."""

    def __init__(self, contender: str, place: str, job: Job) -> None:
        self.contender, self.place, self.job = contender, place, job

    def prepare(self) -> dict[str, Any]:
        """Import, compile and run a model, write its outputs, and return its data so far."""
        module, function = self.place.split(":")
        self.ready = getattr(importlib.import_module(module), function)(self.job)
        _write(self.job.outputs(self.contender), self.ready.outputs())
        if self.contender == REFERENCE:
            return dict(self.ready.told)
        gc.collect()
        self.one_call = self._seconds_of_a_call()
        if self.one_call < SLOW:
            self.one_call = min(self.one_call, self._seconds_of_a_call())
        self.resets = _begin_peak()
        return {**self.ready.told, "one_call_s": self.one_call}

    def _seconds_of_a_call(self) -> float:
        self.ready.sync()
        begin = time.perf_counter()
        self.ready.call()
        self.ready.sync()
        return time.perf_counter() - begin

    def block(self, seconds: float) -> dict[str, Any]:
        """Run a block of calls."""
        from .ready import run_block

        return run_block(self.ready, seconds, self.one_call).to_dict()

    def finish(self) -> dict[str, Any]:
        """Take the last measurements."""
        memory = {"memory_bytes": _peak()} if self.resets and not self.job.on_gpu else {}
        return {**memory, **self.ready.afterwards()}


def told(error: BaseException) -> str:
    """Return an error's last line, in which compilers state the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def _write(path: Path, outputs: Any) -> None:
    import numpy as np

    plain = {
        f"{draw}.{place}": x.astype(np.float32) if x.dtype.name == "bfloat16" else x
        for draw, results in enumerate(outputs)
        for place, x in enumerate(results)
    }
    with open(path, "wb") as file:
        np.savez(file, **plain)


def _begin_peak() -> bool:
    """Start to measure the peak of resident memory, and return whether the system can (Linux can)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # release the memory of compiling
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def _peak() -> int | None:
    """Return the peak of resident memory since then, in bytes. None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
