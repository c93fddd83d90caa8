# SPDX-License-Identifier: Apache-2.0
"""Decisions as plain data: what stitching decides while it runs, for reports."""
