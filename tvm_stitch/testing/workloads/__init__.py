# SPDX-License-Identifier: Apache-2.0
"""Named workloads and models."""
