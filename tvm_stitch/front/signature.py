# SPDX-License-Identifier: Apache-2.0
"""The signature of a compiled model: its inputs and results, their structure, and the buffers that calls change."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..execution.tensors import TensorSpec


@dataclass(frozen=True, eq=False)
class Signature:
    """The inputs and results of a compiled model, and what a call does with them.

    Attributes:
        inputs: all inputs of the function ``main``. Changed buffers are the last ones.
        outputs: all its results. The last ones are the new values of ``changed``.
        state: values of the buffers that the model changes, by name.
        changed: names of the changed buffers, and of inputs that the model changes.
        takes: PyTorch's tree of the model's arguments, a pair of positional ones and those by name. None if each
            argument is one tensor.
        returns: PyTorch's tree of the model's results, or None for a tensor or a tuple.
        fixed: name and value of arguments that are no tensors and were exported as constants, by their number among all
            leaves of ``takes``.
        returned: values of results that are no tensors, by their number among all leaves of ``returns``.
        integers: numbers of the results that a call gives as integers, counted without those of ``returned``.
        of_torch: whether results are PyTorch's tensors if no argument says otherwise.
        conditions: comparisons of extents that each call has to fulfil, such as ``y.shape[0] <= x.shape[0]``.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    takes: Any = None
    returns: Any = None
    fixed: Mapping[int, tuple[str, Any]] = field(default_factory=dict)
    returned: Mapping[int, Any] = field(default_factory=dict)
    integers: tuple[int, ...] = ()
    of_torch: bool = False
    conditions: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[TensorSpec, ...]:
        """The inputs that a caller gives."""
        return self.inputs[: len(self.inputs) - len(self.state)]

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The outputs that a caller gets."""
        return self.outputs[: len(self.outputs) - len(self.changed)]

    def placed(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[int | str, Any]:
        """Return the tensors of a call's arguments, by the number or the name of their input.

        Raises:
            ValueError: if an argument is a constant of the model, and another value is given.
        """
        if self.takes is None:
            return dict[int | str, Any](enumerate(args)) | dict[int | str, Any](named.items())
        from torch.utils import _pytree

        positional, by_name = self.takes.children()
        first = dict(zip(by_name.context, _starts(positional.num_leaves, by_name.children())))
        found: dict[int | str, Any] = dict(enumerate(_pytree.tree_leaves(tuple(args))))
        for name, value in named.items():
            if name in first:
                found |= {first[name] + i: leaf for i, leaf in enumerate(_pytree.tree_leaves(value))}
            else:
                found[name] = value
        return self._without_constants(found)

    def renamed(self, names: Mapping[str, str]) -> Signature:
        """Return the signature with other names of symbols in its shapes, by the present ones."""
        if not names:
            return self
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")

        def spec(each: TensorSpec) -> TensorSpec:
            shape = (
                pattern.sub(lambda found: names[found[0]], dim) if isinstance(dim, str) else dim
                for dim in each.shape
            )
            return replace(each, shape=tuple(shape))

        return replace(self, inputs=tuple(map(spec, self.inputs)), outputs=tuple(map(spec, self.outputs)))

    def unplaced(self, tensors: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a call, by position and by name.

        Args:
            tensors: one for each of ``arguments``. Arguments that are constants are added.
        """
        if self.takes is None:
            return tuple(tensors), {}
        from torch.utils import _pytree

        leaves = filled_in(tensors, {at: value for at, (_, value) in self.fixed.items()})
        args, named = _pytree.tree_unflatten(leaves, self.takes)
        return args, named

    def _without_constants(self, found: Mapping[int | str, Any]) -> dict[int | str, Any]:
        """Return arguments numbered without the constants, which have to be given as they are, or not at all."""
        named = dict(self.fixed.values())
        kept: dict[int | str, Any] = {}
        for key, value in found.items():
            if key in self.fixed:
                _check_constant(*self.fixed[int(key)], value)
            elif key in named:
                _check_constant(str(key), named[str(key)], value)
            else:
                kept[key if isinstance(key, str) else key - sum(at < key for at in self.fixed)] = value
        return kept

    def structured(self, results: Sequence[Any], single: bool) -> Any:
        """Return results as the model returns them.

        Args:
            results: the results of a call.
            single: whether ``main`` returns one tensor, and not a tuple.
        """
        if self.returns is None:
            return results[0] if single else tuple(results)
        from torch.utils import _pytree

        return _pytree.tree_unflatten(filled_in(results, self.returned), self.returns)

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as plain data, without the values of the state.

        Raises:
            ValueError: if the model takes or returns a type that PyTorch cannot write.
        """
        return {
            "inputs": [asdict(spec) for spec in self.inputs],
            "outputs": [asdict(spec) for spec in self.outputs],
            "call": {
                "state": list(self.state),
                "changed": list(self.changed),
                "takes": _written(self.takes),
                "returns": _written(self.returns),
                "fixed": {str(at): list(constant) for at, constant in self.fixed.items()},
                "returned": {str(at): value for at, value in self.returned.items()},
                "integers": list(self.integers),
                "of_torch": self.of_torch,
                "conditions": list(self.conditions),
            },
        }

    @staticmethod
    def of_dict(data: Mapping[str, Any], state: Mapping[str, Any]) -> Signature:
        """Return the signature of plain data that :meth:`to_dict` returned.

        Args:
            data: the data. Entries that are absent are empty.
            state: values of the state.

        Raises:
            ValueError: if a type of the arguments or the results is not known here.
        """
        call = data.get("call", {})
        return Signature(
            _specs(data.get("inputs", [])),
            _specs(data.get("outputs", [])),
            dict(state),
            tuple(call.get("changed", ())),
            _read(call.get("takes")),
            _read(call.get("returns")),
            {int(at): (name, value) for at, (name, value) in call.get("fixed", {}).items()},
            {int(at): value for at, value in call.get("returned", {}).items()},
            tuple(call.get("integers", ())),
            bool(call.get("of_torch")),
            tuple(call.get("conditions", ())),
        )


def filled_in(tensors: Sequence[Any], constants: Mapping[int, Any]) -> list[Any]:
    """Return all arguments or results: the tensors in order, with each constant at its number."""
    rest = iter(tensors)
    return [constants[at] if at in constants else next(rest) for at in range(len(tensors) + len(constants))]


def _check_constant(name: str, constant: Any, value: Any) -> None:
    """Raise a ValueError if a value is not the constant."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    if not plain or (value != constant and not (value != value and constant != constant)):
        given = repr(value) if plain else f"a {type(value).__name__}"
        raise ValueError(
            f"the input {name!r} is the constant {constant!r} of the exported model, and {given} is given; compile the "
            "model again with this argument among its example inputs"
        )


def _specs(data: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(each["name"], tuple(each["shape"]), each["dtype"]) for each in data)


def _starts(first: int, specs: Sequence[Any]) -> list[int]:
    """Return the numbers of the first tensors of arguments, one behind the other."""
    found = []
    for spec in specs:
        found.append(first)
        first += spec.num_leaves
    return found


def _written(tree: Any) -> str | None:
    if tree is None:
        return None
    from torch.utils import _pytree

    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # PyTorch's about itself
            return str(_pytree.treespec_dumps(tree))
    except (NotImplementedError, TypeError) as error:
        raise ValueError(
            f"the model takes or returns a type that PyTorch does not write: {error}; compile a module around it that "
            "takes tensors and returns them"
        ) from error


def _read(text: str | None) -> Any:
    if text is None:
        return None
    from torch.utils import _pytree

    try:
        return _pytree.treespec_loads(text)
    except (NotImplementedError, ImportError, AttributeError) as error:
        raise ValueError(
            f"the model takes or returns a type that is not known here: {error}; import the package that has it first"
        ) from error
