# SPDX-License-Identifier: Apache-2.0
"""Plans for GPUs: tiles of threads, rows split over blocks, phases of stages, occupancy, reuse and workspace."""
