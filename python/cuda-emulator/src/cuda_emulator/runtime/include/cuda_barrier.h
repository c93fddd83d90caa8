// SPDX-License-Identifier: Apache-2.0
// Included by kernels that use cooperative groups; nothing of it is emulated.
#pragma once
