# SPDX-License-Identifier: Apache-2.0
"""Plans for CPUs: tasks, lanes and tiles, and segments of an index."""
