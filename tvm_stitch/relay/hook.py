# SPDX-License-Identifier: Apache-2.0
"""The context ``enable``, in which every relay.build stitches, without changes to the user's calls.

``relay.build``, ``relay.optimize``, ``relay.vm.compile`` and ``relay.create_executor`` all go through two classes
of TVM's Python package. In the context their methods run under a pass instrument. It rewrites the module right
before ``PlanDevices``, after every simplification and layout change. TVM's fusion follows, and does not touch
functions that are primitive already.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm
from tvm import relay
from tvm.ir.instrument import pass_instrument
from tvm.relay.backend.vm import VMCompiler
from tvm.relay.build_module import BuildModule

from ..compute.templates import has_templates
from ..config import StitchConfig, checked_config
from ..records.recorder import Recorder
from ..support.interrupts import carrying, check, watched
from ..support.one_at_a_time import operator_definitions
from ..support.pass_context import changed, instruments
from .cuda_source import fixed_cuda_source
from .global_function import replaced
from .shared_context import SharedContext
from .stitch import stitch
from .templates.choice import Templates
from .templates.layouts import template_layouts, tophub_marked

ENTRY = "PlanDevicesRewrite"
"""The first pass before which the module is final except for fusion and lowering."""

METHODS: tuple[tuple[type, str], ...] = (
    (BuildModule, "build"),
    (BuildModule, "optimize"),
    (VMCompiler, "lower"),
    (VMCompiler, "optimize"),
)
"""Methods that run Relay's passes. All take a module and a target first."""


class _Active(threading.local):
    """The contexts that are open in this thread, and whether a build is running."""

    def __init__(self) -> None:
        self.open: list[tuple[StitchConfig, Recorder, bool]] = []
        self.building = False


_active = _Active()


@contextmanager
def enable(config: StitchConfig | None = None) -> Iterator[Recorder]:
    """Stitch the models that ``relay.build``, ``relay.vm.compile`` and the like compile inside this context.

    It affects the thread that opened it. The innermost of nested contexts counts. On exit, also by an exception,
    TVM is restored. Models for several devices at once, and for targets other than CUDA and llvm, compile without
    stitching, and the reason is recorded.

    Args:
        config: options. The defaults suit most models.

    Yields:
        A Recorder of the decisions in the builds since the context was opened: plans, boundaries, refusals. Its
        ``report()`` is a :class:`tvm_stitch.Report` of them.
    """
    with stitching(checked_config(config)) as recorder:
        yield recorder


@contextmanager
def stitching(config: StitchConfig, build: bool = True) -> Iterator[Recorder]:
    """Open the context of :func:`enable`. With ``build=False`` it serves Relay's passes alone, and kernels are not
    compiled.
    """
    recorder = Recorder()
    opened = (config, recorder, build)
    _active.open.append(opened)
    try:
        with _methods.shared():
            yield recorder
    finally:  # it may not be the last: contexts in generators close in any order
        _active.open = [other for other in _active.open if other is not opened]


@contextmanager
def _methods_replaced() -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name in METHODS:
            stack.enter_context(replaced(owner, **{name: _stitching(getattr(owner, name))}))
        with tophub_marked():
            yield


_methods = SharedContext(_methods_replaced)


def _stitching(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, run under the instrument in threads with an open context."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _active.open or _active.building:
            return original(self, *args, **kwargs)
        config, recorder, build = _active.open[-1]
        arguments = signature.bind(self, *args, **kwargs).arguments
        chosen, why = _one_target(arguments)
        if chosen is None:
            recorder.note_target(why)
            recorder.declined["all"] = f"the model is compiled for {why}"
            return original(self, *args, **kwargs)
        prefix = arguments.get("mod_name") or "default"
        # TVM's own lowering also uses its operator definitions, which serve one thread at a time.
        with watched(), operator_definitions, ExitStack() as stack:
            templates = Templates(chosen, config) if has_templates(chosen, config) else None
            entry = _Entry(chosen, config, f"tvmgen_{prefix}", build, templates)
            stack.enter_context(changed([*instruments(), entry]))
            if chosen.kind.name == "cuda":
                stack.enter_context(fixed_cuda_source())
            if templates is not None:
                stack.enter_context(template_layouts(templates))
            _active.building = True
            try:
                return original(self, *args, **kwargs)
            finally:
                _active.building = False
                recorder.add(entry.recorder)

    return method


def _one_target(arguments: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the only target of a model, with its host, or None and the kind of model that has no kernels here."""
    target = arguments.get("target") or tvm.target.Target.current(allow_none=True)
    targets = tvm.target.Target.canon_multi_target_and_host(target, arguments.get("target_host"))
    if len(targets) != 1:
        return None, "several devices"
    runtime = arguments.get("runtime")
    if runtime is not None and (str(runtime) != "cpp" or ("system-lib" in runtime and runtime["system-lib"])):
        return (
            None,
            f"the runtime {runtime}, which calls functions in another way or finds them in another place",
        )
    return targets[0], ""


@pass_instrument
class _Entry:
    """Rewrites the module in place when the entry pass is about to run.

    The layout rewriters of Ansor and MetaSchedule take all primitive functions apart once more (``DefuseOps``),
    stitched ones included. TVM then folds constants, packed weights included. So the module is stitched again,
    before the fusion that follows.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        config: StitchConfig,
        prefix: str,
        build: bool,
        templates: Templates | None,
    ):
        self.target, self.config, self.prefix, self.build = target, config, prefix, build
        self.templates = templates
        self.recorder = Recorder()
        self.folding = 0  # FoldConstant fuses and lowers separate modules
        self.taken_apart = False

    @carrying
    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Stitch the module before the entry pass. Raise a pending interrupt."""
        check()
        if info.name == "FoldConstant":
            self.folding += 1
        elif info.name == ENTRY and not self.folding:
            self._replace(mod, self._stitched(mod))
        elif info.name == "FuseOps" and self.taken_apart and not self.folding:
            self.taken_apart = False
            config = tvm.target.make_compilation_config(tvm.transform.PassContext.current(), self.target)
            with tvm.transform.PassContext(opt_level=0):  # without this instrument
                self._replace(mod, relay.transform.PlanDevices(config)(self._stitched(mod)))

    @carrying
    def run_after_pass(self, _mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Track what other passes do. Raise a pending interrupt."""
        check()
        if info.name == "FoldConstant":
            self.folding -= 1
        elif info.name == "DefuseOps":
            self.taken_apart = True

    def _stitched(self, mod: tvm.IRModule) -> tvm.IRModule:
        self.recorder = Recorder()
        return stitch(mod, self.target, self.config, self.recorder, self.prefix, self.build, self.templates)

    @staticmethod
    def _replace(mod: tvm.IRModule, new: tvm.IRModule) -> None:
        for gvar, func in new.functions.items():
            if isinstance(func, relay.Function):
                mod.update_func(mod.get_global_var(gvar.name_hint), func)
