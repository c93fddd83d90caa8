# SPDX-License-Identifier: Apache-2.0
"""Tools for testing stitched Relay modules. They need a TVM that has Relay."""
