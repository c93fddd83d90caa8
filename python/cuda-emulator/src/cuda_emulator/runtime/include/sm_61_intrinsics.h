// SPDX-License-Identifier: Apache-2.0
// Included by kernels; emu_cuda.h already gives what is needed of it.
#pragma once
