# SPDX-License-Identifier: Apache-2.0
"""Checks of a plan's groups, launch and shared memory, which :mod:`..verify` runs with its own."""
