# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch operators for TVM's importer of exported programs.

The docstring of a converter gives the arguments of PyTorch's operator, and its results if they need a word.
"""
