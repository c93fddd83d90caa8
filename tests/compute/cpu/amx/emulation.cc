// SPDX-License-Identifier: Apache-2.0
// The instructions of AMX as C++ functions, for machines without them. Misuse is counted in the place of an exception.
#include <cstdint>
#include <cstring>

namespace {

struct Tile {
  uint8_t bytes[16][64];
};

thread_local Tile tiles[8];
thread_local uint8_t heights[8];
thread_local int width = 0;  // bytes of a row, or 0 without a configuration

int faults = 0, products = 0, configured = 0, released = 0, refuses = 0;

bool Usable(int tile) {
  bool good = width == 64 && heights[tile] >= 1 && heights[tile] <= 16;
  if (!good) __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  return good;
}

float Wide(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

template <typename Sum, typename Left, typename Right, typename Product>
void Multiply(int to, int left, int right, Product product) {
  constexpr int kGroup = 4 / sizeof(Left);
  if (!Usable(to) || !Usable(left) || !Usable(right)) return;
  if (heights[to] != heights[left] || heights[right] != 16) __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
  for (int m = 0; m < heights[to]; ++m) {
    auto* sums = reinterpret_cast<Sum*>(tiles[to].bytes[m]);
    auto* a = reinterpret_cast<Left*>(tiles[left].bytes[m]);
    for (int k = 0; k < 16; ++k) {
      auto* b = reinterpret_cast<Right*>(tiles[right].bytes[k]);
      for (int n = 0; n < 16; ++n) {
        for (int i = 0; i < kGroup; ++i) sums[n] += product(a[k * kGroup + i], b[n * kGroup + i]);
      }
    }
  }
}

template <typename Left, typename Right>
void MultiplyBytes(int to, int left, int right) {
  Multiply<int32_t, Left, Right>(to, left, right, [](int a, int b) { return a * b; });
}

}  // namespace

extern "C" {

int faults_of_emulation() { return faults + (configured != released); }
int products_of_emulation() { return products; }
void refuse_in_emulation(int refuse) { refuses = refuse; }

int64_t emulated_syscall(int64_t number, ...) { return number == 158 && !refuses ? 0 : -1; }

void emulated_ldtilecfg(const uint8_t* configuration) {
  if (configuration[0] != 1) __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  width = 64;
  for (int i = 0; i < 8; ++i) {
    uint16_t bytes;
    std::memcpy(&bytes, configuration + 16 + 2 * i, 2);
    if (bytes != 64) width = -1;
    heights[i] = configuration[48 + i];
  }
  for (int i = 1; i < 64; ++i) {  // reserved bytes
    bool used = (i >= 16 && i < 32) || (i >= 48 && i < 56);
    if (!used && configuration[i] != 0) __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  }
  std::memset(tiles, 0, sizeof tiles);
  __atomic_add_fetch(&configured, 1, __ATOMIC_RELAXED);
}

void emulated_tilerelease() {
  width = 0;
  __atomic_add_fetch(&released, 1, __ATOMIC_RELAXED);
}

void emulated_tilezero(int8_t tile) {
  if (Usable(tile)) std::memset(&tiles[tile], 0, sizeof(Tile));
}

void emulated_tileloadd64(int8_t tile, const uint8_t* from, int64_t stride) {
  if (!Usable(tile)) return;
  std::memset(&tiles[tile], 0, sizeof(Tile));
  for (int i = 0; i < heights[tile]; ++i) std::memcpy(tiles[tile].bytes[i], from + i * stride, 64);
}

void emulated_tilestored64(int8_t tile, uint8_t* to, int64_t stride) {
  if (!Usable(tile)) return;
  for (int i = 0; i < heights[tile]; ++i) std::memcpy(to + i * stride, tiles[tile].bytes[i], 64);
}

void emulated_tdpbf16ps(int8_t to, int8_t left, int8_t right) {
  Multiply<float, uint16_t, uint16_t>(to, left, right, [](uint16_t a, uint16_t b) { return Wide(a) * Wide(b); });
}

void emulated_tdpbssd(int8_t to, int8_t left, int8_t right) { MultiplyBytes<int8_t, int8_t>(to, left, right); }
void emulated_tdpbsud(int8_t to, int8_t left, int8_t right) { MultiplyBytes<int8_t, uint8_t>(to, left, right); }
void emulated_tdpbusd(int8_t to, int8_t left, int8_t right) { MultiplyBytes<uint8_t, int8_t>(to, left, right); }
void emulated_tdpbuud(int8_t to, int8_t left, int8_t right) { MultiplyBytes<uint8_t, uint8_t>(to, left, right); }

}  // extern "C"
