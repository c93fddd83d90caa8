# SPDX-License-Identifier: Apache-2.0
"""Steps of transformers' decoders with caches of a static size: kernels and errors."""
