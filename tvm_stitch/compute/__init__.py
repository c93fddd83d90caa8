# SPDX-License-Identifier: Apache-2.0
"""Compute-intensive operators: recognition, the implementations that compute them, and this package's CPU
templates.
"""
