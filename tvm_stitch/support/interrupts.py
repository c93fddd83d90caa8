# SPDX-License-Identifier: Apache-2.0
"""Interrupts come out of a compile as what they are.

A compile is Python that calls C++ that calls Python. Where an exception leaves such a callback, TVM's FFI makes another
one of it: the FFI of Apache TVM 0.27 an empty ``RuntimeError`` of a ``KeyboardInterrupt``, while that of older TVMs
catches subclasses of ``Exception`` only: Python prints what is not one, and C++ goes on with no result. Exceptions
raised in finalizers are dropped everywhere. So an interrupt is *noted* when the signal arrives, whatever becomes of the
exception, and raised again as the same object at the next :func:`check` or where :func:`watched` ends.
"""

from __future__ import annotations

import _thread
import functools
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

MOST_CARRIED = 8
"""Exceptions that are kept for the way through TVM."""


class _State(threading.local):
    """Of one thread: how deep it is in :func:`watched` and :func:`deferred`, and what its signal handler raised.

    ``carried`` are the exceptions that are kept for the way through TVM, by what names them.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.deferring = 0
        self.noted: BaseException | None = None
        self.base: FrameType | None = None
        self.handler: Any = None
        self.carried: OrderedDict[str, BaseException] = OrderedDict()


_state = _State()


class Carried(Exception):
    """Another exception on its way through TVM's FFI, which makes it that exception again.

    TVM makes an exception anew from its type's name and its message. The message of this one names an exception that is
    kept, and making a ``Carried`` from the message gives that one back, with its type, attributes and cause.
    """

    original: BaseException

    def __new__(cls, message: str = "") -> Any:
        kept = _kept(message)
        return super().__new__(cls, message) if kept is None else kept

    @classmethod
    def of(cls, err: BaseException) -> Carried:
        """Return the exception that stands for ``err``."""
        if isinstance(err, Carried):
            return err
        key = f"tvm_stitch carries {type(err).__name__} {id(err):x}"
        made: Carried = Exception.__new__(cls, key)
        made.original = err
        _state.carried[key] = err
        while len(_state.carried) > MOST_CARRIED:
            _state.carried.popitem(last=False)
        return made


def _kept(message: object) -> BaseException | None:
    found = re.search(r"tvm_stitch carries \w+ [0-9a-f]+", str(message))
    return _state.carried.get(found[0]) if found else None


def original(err: BaseException) -> BaseException:
    """What ``err`` was before TVM carried it; itself, where it was nothing else."""
    if isinstance(err, Carried):
        return err.original
    kept = _kept(err) if isinstance(err, RuntimeError) else None
    return err if kept is None else kept


def carrying(function: Function) -> Function:
    """For functions that TVM calls: what they raise comes out of TVM as the same exception."""
    _register()

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as err:
            raise Carried.of(err) from None

    return called  # type: ignore[return-value]


def check() -> None:
    """Raise what an interrupt raised, if one has come since :func:`watched` began and was lost on the way."""
    if _state.depth and _state.noted is not None and not _state.deferring:
        raise _crossing(_state.noted)


@contextmanager
def watched() -> Iterator[None]:
    """While this lasts, what a handler of SIGINT raises is not lost: at the latest it is raised where this ends.

    The handler is Python's, or whichever the program has installed; one that raises nothing has dealt with the signal.
    Python delivers signals to the main thread; in other threads this only gives carried exceptions back.
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
    """While this lasts, an interrupt waits: for steps that must be done as one, such as renaming two files."""
    with watched():
        _state.deferring += 1
        try:
            yield
        finally:
            _state.deferring -= 1


def _begin(base: FrameType) -> None:
    _state.carried.clear()
    _state.noted, _state.base = None, base
    if threading.current_thread() is not threading.main_thread():
        return
    found = signal.getsignal(signal.SIGINT)
    if found is not _noting:  # which may be left from a context that an interrupt kept from beginning
        _state.handler = found if callable(found) else None
        if callable(found):
            signal.signal(signal.SIGINT, _noting)


def _leave() -> BaseException | None:
    """Leave :func:`watched`; what is to be raised behind it. Signals go to the program's own handler from here on."""
    if _state.depth > 1:
        _state.depth -= 1
        noted = None if _state.deferring else _state.noted
        return None if noted is None else _crossing(noted)
    if _state.handler is not None and signal.getsignal(signal.SIGINT) is _noting:
        signal.signal(signal.SIGINT, _state.handler)
    noted = _state.noted
    _state.depth, _state.noted, _state.base, _state.handler = 0, None, None, None
    return noted


def _crossing(err: BaseException) -> BaseException:
    """Return an exception as it is to be raised where TVM may be between here and the end of :func:`watched`."""
    return Carried.of(err) if _only_exceptions_cross() else err


def _noting(signum: int, frame: FrameType | None) -> None:
    """The handler of SIGINT inside :func:`watched`."""
    if not _state.depth:  # it begins or ends right now
        (_state.handler or signal.default_int_handler)(signum, frame)
        return
    if _state.noted is None:
        try:
            (_state.handler or signal.default_int_handler)(signum, frame)
            return
        except BaseException as err:
            _state.noted = err
    if _state.deferring or (frame is not None and frame.f_code.co_filename == __file__):
        return
    if _is_lost_in(frame):
        _thread.interrupt_main()  # the signal again, a little later
        return
    raise _crossing(_state.noted)


def _is_lost_in(frame: FrameType | None) -> bool:
    """Would an exception raised in this frame be dropped, or leave something of TVM's half done?

    That is so in finalizers, where context managers are entered and left, and in the FFI of older TVMs outside the
    function that C++ called.
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
    """True for TVMs whose callbacks let nothing through but subclasses of ``Exception``; False where none is loaded."""
    return "tvm._ffi.base" in sys.modules


@functools.cache
def _register() -> None:
    """Tell TVM which exceptions to make again of those that it carries."""
    import tvm

    tvm.error.register_error(StitchError)
    tvm.error.register_error("tvm_stitch.Carried", Carried)
    if not _only_exceptions_cross():
        for kind in (KeyboardInterrupt, SystemExit):
            tvm.error.register_error(kind.__name__, kind)
