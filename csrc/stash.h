// Scores of a block of rows and all keys of one head, kept for as long as it takes to look at them twice: once they are
// known to the end of the row the weights follow without a second product.
#pragma once

#include "multihead_statistics.h"
#include "parallel.h"
#include "score.h"

namespace mh {
namespace MH_VARIANT {

constexpr int VECTORS = PANEL / W;       // of a row and a panel
constexpr int SEGMENTS = 2 * MH_OCTAVES + 2;  // of the distances of a row: octaves, and near ones back and ahead

// Whether a panel of keys holds a border between bins of keys: pieces of it.
struct Piece {
  int32_t bin, from, to;
};

// What all blocks of one batch row share.
struct Facts {
  const mh_problem &p;
  const mh_wanted &wanted;
  const mh_found &found;
  Scoring scoring;
  bool plain;             // scores are left as products; what makes natural units of them is `unit`
  float unit, half_log2;  // half_log2: from scores to powers of 2, of the root of a weight
  int64_t batch, panels, words, block_rows, tiles;
  const void *keys;        // packed, (kv_heads, panels, words * PANEL)
  const uint64_t *kept, *sunk;  // a word a panel
  const int64_t *sunk_at;  // for each panel the place of its first key of the sink among all of them
  const int64_t *centers;
  const uint8_t *q_kept;
  const int32_t *q_bins;
  const Piece *pieces;     // those of panel i: from piece_at[i] to piece_at[i + 1]
  const int64_t *piece_at;

  int64_t query(int64_t place) const { return wanted.rows ? wanted.rows[place] : wanted.row_first + place; }
  // Place of a number of one row in arrays (batch, heads, rows).
  int64_t at(int64_t head, int64_t place) const { return (batch * p.heads + head) * wanted.row_count + place; }
};

// A block of rows at work. Rows are counted from its first; there are block_rows of them in memory.
template <class E>
struct Block {
  int64_t first, rows;      // among those looked at
  typename E::Word *q;      // (tiles, words, MR)
  float *bias;              // (MR, PANEL)
  float *stash;             // (heads, panels, block_rows, PANEL): scores, then roots of weights
  uint8_t *seen;            // (heads, panels, tiles): class
  uint64_t *allowed;        // (panels, block_rows), of one head
  uint64_t *pair_words;     // (pair_sets, panels, block_rows)
  uint8_t *pair_some;       // (pair_sets, panels, tiles)
  vf *top, *mass, *level, *square, *reach;  // of each row: largest score; sums over the current segment and the row
  vi *top_panel;
  float *ref, *pad_top, *pad, *sunk, *sunk_level, *back, *segments;
  int64_t *edge;
  int32_t *segment, *sees, *sees_sunk, *top_key;
  float *factor;            // (heads, block_rows): from kept roots to roots of weights, 0 in rows that do not count
  float *scale;             // of one head: 1 / the sum of the row
  float *roots;             // (heads, MR * PANEL)
  vf *held;                 // (heads, VECTORS): weights on the keys of a panel
  vf *products;             // of pairs of heads
  int64_t from, to;         // panels that some row of the head may see
  bool leaks;

