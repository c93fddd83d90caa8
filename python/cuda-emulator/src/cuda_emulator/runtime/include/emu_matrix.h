// SPDX-License-Identifier: Apache-2.0
// Matrix operations of a warp: ldmatrix, and mma of 16 x 8 x 16 with half factors. Fragments are laid out as the PTX
// manual says; lanes learn of each other's registers as by shuffles, which order no memory.
#pragma once

namespace emu {
EMU_VALUE unsigned lane_of_thread() {
  const uint3 t = emu_thread_idx(), n = emu_block_dim();
  return (t.x + n.x * (t.y + n.y * t.z)) % 32;
}

EMU_VALUE unsigned from_lane(int line, unsigned value, unsigned lane) {
  return unsigned(emu_shuffle(line, 0xffffffffu, value, 0, int(lane), 32));
}

// The bits of a table of eight at the bits of three words.
EMU_VALUE unsigned logic(unsigned a, unsigned b, unsigned c, unsigned table) {
  unsigned result = 0;
  for (unsigned row = 0; row < 8; ++row)
    if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  return result;
}

// Four matrices of 8 x 8 16-bit elements. Lane i names the row i % 8 of matrix i / 8, and gets of each matrix two elements
// that are neighbours in a row, or in a column if they are transposed.
template <bool kTransposed>
EMU_NOSAN inline void load_matrices(int line, unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
  emu_read(emu_from_shared(address), 16);
  const unsigned lane = lane_of_thread();
  unsigned* const results[4] = {&a, &b, &c, &d};
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    unsigned bits = 0;
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned across = lane / 4, along = lane % 4 * 2 + e;
      const unsigned row = kTransposed ? along : across, column = kTransposed ? across : along;
      const unsigned from = from_lane(line, address, 8 * matrix + row) + 2 * column;
      bits |= unsigned(*static_cast<const unsigned short*>(emu_from_shared(from))) << 16 * e;
    }
    *results[matrix] = bits;
  }
}

// A lane holds of A the rows lane / 4 and lane / 4 + 8, of B the column lane / 4, of D both rows and two columns.
template <float (*kToFloat)(unsigned short)>
EMU_NOSAN inline void multiply_add(int line, float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1,
                                   unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const unsigned lane = lane_of_thread();
  const unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  float* const d[4] = {&d0, &d1, &d2, &d3};
  float rows[2][16], columns[2][16];
  for (unsigned pair = 0; pair < 4; ++pair)
    for (unsigned part = 0; part < 2; ++part)
      for (unsigned which = 0; which < 2; ++which) {
        const unsigned of_a = from_lane(line, a[2 * part + which], lane / 4 * 4 + pair);
        const unsigned of_b = from_lane(line, b[part], (lane % 4 * 2 + which) * 4 + pair);
        for (unsigned e = 0; e < 2; ++e) {
          rows[which][8 * part + 2 * pair + e] = kToFloat((unsigned short)(of_a >> 16 * e));
          columns[which][8 * part + 2 * pair + e] = kToFloat((unsigned short)(of_b >> 16 * e));
        }
      }
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 16; ++k) *d[i] = __builtin_fmaf(rows[i / 2][k], columns[i % 2][k], *d[i]);
}
}  // namespace emu
