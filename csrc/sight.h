// Which keys a query may attend to: the class of a tile of MR queries and a panel of keys, and one 64-bit word a row.
#pragma once

#include "multihead.h"
#include "simd.h"

namespace mh {
namespace MH_VARIANT {

enum class Seen { NOTHING, SOME, ALL };

constexpr int64_t FAR = int64_t{1} << 60;  // bounds of a window beyond any position, far from overflow

MH_INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
MH_INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

// Bits first .. last of a word; empty where first > last.
MH_INLINE uint64_t bits_between(int64_t first, int64_t last) {
  first = at_least(first, 0);
  last = at_most(last, PANEL - 1);
  if (first > last) return 0;
  return (~uint64_t{0} >> (PANEL - 1 - last)) & (~uint64_t{0} << first);
}

// Up to 64 bytes of 0 or 1 as a word.
MH_INLINE uint64_t bits_of_bytes(const uint8_t *byte, int64_t stride, int64_t count) {
#if defined(__AVX512BW__)
  if (stride == 1) {
    const __mmask64 there = bits_between(0, count - 1);
    const __m512i x = _mm512_maskz_loadu_epi8(there, byte);
    return _mm512_test_epi8_mask(x, x);
  }
#endif
  uint64_t word = 0;
  int64_t j = 0;
  if (stride == 1) {
    for (; j + 8 <= count; j += 8) {  // the product moves the lowest bits of eight bytes side by side
      uint64_t eight;
      std::memcpy(&eight, byte + j, 8);
      word |= (eight * 0x0102040810204080u >> 56) << j;
    }
  }
  for (; j < count; j++) word |= static_cast<uint64_t>(byte[j * stride] != 0) << j;
  return word;
}

// Which of up to 64 numbers equal one.
MH_INLINE uint64_t bits_of_equal(const int32_t *number, int32_t wanted, int64_t count) {
  uint64_t word = 0;
  int64_t j = 0;
#if defined(__AVX512F__)
  for (; j + W <= count; j += W)
    word |= static_cast<uint64_t>(_mm512_cmpeq_epi32_mask(_mm512_loadu_si512(number + j), _mm512_set1_epi32(wanted))) << j;
#elif defined(__AVX2__)
  for (; j + W <= count; j += W) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(number + j));
    const __m256i same = _mm256_cmpeq_epi32(x, _mm256_set1_epi32(wanted));
    word |= static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same))) << j;
  }
#endif
  for (; j < count; j++) word |= static_cast<uint64_t>(number[j] == wanted) << j;
  return word;
}

// What is the same for all queries: a panel of keys of one batch row.
struct Panel {
  int64_t index, first, keys;  // its number, its first key, how many keys it has
  uint64_t real;               // keys that exist and are kept
  int32_t id_low, id_high;
};

// The mask of one batch row and head.
class Sight {
 public:
  Sight(const mh_problem &p, int64_t batch, int64_t head) : p_(p), mask_(p.mask) {
    if (mask_.window) {
      const int64_t *bounds = mask_.window + 2 * (batch * mask_.window_batch + head * mask_.window_head);
      low_ = at_least(bounds[0], -FAR);
      high_ = at_most(bounds[1], FAR);
    }
    if (mask_.q_ids) {
      q_ids_ = mask_.q_ids + batch * mask_.q_ids_batch;
      k_ids_ = mask_.k_ids + batch * mask_.k_ids_batch;
    }
    if (mask_.keep) keep_ = mask_.keep + batch * mask_.keep_batch;
    if (mask_.dense) dense_ = mask_.dense + batch * mask_.dense_batch + head * mask_.dense_head;
    if (mask_.tile_class) tiles_ = batch * mask_.tile_batch + head * mask_.tile_head;
  }

  // The keys that some of these queries may see lie in [first, last); sound, not always tight.
  void reach(int64_t row, int64_t rows, int64_t *first, int64_t *last) const {
    const int64_t q = p_.q_offset + row;
    *first = at_least(0, q - high_);
    *last = at_most(p_.kv_len, q + rows - 1 - low_ + 1);
  }

