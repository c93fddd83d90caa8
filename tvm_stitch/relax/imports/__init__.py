# SPDX-License-Identifier: Apache-2.0
"""Repair what importers emit, before any other pass runs."""
