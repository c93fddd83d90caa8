# SPDX-License-Identifier: Apache-2.0
"""The libraries that compute for CUDA devices: cuBLASLt matrix products, cuDNN convolutions.

The C++ declares what it uses of a library, so that it compiles without it, and opens it at run time. Row-major ``D =
L R`` is the column-major ``D' = R' L'`` of cuBLASLt, whose bias runs along rows as ours along columns. Descriptors
and the algorithm are kept by thread (a bias is written into a descriptor) and by all they depend on: numbers, mode,
dtypes, alignment of each address, workspace, device. Numbers that would leave a tensor are an error. A product
without depth is filled with zeros; one without elements is no call.

Algorithms of static shapes are the fastest of eight that the heuristic names, timed on the operands of the first
call, which no capture of a CUDA graph is: TVM runs what it captures once before. They take turns, in rounds of up to
ten calls behind a stream kept busy, so that neither launches nor other processes decide (``fastest.h``). The
library's own first choice stays unless another one is 3% faster. What was chosen is kept in a file for each version
of the library and kind of device (``choices.h``): processes share it, and nothing is timed twice. An LSTM took 1.04
ms with single calls timed while other processes used the GPU, 0.79 so (H100, float32).
"""

from __future__ import annotations

from ...config import ASKED, StitchConfig
from ...support.failures import error_text, reraise_fatal
from .shared_library import SharedLibrary, calls

CUBLASLT = SharedLibrary(
    title="cuBLASLt",
    names=("libcublasLt.so.13", "libcublasLt.so.12"),
    in_wheels=("nvidia/cu13/lib", "nvidia/cublas/lib"),
    variable="TVM_STITCH_CUBLASLT",
    how_to_get_it="pip install nvidia-cublas, or nvidia-cublas-cu12 for CUDA 12",
    computes="matrix products",
    kind="matmul",
    function="tvm_stitch.cublaslt.matmul",
    calls=calls("cublaslt.cc", "cuBLASLt"),
)
"""Its function computes a product; the arguments are those of :mod:`tvm_stitch.compute.cuda.strided`."""

CUDNN = SharedLibrary(
    title="cuDNN",
    names=("libcudnn.so.9",),
    in_wheels=("nvidia/cudnn/lib",),
    variable="TVM_STITCH_CUDNN",
    how_to_get_it="pip install nvidia-cudnn-cu13, or nvidia-cudnn-cu12 for CUDA 12",
    computes="convolutions",
    kind="convolution",
    function="tvm_stitch.cudnn.convolution",
    calls=calls("cudnn.cc", "cuDNN"),
)
"""Its function computes a convolution: data, weight, ``(groups, *strides, *paddings, *dilations)``, mode, result and
workspace. The mode is words: ``channels_first`` or ``channels_last``, ``tf32``, ``timed``."""

LIBRARIES = (CUBLASLT, CUDNN)


def why_not(library: SharedLibrary, config: StitchConfig) -> str | None:
    """Why a library is not called, in one line; None where it is."""
    if library.kind in config.of_tvm:
        return ASKED
    reason = library.missing()
    if reason is None:
        try:
            library.load()
            return None
        except Exception as err:
            reraise_fatal(err)
            reason = error_text(err)
    return library.calls.needs() if config.compute_of(library.kind) == "libraries" else reason