  Panel panel(int64_t index) const {
    Panel made{index, index * PANEL, at_most(PANEL, p_.kv_len - index * PANEL), 0, 0, 0};
    made.real = bits_between(0, made.keys - 1);
    if (keep_) made.real &= bits_of_bytes(keep_ + made.first, 1, made.keys);
    if (k_ids_) {
      made.id_low = made.id_high = k_ids_[made.first];
      for (int64_t j = 1; j < made.keys; j++) {
        const int32_t id = k_ids_[made.first + j];
        made.id_low = id < made.id_low ? id : made.id_low;
        made.id_high = id > made.id_high ? id : made.id_high;
      }
    }
    return made;
  }

  // Looks at `rows` queries from `row` on; `words` is filled where the answer is SOME.
  Seen look(const Panel &panel, int64_t row, int rows, uint64_t *words) const {
    if (panel.real == 0) return Seen::NOTHING;
    bool whole = panel.real == ~uint64_t{0};
    const int64_t q = p_.q_offset + row;
    const int64_t nearest = q - (panel.first + panel.keys - 1), farthest = q + rows - 1 - panel.first;
    if (farthest < low_ || nearest > high_) return Seen::NOTHING;
    const bool cut = nearest < low_ || farthest > high_;
    bool mapped = false, apart = false;
    if (tiles_ >= 0) {
      const Seen seen = look_at_map(panel, row, rows);
      if (seen == Seen::NOTHING) return seen;
      mapped = seen == Seen::SOME;
    }
    if (q_ids_) {
      const Seen seen = look_at_ids(panel, row, rows);
      if (seen == Seen::NOTHING) return seen;
      apart = seen == Seen::SOME;
    }
    if (whole && !cut && !mapped && !apart && !dense_) return Seen::ALL;
    return fill(panel, row, rows, words, cut, mapped, apart);
  }

 private:
  const mh_problem &p_;
  const mh_mask &mask_;
  int64_t low_ = -FAR, high_ = FAR, tiles_ = -1;
  const int32_t *q_ids_ = nullptr, *k_ids_ = nullptr;
  const uint8_t *keep_ = nullptr, *dense_ = nullptr;

  int64_t tile_at(int64_t row, const Panel &panel) const { return tiles_ + row / 64 * mask_.k_tiles + panel.index; }

  Seen look_at_map(const Panel &panel, int64_t row, int rows) const {
    const int first = mask_.tile_class[tile_at(row, panel)], last = mask_.tile_class[tile_at(row + rows - 1, panel)];
    if (first != last || first == 1) return Seen::SOME;
    return first == 0 ? Seen::NOTHING : Seen::ALL;
  }

  Seen look_at_ids(const Panel &panel, int64_t row, int rows) const {
    int32_t low = q_ids_[row], high = low;
    for (int r = 1; r < rows; r++) {
      low = q_ids_[row + r] < low ? q_ids_[row + r] : low;
      high = q_ids_[row + r] > high ? q_ids_[row + r] : high;
    }
    if (high < panel.id_low || low > panel.id_high) return Seen::NOTHING;
    return low == high && panel.id_low == panel.id_high ? Seen::ALL : Seen::SOME;
  }

  uint64_t mapped_word(const Panel &panel, int64_t row) const {
    const int64_t tile = tile_at(row, panel);
    const int kind = mask_.tile_class[tile];
    if (kind != 1) return kind == 0 ? 0 : ~uint64_t{0};
    return mask_.tile_bits[int64_t{mask_.tile_index[tile]} * 64 + row % 64];
  }

  Seen fill(const Panel &panel, int64_t row, int rows, uint64_t *words, bool cut, bool mapped, bool apart) const {
    uint64_t any = 0, every = ~uint64_t{0};
    for (int r = 0; r < rows; r++) {
      const int64_t i = row + r, ahead = p_.q_offset + i - panel.first;
      uint64_t word = panel.real;
      if (cut) word &= bits_between(ahead - high_, ahead - low_);
      if (mapped) word &= mapped_word(panel, i);
      if (apart) word &= bits_of_equal(k_ids_ + panel.first, q_ids_[i], panel.keys);
      if (dense_ && word)
        word &= bits_of_bytes(dense_ + i * mask_.dense_row + panel.first * mask_.dense_col, mask_.dense_col, panel.keys);
      words[r] = word;
      any |= word;
      every &= word;
    }
    if (any == 0) return Seen::NOTHING;
    if (every == ~uint64_t{0}) return Seen::ALL;
    for (int r = rows; r < MR; r++) words[r] = any;  // rows that only fill up the tile
    return Seen::SOME;
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
