// SPDX-License-Identifier: Apache-2.0
// What choosing a library's algorithm for a static shape needs: choices that were kept, and times of calls.
#ifndef TVM_STITCH_COMPUTE_CUDA_TUNED_H_
#define TVM_STITCH_COMPUTE_CUDA_TUNED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "choices.h"
#include "device.h"
#include "fastest.h"

namespace tvm_stitch {
namespace {

// What was chosen on a device by a version of the library of this file.
inline Choices& ChoicesOf(const char* library, size_t version, int device) {
  static std::mutex lock;
  static std::map<int, std::unique_ptr<Choices>> choices;
  std::lock_guard<std::mutex> guard(lock);
  std::unique_ptr<Choices>& found = choices[device];
  if (found == nullptr) {
    int number = 0;
    char name[128] = "";
    CheckDriver(TheDriver().device(&number, device), "naming a device");
    CheckDriver(TheDriver().device_name(name, sizeof name, number), "naming a device");
    found = std::make_unique<Choices>(std::string(library) + "-" + std::to_string(version) + "-" + name);
  }
  return *found;
}

// Measures calls on a stream, in milliseconds. The stream is kept busy with zeros for a scratch tensor while calls are
// launched, so that what is measured is the device's time and not the host's.
class StreamTimer {
 public:
  StreamTimer(void* stream, const DLTensor& scratch) : stream_(stream), scratch_(scratch) {
    CheckDriver(TheDriver().event_create(&begin_, 0), "an event");
    CheckDriver(TheDriver().event_create(&end_, 0), "an event");
  }
  StreamTimer(const StreamTimer&) = delete;
  ~StreamTimer() {
    for (void* event : {begin_, end_}) {
      if (event != nullptr) TheDriver().event_destroy(event);
    }
  }

  // The mean of some calls; kFailed if ``call`` does not give true.
  template <typename Call>
  float Measure(int calls, Call call) {
    const Driver& driver = TheDriver();
    for (int i = 0; i < (calls > 1 ? kFills : 0); ++i) FillWithZeros(scratch_, stream_);
    CheckDriver(driver.event_record(begin_, stream_), "an event");
    for (int i = 0; i < calls; ++i) {
      if (!call()) return kFailed;
    }
    float spent = 0;
    CheckDriver(driver.event_record(end_, stream_), "an event");
    CheckDriver(driver.event_wait(end_), "waiting for an event");
    CheckDriver(driver.event_elapsed(&spent, begin_, end_), "an event");
    return spent / calls;
  }

 private:
  static constexpr int kFills = 4;

  void* stream_;
  DLTensor scratch_;
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

// Plans of a thread, before it starts anew: symbolic shapes may be endless.
constexpr size_t kMostPlans = 4096;

// Numbers as a key.
template <typename Numbers>
std::string KeyOf(const Numbers& numbers) {
  std::string key;
  for (int64_t number : numbers) key += (key.empty() ? "" : ",") + std::to_string(number);
  return key;
}

}  // namespace
}  // namespace tvm_stitch

#endif  // TVM_STITCH_COMPUTE_CUDA_TUNED_H_
