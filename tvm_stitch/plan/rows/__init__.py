# SPDX-License-Identifier: Apache-2.0
"""Rows of one domain on a GPU: candidates of strategies, and code that several strategies share."""
