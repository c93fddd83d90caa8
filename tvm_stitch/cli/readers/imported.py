# SPDX-License-Identifier: Apache-2.0
"""The result of reading a model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ...execution.tensors import TensorSpec
    from ...front.signature import Signature

    Inputs = Mapping[str, np.ndarray]
    Call = Callable[[], list[np.ndarray]]

RUNTIME_ADVICE = "ONNX models are compared with ONNX Runtime: pip install onnxruntime"


@dataclass(frozen=True)
class Model:
    """An imported model.

    ``signature`` says how it is called. ``peer`` returns a call of another runtime on given inputs. ``peer_name`` is
    the name of that runtime.
    """

    mod: Any
    signature: Signature
    peer_name: str
    peer: Callable[[Inputs], Call]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the function ``main``."""
        return self.signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """All results of the function ``main``."""
        return self.signature.outputs
