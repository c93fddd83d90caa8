# SPDX-License-Identifier: Apache-2.0
"""The backend of ``torch.compile``: PyTorch traces and guards graphs, and this package compiles each of them.

A graph is compiled in its first call, when its arguments are real, and again for other shapes. If the user asks for it,
parameters and buffers are constants of a graph without gradients, so that they can be packed. It is compiled again if
PyTorch counts a change of one of them. PyTorch does not count what is written through ``parameter.data``. A graph that
needs gradients is divided into a forward and a backward graph by AOTAutograd. Their parameters are arguments.

A graph that cannot be compiled is run by PyTorch, and a warning says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from tvm import relax

from ..config import StitchConfig
from ..execution.tensors import specs_of_inputs
from ..importers.torch import from_exported_program
from ..relax.build import build
from ..support.failures import error_text, reraise_fatal
from ..target import resolve_target
from .cache import GraphCache
from .draws import with_drawn_arguments
from .programs import changed_names
from .signature import Signature
from .tensors import aligned, device_of, given_back

_LOG = logging.getLogger(__name__)

Compiled = Callable[..., Any]
_TENSOR = object()
_CONSTANT = "constant"
"""Beginning of the names of arguments that are constants. Their numbers follow."""
_CHANGES = 4
"""Most versions of a graph that has the parameters and buffers of its module as constants."""


def backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Compiled:
    """Compile a graph for ``torch.compile(model, backend=tvm_stitch.torch_backend)``.

    Args:
        graph: a graph of PyTorch's.
        example_inputs: its arguments, of which only types and the need of gradients are read.
        options: ``target`` is the target, by default ``"native"`` for a CPU and ``"cuda"`` for a GPU. ``constants``
            says whether parameters and buffers are constants of graphs without gradients, by default not. ``cache``
            says whether compiled graphs are kept on disk, by default yes. Others are fields of
            :class:`tvm_stitch.StitchConfig`.
    """
    made = _Options.of(options or {})
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        from torch._dynamo.backends.common import aot_autograd
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def part(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Compiled:
            draws = with_drawn_arguments(module)
            inner = _Graph(module, made, constants=False)
            return _boxed(inner if draws is None else lambda *args: inner(*args, *draws(args)))

        with sdpa_kernel(SDPBackend.MATH):  # the gradients of its products, not of an opaque kernel
            compiled: Compiled = aot_autograd(fw_compiler=part, bw_compiler=part)(graph, example_inputs)
        return compiled
    return _Graph(graph, made, constants=made.constants)


@dataclass(frozen=True)
class _Options:
    """The target, the options and the cache of graphs."""

    target: tvm.target.Target | None
    constants: bool
    cache: GraphCache | None
    config: StitchConfig

    @staticmethod
    def of(options: Mapping[str, Any]) -> _Options:
        fields = dict(options)
        target, constants = fields.pop("target", None), bool(fields.pop("constants", False))
        kept = GraphCache.here() if fields.pop("cache", True) else None
        config = StitchConfig(**{"packed_arguments": True, **fields})
        return _Options(None if target is None else resolve_target(target), constants, kept, config)

    def target_of(self, tensors: Sequence[torch.Tensor]) -> tvm.target.Target:
        """Return the given target, or that of the device which has the arguments."""
        if self.target is not None:
            return self.target
        return resolve_target("cuda" if any(each.is_cuda for each in tensors) else "native")


def _is_of_module(placeholder: torch.fx.Node) -> bool:
    """Return whether an argument of a graph is a parameter or a buffer of the traced module, as PyTorch marks them."""
    return "_dynamo_static_input_type" in placeholder.meta.get("tensor_dict", {})


def _boxed(graph: Compiled) -> Compiled:
    from torch._functorch.aot_autograd import make_boxed_func

    boxed: Compiled = make_boxed_func(graph)
    return boxed


class _Graph:
    """A graph, and what it became for the arguments that it was called with."""

    def __init__(self, graph: torch.fx.GraphModule, options: _Options, constants: bool):
        self.graph, self.options, self.constants = graph, options, constants
        self.results = _Results.of(graph)
        self.own = [_is_of_module(node) for node in graph.graph.nodes if node.op == "placeholder"]
        self.made: dict[Any, _Program | None] = {}

    def __call__(self, *args: Any) -> Any:
        key = self._key(args)
        if key not in self.made:
            if len(self.made) >= _CHANGES:  # constants that change so often are none
                self.constants = False
            program = self._compiled(args)
            key = self._key(args)  # of the arguments that are constants now
            self.made[key] = program
        program = self.made[key]
        return self.graph(*args) if program is None else self.results.whole(args, program(args))

    def _is_constant(self, number: int) -> bool:
        return self.constants and self.own[number]

    def _key(self, args: Sequence[Any]) -> Any:
        """Return what a compiled graph depends on of its arguments."""
        found: list[Any] = []
        for number, value in enumerate(args):
            if not isinstance(value, torch.Tensor):
                found.append(value)
                continue
            found += [tuple(value.shape), value.dtype, value.device]
            found += [value.data_ptr(), value._version] if self._is_constant(number) else []
        return tuple(found)

    def _compiled(self, args: Sequence[Any]) -> _Program | None:
        """Return the compiled graph, or None if PyTorch is to run it."""
        try:
            # A call may be inside of AOTAutograd, whose modes another thread does not have.
            with ThreadPoolExecutor(1) as apart:
                return apart.submit(self._made, args).result()
        except Exception as error:  # of many kinds: of PyTorch's export, of operators that are not imported
            reraise_fatal(error)
            _LOG.warning(
                "PyTorch runs a graph of %d nodes: %s", len(self.graph.graph.nodes), error_text(error)
            )
            return None

    def _made(self, args: Sequence[Any]) -> _Program:
        tensors = [i for i, each in enumerate(args) if isinstance(each, torch.Tensor)]
        given = [i for i in tensors if not self._is_constant(i)]
        with torch.no_grad():
            bound = _Bound(self.graph, args, given, self.results)
            program = torch.export.export(bound, tuple(args[i].detach() for i in given), strict=False)
        target = self.options.target_of([each for each in args if isinstance(each, torch.Tensor)])
        kept, config = self.options.cache, self.options.config
        key = None if kept is None else kept.key_of(program, target, config)
        found = None if kept is None or key is None else kept.get(key)
        if found is None:
            mod = from_exported_program(program)
            signature = Signature(specs_of_inputs(mod), changed=changed_names(mod))
            buffers = [name for name in signature.changed if name.startswith(_CONSTANT)]
            if buffers:  # which are no constants
                for name in buffers:
                    self.own[int(name.removeprefix(_CONSTANT))] = False
                return self._made(args)
            executable = build(mod, target, config).executable
            if kept is not None and key is not None:
                executable = kept.put(key, executable, target, signature)
        else:
            executable, signature = found
        names = [spec.name for spec in signature.inputs]
        changed = [given[names.index(name)] for name in signature.changed]
        return _Program(executable, target, given, changed, bound.noted.others)


@dataclass(frozen=True)
class _Results:
    """The results of a graph.

    Attributes:
        arguments: for each result the number of the argument that it is, or None.
        computed: for each result the number among the nodes that compute results, or None.
        single: whether the graph returns one result by itself, and not a tuple.
    """

    arguments: tuple[int | None, ...]
    computed: tuple[int | None, ...]
    single: bool

    @staticmethod
    def of(graph: torch.fx.GraphModule) -> _Results:
        *nodes, output = graph.graph.nodes
        returned = output.args[0]
        single = not isinstance(returned, (tuple, list))
        whole = [returned] if single else list(returned)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        arguments = tuple(placeholders.index(each) if each in placeholders else None for each in whole)
        made = list(dict.fromkeys(each for each in whole if each not in placeholders))
        return _Results(arguments, tuple(made.index(e) if e in made else None for e in whole), single)

    def computed_of(self, found: Any) -> list[Any]:
        """Return what each node computes that computes results."""
        whole = [found] if self.single else list(found)
        by_number = {
            number: each for number, each in zip(self.computed, whole, strict=True) if number is not None
        }
        return [by_number[number] for number in range(len(by_number))]

    def whole(self, args: Sequence[Any], computed: Sequence[Any]) -> Any:
        """Return the graph's results from its arguments and what its nodes compute."""
        found = [
            args[at] if at is not None else computed[number]  # type: ignore[index]
            for at, number in zip(self.arguments, self.computed, strict=True)
        ]
        return found[0] if self.single else found


