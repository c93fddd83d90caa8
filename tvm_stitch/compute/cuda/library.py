# SPDX-License-Identifier: Apache-2.0
"""The libraries that compute for CUDA devices: cuBLASLt for matrix products, cuDNN for convolutions and attention.

The C++ declares the parts of a library that it uses, so it compiles without the library, and opens it at run time.
Row-major ``D = L R`` is the column-major ``D' = R' L'`` of cuBLASLt, whose bias runs along rows as the row-major
one runs along columns. Descriptors and the algorithm are cached by thread, because a bias is written into a
descriptor. The key also has everything else they depend on: numbers, mode, dtypes, alignment of each address,
workspace, device. Numbers that would leave a tensor are an error. A product with an empty reduction dimension is
filled with zeros, and one without elements makes no call.

For static shapes the algorithm is the fastest of eight that the heuristic proposes. They are timed on the operands
of the first call. That call is never captured into a CUDA graph, because TVM runs captured code once before. The
algorithms alternate in rounds of up to ten calls behind a stream kept busy, so that neither launches nor other
processes decide (``fastest.h``). The library's first choice stays unless another one is 3% faster. Choices are
stored in a file for each version of the library and kind of device (``choices.h``). Processes share it, and nothing
is timed twice. An LSTM took 1.04 ms with single calls timed while other processes used the GPU, and 0.79 ms in this
way (H100, float32).
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
"""Computes a matrix product. The arguments are those of :mod:`tvm_stitch.compute.cuda.strided`."""

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
"""Computes a convolution.

The arguments are data, weight, ``(groups, *strides, *paddings, *dilations)``, mode, result and workspace. The mode
consists of words: ``channels_first`` or ``channels_last``, ``tf32``, ``timed``.
"""

CUDNN_ATTENTION = SharedLibrary(
    title=CUDNN.title,
    names=CUDNN.names,
    in_wheels=CUDNN.in_wheels,
    variable=CUDNN.variable,
    how_to_get_it=CUDNN.how_to_get_it,
    computes="attention of half types, where it is faster than the model's own kernel",
    kind="attention",
    function="tvm_stitch.cudnn_attention.attention",
    calls=calls("cudnn_attention.cc", "cuDNN"),
)
"""Computes attention, or calls the kernel that it is given. The arguments are q, k, v, a mask if there is one, the
kernel, the kernel's numbers, and those of :mod:`tvm_stitch.compute.cuda.attention_library`, result and workspace."""

LIBRARIES = (CUBLASLT, CUDNN, CUDNN_ATTENTION)


def why_not(library: SharedLibrary, config: StitchConfig) -> str | None:
    """Return the reason why a library is not called, in one line, or None if it is called."""
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