  MH_INLINE float *line(const Facts &f, int64_t head, int64_t panel, int64_t row) const {
    return stash + ((head * f.panels + panel) * f.block_rows + row) * PANEL;
  }
  MH_INLINE uint8_t &kind(const Facts &f, int64_t head, int64_t panel, int64_t tile) const {
    return seen[(head * f.panels + panel) * f.tiles + tile];
  }
};

// Keeps the larger of two lane by lane, and the panel it is from; the first of equals stays.
MH_INLINE void keep_larger(vf x, int32_t panel, vf &top, vi &place) {
#if defined(__AVX512F__)
  const __mmask16 above = _mm512_cmp_ps_mask(x, top, _CMP_GT_OQ);
  top = _mm512_mask_mov_ps(top, above, x);
  place = (vi)_mm512_mask_mov_epi32((__m512i)place, above, _mm512_set1_epi32(panel));
#else
  const vi above = x > top;
  top = above ? x : top;
  place = above ? splat_i(panel) : place;
#endif
}

// Scores of MR rows and a panel, with the largest of each row.
template <class E, bool PLAIN>
__attribute__((noinline)) void score_tile(const Scoring &scoring, const typename E::Word *q, const typename E::Word *k,
                                          int64_t words, const float *bias, const uint64_t *allowed, float *stash,
                                          vf (&most)[MR]) {
  for (int at = 0; at < PANEL; at += STRIP) {
    vf acc[MR][NV];
    multiply<E, NV>(q, k + at, words, acc);
    if constexpr (!PLAIN) scoring.finish<NV>(acc, bias + at);
    if (__builtin_expect(allowed != nullptr, 0)) hide<NV>(acc, allowed, at);
    each<MR>([&](auto r) __attribute__((always_inline)) {
      vf top = acc[r][0];
      each<NV>([&](auto c) __attribute__((always_inline)) {
        if constexpr (c > 0) top = vmax(top, acc[r][c]);
        store(stash + r * PANEL + at + c * W, acc[r][c]);
      });
      most[r] = at == 0 ? top : vmax(most[r], top);
    });
  }
}

// The largest score of a row and a panel among some keys.
MH_INLINE vf largest_of(const float *line, uint64_t keys) {
  vf top = splat(-INF);
  for (int c = 0; c < VECTORS; c++)
    top = vmax(top, pick(static_cast<uint32_t>(keys >> (c * W)), load(line + c * W), splat(-INF)));
  return top;
}

template <class E, class T>
class Scores {
 public:
  Scores(const Facts &f, Block<E> &b, int64_t head)
      : f_(f), b_(b), head_(head), sight_(f.p, f.batch, head), adjust_(f.p, f.batch, head) {}

