# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch operators for TVM's importer of exported programs."""