class _Noted:
    """Findings of the tracing of a graph: for each computed result ``_TENSOR``, or the result if it is no tensor."""

    others: Sequence[Any] = ()


class _Bound(torch.nn.Module):
    """A graph whose arguments are all known but for some tensors. It returns the tensors among the results."""

    def __init__(
        self, graph: torch.fx.GraphModule, args: Sequence[Any], given: Sequence[int], results: _Results
    ):
        super().__init__()
        self.graph = graph
        for i, each in enumerate(args):
            if isinstance(each, torch.Tensor) and i not in given:
                self.register_buffer(f"{_CONSTANT}{i}", each.detach())

        def complete(tensors: Sequence[torch.Tensor]) -> list[Any]:
            whole = list(args)
            for name, tensor in self.named_buffers(recurse=False):  # the export puts others in their place
                whole[int(name.removeprefix(_CONSTANT))] = tensor
            for i, tensor in zip(given, tensors, strict=True):
                whole[i] = tensor
            return whole

        self.complete, self.results = complete, results
        self.noted = _Noted()

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        whole = self.results.computed_of(self.graph(*self.complete(tensors)))
        self.noted.others = [_TENSOR if isinstance(each, torch.Tensor) else each for each in whole]
        return [each for each in whole if isinstance(each, torch.Tensor)]


class _Program:
    """A compiled graph that runs on its device."""

    def __init__(
        self,
        executable: Any,
        target: Any,
        given: Sequence[int],
        changed: Sequence[int],
        others: Sequence[Any],
    ):
        self.run = relax.VirtualMachine(executable, device_of(target))["main"]
        self.given, self.changed = list(given), list(changed)
        self.others = others

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return what the nodes compute that compute results."""
        tensors = [tvm.runtime.from_dlpack(aligned(args[i].detach())) for i in self.given]
        returned = self.run(*tensors)
        found = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        own = len(found) - len(self.changed)
        with torch.no_grad():
            for i, value in zip(self.changed, found[own:], strict=True):
                args[i].copy_(given_back(value, "torch"))
        shown = iter(given_back(value, "torch") for value in found[:own])
        return [next(shown) if each is _TENSOR else each for each in self.others]
