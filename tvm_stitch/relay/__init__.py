# SPDX-License-Identifier: Apache-2.0
"""Stitching for Relay, on TVMs that still have it."""
