# SPDX-License-Identifier: Apache-2.0
"""Errors, interrupts, locks and files: helpers that know nothing of graphs or plans."""
