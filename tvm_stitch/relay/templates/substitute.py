# SPDX-License-Identifier: Apache-2.0
"""The pass ComputeTemplates: products and convolutions of a Relay module by templates, with weights packed early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relay

from ...compute.anchored import Anchored, anchored
from ...compute.cpu.emit import emit_anchored
from ...compute.cpu.packing import packed_shape
from ...compute.cpu.tiles import Tiles
from ...compute.templates import template_note, tiles_of
from ...config import StitchConfig, checked_config
from ...device import device_model
from ...records.decisions import decided, fresh
from ...support.failures import reason_of, reraise_fatal
from ...support.interrupts import check
from ...support.module_pass import module_pass
from ...target import resolve_target
from ..external import build, external_function
from ..lower import GENERIC, exact_key, read_function, typed
from ..schedule_stitch_ops import function_name
from ..stitch_ops import TEMPLATE_ATTR
from ..traverse import with_calls
from .packed_weights import PackedWeights, unpacked


@module_pass
class ComputeTemplates:
    """Give every function marked ``tvm_stitch.template`` a template's kernel, and build it.

    The functions become external functions of the compiler ``tvm_stitch``, as stitch ops do. A constant weight is
    packed. The function then takes it in panels, and its calls pass it in panels. The module's decisions
    (``tvm_stitch.records.decisions``) receive the text for reports of each kernel, and by function the reason why it
    has none.

    Args:
        target: a CPU, the module's target.
        config: options. The defaults suit most models.
        prefix: beginning of the names of all kernels.
        build: whether to build the kernels at once.
    """

    def __init__(
        self,
        target: Any,
        config: StitchConfig | None = None,
        prefix: str = "tvmgen_default",
        build: bool = True,
    ):
        self.target, self.config = resolve_target(target), checked_config(config)
        self.prefix, self.build = prefix, build

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with the marked functions and their calls replaced."""
        maker = _Maker(self, {str(gvar.name_hint) for gvar in mod.functions})
        replaced = with_calls(mod, maker.replaced)
        return decided(replaced, computed=maker.computed, declined=maker.declined, outlined=maker.outlined)


@dataclass(frozen=True)
class _Made:
    """An external function, the parameter of its weight, and whether it takes the weight in panels."""

    function: Any
    found: Anchored
    tiles: Tiles
    weight: int
    packs: bool


class _Maker:
    def __init__(self, owner: ComputeTemplates, names: set[str]):
        self.owner, self.names = owner, names
        self.computed: dict[str, str] = {}
        self.declined: dict[str, str] = {}
        self.outlined: dict[str, str] = {}
        self.device = device_model(owner.target, owner.config)
        self.known: dict[tuple[str, tuple[bool, ...]], _Made | None] = {}
        self.weights = PackedWeights()
        self.types: dict[tuple[Any, ...], Any] = {}

    def replaced(self, call: Any) -> Any:
        """Return the call of an external function instead of a marked one."""
        func = call.op
        if not isinstance(func, relay.Function) or not func.attrs or TEMPLATE_ATTR not in func.attrs:
            return call
        scope = str(func.attrs[TEMPLATE_ATTR])
        func = self._alike(func.without_attr(TEMPLATE_ATTR))
        constant = tuple(isinstance(arg, relay.Constant) for arg in call.args)
        key = exact_key(func), constant
        if self.known.get(key) is None and scope not in self.outlined.values():
            self.known[key] = self._made(func, scope, constant)
        external = self.known.get(key)
        if external is None:
            return call
        args = list(call.args)
        if external.packs:
            args[external.weight] = self.weights.of(
                args[external.weight], external.found.product, external.tiles.columns
            )
        return relay.Call(external.function, args, None, None, call.span)

    def _alike(self, func: Any) -> Any:
        """Return the function over types that equal functions share as one object."""
        params = []
        for param in func.params:
            tensor_type = param.checked_type
            key = (*map(int, tensor_type.shape), str(tensor_type.dtype))
            params.append(relay.Var(param.name_hint, self.types.setdefault(key, tensor_type)))
        return typed(relay.Function(params, relay.bind(func.body, dict(zip(func.params, params)))))

    def _made(self, func: Any, scope: str, constant: tuple[bool, ...]) -> _Made | None:
        owner, first = self.owner, function_name(func, "tiled")
        name = fresh(f"{owner.prefix}_{first}", self.names, "{}_{}")
        check()
        try:
            external, kernel = self._kernel(func, constant, name)
            if owner.build:
                build(kernel, owner.target)
        except Exception as err:  # a fault here or in TVM must not cost the user a working model
            reraise_fatal(err)
            declined = fresh(first, self.declined)
            self.declined[declined], self.outlined[declined] = reason_of(err, name), scope
            return None
        self.names.add(name)
        self.computed[name] = template_note(external.tiles, external.packs)
        return external

    def _kernel(self, func: Any, constant: tuple[bool, ...], name: str) -> tuple[_Made, Any]:
        """Return the replacement of a function, and its kernel."""
        lowered, graph = read_function(func, tvm.target.Target(GENERIC), name)
        anchor = anchored(graph)
        product, tiles = anchor.product, tiles_of(self.owner.target, self.device.choices, anchor.product)
        buffers = [lowered.buffer_map[param] for param in lowered.params]
        position = [buffer.same_as(anchor.weight.buffer) for buffer in buffers].index(True)
        packs, panels = constant[position] and anchor.takes_packed, None
        if packs:
            shape = packed_shape(product, tiles.columns)
            panels = tvm.tir.decl_buffer(shape, "float32", f"{anchor.weight.name}_packed")
            param = relay.Var(func.params[position].name_hint, relay.TensorType(shape, "float32"))
            weight = unpacked(param, product, tiles.columns)
            params = [*func.params[:position], param, *func.params[position + 1 :]]
            func = relay.Function(params, relay.bind(func.body, {func.params[position]: weight}))
        kernel = emit_anchored(lowered, anchor, tiles, panels, self.device, self.owner.config)
        kernel = kernel.with_attr("global_symbol", name)
        external = external_function(func, kernel, self.owner.target)
        return _Made(external, anchor, tiles, position, packs), kernel
