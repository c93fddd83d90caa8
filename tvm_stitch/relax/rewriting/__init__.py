# SPDX-License-Identifier: Apache-2.0
"""The engine of rules that passes rewrite Relax functions with, and questions about their values."""
