# SPDX-License-Identifier: Apache-2.0
"""Rules that rewrite Relax functions, the engine that applies them, and functions that inspect values."""
