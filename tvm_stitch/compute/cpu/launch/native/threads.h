// SPDX-License-Identifier: Apache-2.0
// The number of threads of the pool.
#pragma once

#include <sched.h>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "region.h"

namespace tvm_stitch::parallel {
namespace {

// The processors that a control group allows the process, rounded up, or kMostThreads.
int Quota() {
  std::string quota;
  double period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period) {
    if (quota == "max" || period <= 0) return kMostThreads;
    return std::max(1, static_cast<int>(std::atof(quota.c_str()) / period + 0.99));
  }
  double limit = 0;
  std::ifstream first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), second("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (first >> limit && second >> period && limit > 0 && period > 0) {
    return std::max(1, static_cast<int>(limit / period + 0.99));
  }
  return kMostThreads;
}

// TVM_NUM_THREADS, else the cores that the process may run on. Hardware threads of one core count once.
int Threads() {
  if (const char* setting = std::getenv("TVM_NUM_THREADS"); setting != nullptr && *setting != 0) {
    return std::clamp(std::atoi(setting), 1, kMostThreads);
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string name = std::to_string(cpu), siblings;
    std::ifstream file("/sys/devices/system/cpu/cpu" + name + "/topology/thread_siblings_list");
    cores.insert(file >> siblings ? siblings : name);
  }
  return std::clamp(static_cast<int>(cores.size()), 1, Quota());
}

}  // namespace
}  // namespace tvm_stitch::parallel
