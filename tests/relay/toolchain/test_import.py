# SPDX-License-Identifier: Apache-2.0
"""``import tvm`` with nothing set by hand, here and in the worker processes of the tuners."""

from __future__ import annotations

import json

import pytest

from .conftest import Run, has_driver


def test_import_needs_no_environment(run: Run) -> None:
    done = run(
        "import os\nbefore = dict(os.environ)\nimport tvm, tvm.relay\n"
        "assert 'bitblas/3rdparty/tvm' in tvm.__file__, tvm.__file__\n"
        "new = {k for k in os.environ if os.environ[k] != before.get(k)}\n"
        "assert new <= {'TOPHUB_LOCATION', 'LC_CTYPE'}, new\n"
        "import sys; assert 'bitblas' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_start_of_an_interpreter_loads_nothing(run: Run) -> None:
    done = run(
        "import sys\n"
        "ours = sorted(m for m in sys.modules if m.startswith('tvm'))\n"
        "assert ours == ['tvm_relay_toolchain', 'tvm_relay_toolchain._hook'], ours\n"
        "import importlib.util, os\n"
        "before = dict(os.environ)\n"
        "assert importlib.util.find_spec('tvm') is not None\n"
        "assert 'tvm' not in sys.modules and dict(os.environ) == before\n"
        "assert 'libcudart' not in open('/proc/self/maps').read()\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_there_is_no_device(run: Run) -> None:
    done = run(
        "import tvm\n"
        "assert tvm.cuda().exist is False\n"
        "assert '/tvm-relay-toolchain/stub-' in open('/proc/self/maps').read()\n"
        "try:\n    tvm.nd.empty((1,), device=tvm.cuda())\n"
        "except tvm.TVMError as error:\n    print('refused:', error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout


@pytest.mark.skipif(not has_driver(), reason="this machine has no NVIDIA driver")
def test_a_driver_is_preferred_to_the_stub(run: Run) -> None:
    done = run("import tvm\nassert '/tvm-relay-toolchain/stub-' not in open('/proc/self/maps').read()\n")
    assert done.returncode == 0, done.stderr


WORKER = """
def build(n):
    import numpy as np
    import tvm
    from tvm import te
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] * 2, name="b")
    kernel = tvm.build(te.create_schedule(b.op), [a, b], "llvm")
    x, y = tvm.nd.array(np.arange(n, dtype="float32")), tvm.nd.empty((n,))
    kernel(x, y)
    return y.numpy().tolist()

if __name__ == "__main__":
    {setup}
    from tvm.contrib.popen_pool import PopenWorker
    worker = PopenWorker()
    worker.send(build, [4])
    assert worker.recv() == [0, 2, 4, 6]
"""


def test_a_pool_worker_imports_tvm_and_builds(run: Run) -> None:
    done = run(WORKER.format(setup="pass"))
    assert done.returncode == 0, done.stderr


def test_a_pool_worker_works_without_the_hook(run: Run) -> None:
    # As where the package is on sys.path but not installed: what the worker needs goes through the environment.
    hide = (
        "import sys, tvm_relay_toolchain._hook as hook\n"
        "    sys.meta_path = [f for f in sys.meta_path if not isinstance(f, hook.TvmFinder)]\n"
        "    hook.at_startup = False\n"
        "    import os, tvm_relay_toolchain as toolchain\n"
        "    assert toolchain.activate().ok\n"
        "    assert os.environ['PYTHONPATH'] in sys.path and os.environ['TVM_LIBRARY_PATH']\n"
        "    assert 'cuda_runtime' in os.environ['LD_LIBRARY_PATH'] and 'cuda_nvrtc' in os.environ['LD_LIBRARY_PATH']"
    )
    done = run(WORKER.format(setup=hide))
    assert done.returncode == 0, done.stderr


def test_the_exported_environment_suffices_without_this_package(run: Run) -> None:
    exported = run(
        "import os, sys, tvm_relay_toolchain._hook as hook\nhook.at_startup = False\n"
        "import tvm_relay_toolchain as toolchain\ntoolchain.activate()\n"
        "import json; names = ['PYTHONPATH', 'TVM_LIBRARY_PATH', 'LD_LIBRARY_PATH']\n"
        "print(json.dumps({name: os.environ[name] for name in names}))\n"
    )
    assert exported.returncode == 0, exported.stderr
    done = run(
        "import sys\n"
        "sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != 'TvmFinder']\n"
        "import tvm\nprint(tvm.__version__)\n",
        **json.loads(exported.stdout),
    )
    assert done.returncode == 0, done.stderr


ANSOR = """
import tvm
from tvm import auto_scheduler, te

@auto_scheduler.register_workload
def matmul(n):
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    return [a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]

if __name__ == "__main__":
    task = auto_scheduler.SearchTask(func=matmul, args=(32,), target="llvm")
    policy = auto_scheduler.SketchPolicy(task, verbose=0)
    state = task.compute_dag.infer_bound_from_state(policy.sample_initial_population()[0])
    inputs = [auto_scheduler.MeasureInput(task, state)]
    built = auto_scheduler.LocalBuilder(timeout=120).build(inputs, 0)
    (result,) = auto_scheduler.LocalRunner(timeout=120, number=1, repeat=1, min_repeat_ms=0).run(inputs, built, 0)
    assert result.error_no == 0, (result.error_no, result.error_msg)
    assert float(result.costs[0]) > 0
"""


def test_ansor_measures_a_trial_in_its_workers(run: Run) -> None:
    done = run(ANSOR)
    assert done.returncode == 0, done.stderr


METASCHEDULE = """
import tvm
from tvm import meta_schedule as ms
from tvm import te

if __name__ == "__main__":
    a = te.placeholder((64,), name="a")
    mod = tvm.IRModule({"main": te.create_prim_func([a, te.compute((64,), lambda i: a[i] + 1, name="b")])})
    target = tvm.target.Target("llvm -num-cores=1")
    (built,) = ms.builder.LocalBuilder(max_workers=1).build([ms.builder.BuilderInput(mod, target)])
    assert built.error_msg is None, built.error_msg
    arguments = [ms.arg_info.TensorInfo("float32", (64,))] * 2
    runner = ms.runner.LocalRunner(evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0))
    (future,) = runner.run([ms.runner.RunnerInput(built.artifact_path, "llvm", arguments)])
    result = future.result()
    assert result.error_msg is None, result.error_msg
    assert float(result.run_secs[0]) > 0
"""


def test_metaschedule_measures_a_trial_in_its_workers(run: Run) -> None:
    done = run(METASCHEDULE)
    assert done.returncode == 0, done.stderr