  void run() {
    take_queries();
    for (int64_t r = 0; r < f_.block_rows; r++) {
      b_.top[r] = splat(-INF);
      b_.top_panel[r] = vi{};
      b_.pad_top[r] = -INF;
      b_.sees[r] = b_.sees_sunk[r] = 0;
    }
    find_reach();
    for (int64_t index = 0; index < f_.panels; index++) {
      if (index < b_.from || index >= b_.to) {
        std::memset(&b_.kind(f_, head_, index, 0), 0, static_cast<size_t>(f_.tiles));
        continue;
      }
      const Panel panel = sight_.panel(index);
      for (int64_t tile = 0; tile < f_.tiles; tile++) through(panel, tile);
    }
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_;
  Sight sight_;
  Adjust adjust_;

  void take_queries() {
    const mh_tensor &q = f_.p.q;
    const T *from = static_cast<const T *>(q.data) + f_.batch * q.batch + head_ * q.head;
    T gathered[MR * 512];
    for (int64_t tile = 0; tile < f_.tiles; tile++) {
      const int64_t start = tile * MR, rows = at_least(0, at_most(MR, b_.rows - start));
      for (int64_t r = 0; r < rows; r++)
        std::memcpy(gathered + r * f_.p.head_dim, from + f_.query(b_.first + start + r) * q.row,
                    sizeof(T) * static_cast<size_t>(f_.p.head_dim));
      pack_queries<E>(gathered, f_.p.head_dim, rows, f_.p.head_dim, f_.scoring.sign, b_.q + start * f_.words);
    }
  }

  void find_reach() {
    int64_t low = f_.p.kv_len, high = 0;
    for (int64_t r = 0; r < b_.rows; r++) {
      int64_t first, last;
      sight_.reach(f_.query(b_.first + r), 1, &first, &last);
      low = at_most(low, first);
      high = at_least(high, last);
    }
    b_.from = low / PANEL;
    b_.to = high > low ? (high + PANEL - 1) / PANEL : b_.from;
  }

  // The class of a tile; `allowed` is filled in any case.
  Seen look(const Panel &panel, int64_t tile, int rows, uint64_t *allowed) {
    const int64_t start = b_.first + tile * MR;
    uint64_t words[MR];
    if (!f_.wanted.rows) {
      const Seen seen = sight_.look(panel, f_.query(start), rows, words);
      for (int r = 0; r < MR; r++) allowed[r] = seen == Seen::SOME ? words[r] : seen == Seen::ALL ? ~uint64_t{0} : 0;
      return seen;
    }
    uint64_t any = 0, every = ~uint64_t{0};
    for (int r = 0; r < rows; r++) {
      const Seen seen = sight_.look(panel, f_.query(start + r), 1, words);
      allowed[r] = seen == Seen::SOME ? words[0] : seen == Seen::ALL ? ~uint64_t{0} : 0;
      any |= allowed[r];
      every &= allowed[r];
    }
    for (int r = rows; r < MR; r++) allowed[r] = any;
    return any == 0 ? Seen::NOTHING : every == ~uint64_t{0} ? Seen::ALL : Seen::SOME;
  }

  void through(const Panel &panel, int64_t tile) {
    const int64_t start = tile * MR, index = panel.index;
    const int rows = static_cast<int>(at_least(0, at_most(MR, b_.rows - start)));
    uint64_t *allowed = b_.allowed + index * f_.block_rows + start;
    const Seen seen = rows == 0 ? Seen::NOTHING : look(panel, tile, rows, allowed);
    b_.kind(f_, head_, index, tile) = static_cast<uint8_t>(seen);
    if (seen == Seen::NOTHING) return;
    float *stash = b_.line(f_, head_, index, start);
    const int64_t kv_head = head_ / (f_.p.heads / f_.p.kv_heads);
    const auto *k = static_cast<const typename E::Word *>(f_.keys) + (kv_head * f_.panels + index) * f_.words * PANEL;
    vf most[MR];
    const uint64_t *hidden = seen == Seen::SOME ? allowed : nullptr;
    if (f_.plain) {
      score_tile<E, true>(f_.scoring, b_.q + start * f_.words, k, f_.words, b_.bias, hidden, stash, most);
    } else {
      fill_bias(panel, start, rows);
      score_tile<E, false>(f_.scoring, b_.q + start * f_.words, k, f_.words, b_.bias, hidden, stash, most);
    }
    for (int r = 0; r < rows; r++) note(panel, start + r, allowed[r], stash + r * PANEL, most[r]);
  }

  void fill_bias(const Panel &panel, int64_t start, int rows) {
    if (!f_.wanted.rows) return adjust_.fill(panel, f_.query(b_.first + start), rows, b_.bias);
    float one[MR * PANEL];
    for (int r = 0; r < rows; r++) {
      adjust_.fill(panel, f_.query(b_.first + start + r), 1, one);
      std::memcpy(b_.bias + r * PANEL, one, sizeof(float) * PANEL);
    }
  }

  // What is known of a row after a panel: how many keys it sees, its largest score; keys that are not kept stand apart.
  void note(const Panel &panel, int64_t row, uint64_t allowed, const float *line, vf most) {
    const uint64_t kept = f_.kept[panel.index], strange = allowed & ~kept;
    b_.sees[row] += __builtin_popcountll(allowed & kept);
    if (f_.sunk[panel.index]) b_.sees_sunk[row] += __builtin_popcountll(allowed & f_.sunk[panel.index]);
    if (__builtin_expect(strange != 0, 0)) {
      most = largest_of(line, allowed & kept);
      const float other = max_lane(largest_of(line, strange));
      b_.pad_top[row] = other > b_.pad_top[row] ? other : b_.pad_top[row];
      if (!f_.q_kept || f_.q_kept[b_.first + row]) b_.leaks = true;
    }
    keep_larger(most, static_cast<int32_t>(panel.index), b_.top[row], b_.top_panel[row]);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
