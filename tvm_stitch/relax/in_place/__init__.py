# SPDX-License-Identifier: Apache-2.0
"""Tensors of the caller that a function updates in place, such as the cache of a decoder."""
