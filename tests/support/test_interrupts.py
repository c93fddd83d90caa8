# SPDX-License-Identifier: Apache-2.0
"""Exceptions on their way through TVM, and interrupts at places where they would be lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm

from tvm_stitch.support import interrupts
from tvm_stitch.support.interrupts import carrying, check, deferred, watched


class Odd(Exception):
    """TVM could not make one of these from a message."""

    def __init__(self, a: int, b: int):
        super().__init__(a, b)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before, "a handler was left installed"


def through_tvm(work: Callable[[], Any], depth: int = 1) -> Any:
    """Do some work in a pass, itself run by passes."""

    @tvm.transform.module_pass(opt_level=0, name="Work")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        work() if depth == 1 else through_tvm(work, depth - 1)
        return mod

    return tvm.transform.Sequential([run])(tvm.IRModule())


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("err", [Odd(1, 2), KeyboardInterrupt("now"), SystemExit(3), MemoryError()], ids=repr)
def test_a_carried_exception_comes_out_as_itself(err: BaseException, depth: int) -> None:
    @carrying
    def work() -> None:
        raise err

    with pytest.raises(type(err)) as caught:
        through_tvm(work, depth)
    assert caught.value is err


@pytest.mark.parametrize("depth", [1, 3])
def test_an_interrupt_comes_out_of_passes(depth: int) -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        through_tvm(interrupt, depth)
        pytest.fail("the interrupt was swallowed")


@pytest.mark.parametrize("depth", [1, 3])
def test_without_watching_tvm_keeps_the_kind_of_an_interrupt(depth: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        through_tvm(interrupt, depth)


def test_an_interrupt_that_is_caught_on_the_way_is_raised_at_the_next_check() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), watched():
        try:
            through_tvm(interrupt)
        except BaseException as err:
            reached.append(err)
        check()
        pytest.fail("check raised nothing")
    assert len(reached) == 1


def test_an_interrupt_that_is_caught_on_the_way_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        try:
            interrupt()
        except KeyboardInterrupt:
            pass


def test_an_interrupt_takes_the_place_of_what_it_led_to() -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        try:
            interrupt()
        except KeyboardInterrupt:
            raise RuntimeError("no result") from None


class Finalized:
    def __del__(self) -> None:
        interrupt()
        self.done = sum(range(10))  # Python looks for signals between these


def test_an_interrupt_in_a_finalizer_is_raised_behind_it() -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        Finalized()
        for _ in range(10):
            pass
        pytest.fail("the interrupt was dropped")


class Entered:
    """A context that must be left as a whole, as TVM's tag scopes must."""

    left = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        interrupt()
        sum([1, 2, 3])
        self.left = True


def test_an_interrupt_does_not_part_the_end_of_a_context() -> None:
    context = Entered()
    with pytest.raises(KeyboardInterrupt), watched():
        with context:
            pass
        for _ in range(10):
            pass
        pytest.fail("the interrupt was dropped")
    assert context.left


def test_the_programs_own_handler_decides() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        with watched():
            through_tvm(interrupt)
        assert seen == [signal.SIGINT]

        def stop(_number: int, _frame: Any) -> None:
            raise Odd(1, 2)

        signal.signal(signal.SIGINT, stop)
        with pytest.raises(Odd), watched():
            through_tvm(interrupt, 2)
        assert signal.getsignal(signal.SIGINT) is stop
    finally:
        signal.signal(signal.SIGINT, before)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with watched():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_deferred_is_done_first() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), watched():
        with deferred():
            interrupt()
            check()
            done.append("renamed")
        done.append("not reached")
    assert done == ["renamed"]
    with pytest.raises(KeyboardInterrupt), deferred():
        interrupt()
        done.append("alone")
    assert done == ["renamed", "alone"]


def test_nested_watches_end_at_the_inner_one() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), watched():
        with watched():
            try:
                interrupt()
            except KeyboardInterrupt:
                pass
        done.append("not reached")
    assert done == []


def test_other_threads_leave_the_handler_alone() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with watched():
            found.append(signal.getsignal(signal.SIGINT))
            try:
                through_tvm(carrying(lambda: (_ for _ in ()).throw(Odd(1, 2))))
            except Odd as err:
                found.append(err)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] is before and isinstance(found[1], Odd)


def test_little_is_kept() -> None:
    for i in range(3 * interrupts.MOST_CARRIED):
        interrupts.Carried.of(ValueError(i))
    assert len(interrupts._state.carried) == interrupts.MOST_CARRIED
    with watched():
        assert len(interrupts._state.carried) == 0


def test_sigterm_is_noted_if_the_program_has_a_handler() -> None:
    def handler(_number: int, _frame: Any) -> None:
        raise SystemExit(143)

    with watched():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit) as caught, watched():
            through_tvm(lambda: signal.raise_signal(signal.SIGTERM))
        assert caught.value.code == 143 and signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
