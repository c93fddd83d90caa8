# SPDX-License-Identifier: Apache-2.0
"""Interrupts leave a compile with their type and identity.

A compile is Python that calls C++ that calls Python. If an exception leaves such a callback, TVM's FFI replaces it.
Apache TVM 0.27 turns a ``KeyboardInterrupt`` into an empty ``RuntimeError``. Older TVMs catch only subclasses of
``Exception``: Python prints any other exception, and C++ continues without a result. Exceptions raised in
finalizers are always dropped. So an interrupt is *noted* when the signal arrives, whatever happens to the
exception. The same object is raised again at the next :func:`check`, or at the end of :func:`watched`.
"""

from __future__ import annotations

import _thread
import functools
import os
import re
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from .errors import StitchError

Function = TypeVar("Function", bound=Callable[..., Any])

EXIT_INTERRUPTED = 130
"""The exit code of a command that an interrupt ends."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals whose handlers may raise. SIGTERM has none unless the program installs one."""
MOST_CARRIED = 8
"""Most exceptions that are kept on the way through TVM."""


class _State(threading.local):
    """Per thread: the nesting of :func:`watched` and :func:`deferred`, and the exception of a signal's handler.

    ``handlers`` are those that the program has installed, by signal.

    ``carried`` maps keys to the exceptions that are on their way through TVM.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.deferring = 0
        self.noted: BaseException | None = None
        self.base: FrameType | None = None
        self.handlers: dict[int, Any] = {}
        self.carried: OrderedDict[str, BaseException] = OrderedDict()


_state = _State()


class Carried(Exception):
    """Another exception on its way through TVM's FFI.

    TVM re-creates an exception from its type's name and its message. The message of this one is the key of a kept
    exception. Creating a ``Carried`` from that message returns the kept exception, with its type, attributes and
    cause.
    """

    original: BaseException

    def __new__(cls, message: str = "") -> Any:
        kept = _kept(message)
        return super().__new__(cls, message) if kept is None else kept

    @classmethod
    def of(cls, err: BaseException) -> Carried:
        """Return the exception that carries ``err`` through TVM."""
        if isinstance(err, Carried):
            return err
        key = f"tvm_stitch carries {type(err).__name__} {id(err):x}"
        carried: Carried = Exception.__new__(cls, key)
        carried.original = err
        _state.carried[key] = err
        while len(_state.carried) > MOST_CARRIED:
            _state.carried.popitem(last=False)
        return carried


def _kept(message: object) -> BaseException | None:
    match = re.search(r"tvm_stitch carries \w+ [0-9a-f]+", str(message))
    return _state.carried.get(match[0]) if match else None


def original(err: BaseException) -> BaseException:
    """Return the exception that TVM carried as ``err``, or ``err`` itself."""
    if isinstance(err, Carried):
        return err.original
    kept = _kept(err) if isinstance(err, RuntimeError) else None
    return err if kept is None else kept


def carrying(function: Function) -> Function:
    """Wrap a function that TVM calls, so that its exceptions leave TVM unchanged."""
    _register()

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as err:
            raise Carried.of(err) from None

    return called  # type: ignore[return-value]


def check() -> None:
    """Raise the exception of an interrupt that came since :func:`watched` began and was lost on the way."""
    if _state.depth and _state.noted is not None and not _state.deferring:
        raise _crossing(_state.noted)


@contextmanager
def watched() -> Iterator[None]:
    """Keep the exception of a signal's handler from being lost. It is raised at the end of the context at the latest.

    The handler of SIGINT is Python's, or the one that the program has installed. One of SIGTERM counts if the program
    has installed it. A handler that raises nothing has dealt with the signal. Python delivers signals to the main
    thread. In other threads this only unwraps carried exceptions.
    """
    if "tvm" in sys.modules:
        _register()
    if not _state.depth:
        _begin(sys._getframe(2))
    _state.depth += 1
    raised: BaseException | None = None
    try:
        yield
    except BaseException as err:
        raised = original(err)
    noted = _leave()
    if noted is not None:
        raise noted
    if raised is not None:
        raise raised


@contextmanager
def deferred() -> Iterator[None]:
    """Delay interrupts in this context, for steps that belong together, such as renaming two files."""
    with watched():
        _state.deferring += 1
        try:
            yield
        finally:
            _state.deferring -= 1


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """End the process at once on an interrupt in this context. A handler installed by the program stays.

    Programs enter it for imports: an exception would leave some module's import, and extension modules replace it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_signum: int, _frame: object) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


def _begin(base: FrameType) -> None:
    _state.carried.clear()
    _state.noted, _state.base = None, base
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is not _noting:  # _noting may be left from a context that an interrupt kept from beginning
            _state.handlers[number] = handler if callable(handler) else None
            if callable(handler):
                signal.signal(number, _noting)


def _leave() -> BaseException | None:
    """Leave :func:`watched`, restore the program's signal handlers, and return the exception to raise."""
    if _state.depth > 1:
        _state.depth -= 1
        noted = None if _state.deferring else _state.noted
        return None if noted is None else _crossing(noted)
    for number, handler in _state.handlers.items():
        if handler is not None and signal.getsignal(number) is _noting:
            signal.signal(number, handler)
    noted = _state.noted
    _state.depth, _state.noted, _state.base, _state.handlers = 0, None, None, {}
    return noted


def _crossing(err: BaseException) -> BaseException:
    """Return an exception in the form that passes through TVM on the way to the end of :func:`watched`."""
    return Carried.of(err) if _only_exceptions_cross() else err


def _noting(signum: int, frame: FrameType | None) -> None:
    """Handle a signal inside :func:`watched`."""
    handler = _state.handlers.get(signum) or signal.default_int_handler
    if not _state.depth:  # watched is just beginning or ending
        handler(signum, frame)
        return
    if _state.noted is None:
        try:
            handler(signum, frame)
            return
        except BaseException as err:
            _state.noted = err
    if _state.deferring or (frame is not None and frame.f_code.co_filename == __file__):
        return
    if _is_lost_in(frame):
        _thread.interrupt_main(signal.Signals(signum))  # sends the signal again, a little later
        return
    raise _crossing(_state.noted)


def _is_lost_in(frame: FrameType | None) -> bool:
    """Return whether an exception raised in this frame would be dropped, or leave TVM in an inconsistent state.

    That holds in finalizers, and in the entry and exit of context managers. It also holds in the FFI of older TVMs,
    outside of the function that C++ called.
    """
    below = None
    while frame is not None and frame is not _state.base:
        code = frame.f_code
        if code.co_name in ("__del__", "__enter__", "__exit__"):
            return True
        if code.co_name == "cfun" and "_ffi" in code.co_filename:
            return below is None or "_ffi" in below or below.endswith("object_generic.py")
        below = code.co_filename
        frame = frame.f_back
    return False


def _only_exceptions_cross() -> bool:
    """Return whether the loaded TVM's callbacks pass only subclasses of ``Exception``. False if no TVM is loaded."""
    return "tvm._ffi.base" in sys.modules


@functools.cache
def _register() -> None:
    """Register the exceptions that TVM re-creates."""
    import tvm

    tvm.error.register_error(StitchError)
    tvm.error.register_error("tvm_stitch.Carried", Carried)
    if not _only_exceptions_cross():
        for kind in (KeyboardInterrupt, SystemExit):
            tvm.error.register_error(kind.__name__, kind)
