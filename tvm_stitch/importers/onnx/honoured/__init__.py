# SPDX-License-Identifier: Apache-2.0
"""Operators and attribute values that an import honours, with TVM's converters or with those of this package."""
