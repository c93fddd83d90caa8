# SPDX-License-Identifier: Apache-2.0
"""The launcher of parallel regions, called as compiled code calls it: from Python, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tvm
import tvm_ffi

from tvm_stitch import StitchConfig
from tvm_stitch.compute.cpu.launch import launcher

pytestmark = pytest.mark.usefixtures("children_without_torch")

CHILD = """
import ctypes, os, sys, threading, time
from collections import Counter

ffi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2])
THREADS = int(os.environ["TVM_NUM_THREADS"])


class Group(ctypes.Structure):
    _fields_ = [("barrier", ctypes.c_void_p), ("tasks", ctypes.c_int32)]


TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(Group), ctypes.c_void_p)
library.tvm_stitch_parallel_extent_1.argtypes = [ctypes.c_int64]


def launch(extent, task):
    # The result of a region. ``task`` gets a task's number, the number of tasks, and the group.
    called = TASK(lambda number, group, _: task(number, group.contents.tasks, group) or 0)
    library.tvm_stitch_parallel_extent_1(extent)
    return library.tvm_stitch_parallel_launch_1(called, None, 0)


def iterations(extent, number, tasks):
    # Those of a task, as TVM's code divides a loop.
    step = -(-extent // tasks)
    return range(min(number * step, extent), min((number + 1) * step, extent))


def done(extent):
    # How often each iteration of a region ran.
    found = []
    assert launch(extent, lambda number, tasks, _: found.extend(iterations(extent, number, tasks))) == 0
    return Counter(found)


def workers():
    names = [open(f"/proc/self/task/{each}/comm").read().strip() for each in os.listdir("/proc/self/task")]
    return names.count("tvm_stitch")
"""

SCRIPTS = {
    "every iteration runs once": """
for extent in [*range(1, 70), 96, 127, 128, 333, 384, 1000, 1023, 4099, 50_000]:
    found = done(extent)
    assert len(found) == extent and set(found.values()) == {1}, extent
assert workers() == THREADS - 1, workers()
""",
    "more tasks than 32 bits hold": """
tasks = Counter()
assert launch(2**40, lambda number, count, _: tasks.update([(number, count)])) == 0
(count,) = {count for _, count in tasks}
assert sorted(number for number, _ in tasks) == list(range(count)) and max(tasks.values()) == 1
""",
    "threads share the work": """
who = set()
for _ in range(50):
    launch(64, lambda *_: (time.sleep(0.0005), who.add(threading.get_ident()))[0])
assert len(who) == THREADS, who
""",
    "nobody waits for a thread that does not come": """
own, me = [], threading.get_ident()
stuck = threading.Event()


def task(number, tasks, _):
    if threading.get_ident() != me:
        stuck.wait(5)
        return
    own.extend(iterations(64, number, tasks))
    if len(own) >= LEAST:
        stuck.set()


LEAST = 64 - 2 * (THREADS - 1)  # each other thread holds one piece, of two iterations
assert launch(64, task) == 0 and stuck.is_set()
assert len(set(own)) == len(own) >= LEAST
""",
    "a region in a piece runs": """
found = []
assert launch(8, lambda *_: found.append(done(5))) == 0
assert len(found) == 8 and all(each == Counter(range(5)) for each in found)
""",
    "several host threads": """
wrong = []


def work():
    for extent in range(1, 150):
        found = done(extent)
        if len(found) != extent or set(found.values()) != {1}:
            wrong.append(extent)


hosts = [threading.Thread(target=work) for _ in range(8)]
for host in hosts:
    host.start()
for host in hosts:
    host.join()
assert not wrong and workers() == THREADS - 1
""",
    "a piece that fails": """
handle = ctypes.c_void_p()
for failing in range(20):
    def task(number, tasks, _):
        if number == failing % tasks:
            ffi.TVMFFIErrorSetRaisedFromCStr(b"ValueError", b"piece %d" % failing)
            return -1
    assert launch(20, task) == -1
    ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    assert handle.value
    ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    assert not handle.value  # in the thread of the caller, once
assert launch(20, lambda *_: -1) == -1  # without an error
assert done(20) == Counter(range(20))
""",
    "slices meet at barriers": """
for _ in range(30):
    seen, wrong = [Counter() for _ in range(5)], []

    def task(number, tasks, group):
        for step in range(5):
            seen[step][number] += 1
            library.tvm_stitch_parallel_barrier_1(number, group)
            if sum(seen[step].values()) != tasks:
                wrong.append((step, number))

    assert launch(0, task) == 0
    assert not wrong and 1 <= len(seen[0]) <= THREADS and all(each == seen[0] for each in seen)
""",
    "a slice fails before a barrier": """
def task(number, tasks, group):
    if number == 0:
        return -1
    library.tvm_stitch_parallel_barrier_1(number, group)


for _ in range(10):
    assert launch(0, task) == -1
""",
    "a child after a fork": """
done(100)
for _ in range(3):
    child = os.fork()
    if child == 0:
        right = done(100) == Counter(range(100)) and workers() == THREADS - 1
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
assert done(100) == Counter(range(100))
""",
    "threads without work sleep": """
done(100)
time.sleep(0.1)
before = time.process_time()
time.sleep(0.3)
assert time.process_time() - before < 0.05
assert done(100) == Counter(range(100))
""",
}


def run(script: str, threads: int) -> None:
    if why := launcher.CODE.needs():
        pytest.skip(why)
    command = [
        sys.executable,
        "-c",
        CHILD + script,
        tvm_ffi.libinfo.find_libtvm_ffi(),
        str(launcher.CODE.library()),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", SCRIPTS)
def test_regions(what: str) -> None:
    run(SCRIPTS[what], 4)


def test_one_thread_makes_no_other() -> None:
    run("assert done(100) == Counter(range(100)) and workers() == 0", 1)


def test_the_number_of_threads_is_that_of_cores_the_process_may_run_on() -> None:
    run(
        "del os.environ['TVM_NUM_THREADS']; os.unsetenv('TVM_NUM_THREADS'); os.sched_setaffinity(0, {0})\n"
        "done(100); assert workers() == 0",
        3,
    )


def test_copies_share_the_threads_of_the_first() -> None:
    copied = (
        "import shutil, tempfile; folder = tempfile.mkdtemp(); other = shutil.copy(sys.argv[2], folder)\n"
    )
    run(
        f"{copied}done(100); library = ctypes.CDLL(other); done(100); assert workers() == THREADS - 1, workers()",
        3,
    )


def test_reasons_to_keep_the_pool_of_tvm() -> None:
    native = tvm.target.Target("llvm")
    assert "tvm_thread_pool" in launcher.why_not(native, StitchConfig(tvm_thread_pool=True))
    arm = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert "aarch64" in launcher.why_not(arm, StitchConfig())
    assert launcher.why_not(tvm.target.Target("c"), StitchConfig())
    if not launcher.CODE.needs():
        assert launcher.used(native, StitchConfig()) == "tvm_stitch's launcher"
