// What a block of rows works with. Scores become weights as they are made, relative to what the row has met so far, and
// these are kept until the rows of a head are settled: then weights follow without a second product. Where heads are
// compared their roots are kept instead, until the rows of all heads are settled.
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

struct Range {
  int64_t from, to;
};

// What all blocks of one batch row share.
struct Facts {
  const mh_problem &p;
  const mh_wanted &wanted;
  const mh_found &found;
  Scoring scoring;
  bool plain;             // scores are left as products; what makes natural units of them is `unit`
  float unit, to_log2;    // to_log2: from scores to powers of 2 of what is kept
  bool together;          // roots of all heads are kept, not weights of one
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

// What is known of a row so far.
struct Row {
  vf mass, level, square, reach;  // sums over the current segment, over the row, over the row, over one side of it
  float peak, ref, limit;         // largest score; what weights are relative to; a score above which that is raised
  float pad, sunk, sunk_level, back;
  float scale;                    // 1 / the sum of the row
  int32_t segment, sees, sees_sunk, top_key;
  int64_t edge, center;
  float segments[SEGMENTS];
};

// A block of rows at work. Rows are counted from its first; there are block_rows of them in memory.
template <class E>
struct Block {
  int64_t first, rows;      // among those looked at
  typename E::Word *q;      // (tiles, words, MR)
  float *bias;              // (MR, PANEL)
  float *stash;             // (panels, tiles, heads or 1, MR, PANEL): weights, or roots of weights
  uint8_t *seen;            // (heads, panels, tiles): class
  uint64_t *allowed;        // (panels, block_rows), of one head
  uint64_t *pair_words;     // (pair_sets, block_rows, panels)
  Range *pair_range;        // (pair_sets, tiles): panels that hold a pair
  float *scores;            // (MR, PANEL)
  Row *row;
  float *factor;            // (heads, block_rows): from what is kept to weights or their roots, 0 in rows that do not count
  float *roots;             // (heads, MR * PANEL)
  vf *held;                 // (heads, VECTORS): weights on the keys of a panel
  vf *products;             // of pairs of heads
  int64_t link_first, link_last;  // which of the rows whose links are asked for
  int32_t *link_at;         // of each row its place among them, or -1
  float *link_scores;       // (those rows, links), the largest first
  int32_t *link_keys;
  int64_t *link_counts;     // how many are held
  int64_t from, to;         // panels that some row of the head may see
  bool leaks;

  MH_INLINE float *line(const Facts &f, int64_t head, int64_t panel, int64_t row) const {
    const int64_t tile = panel * f.tiles + row / MR;
    return stash + ((f.together ? tile * f.p.heads + head : tile) * MR + row % MR) * PANEL;
  }
  // From a line to that of the same row of the next tile.
  MH_INLINE int64_t next_tile(const Facts &f) const { return (f.together ? f.p.heads : 1) * MR * PANEL; }
  MH_INLINE uint8_t &kind(const Facts &f, int64_t head, int64_t panel, int64_t tile) const {
    return seen[(head * f.panels + panel) * f.tiles + tile];
  }
};

// Scores of MR rows and a panel, with the largest of each row. `next`: what a tile brings nearer.
template <class E, bool PLAIN>
__attribute__((noinline)) void score_tile(const Scoring &scoring, const typename E::Word *q, const typename E::Word *k,
                                          int64_t words, const float *bias, const uint64_t *allowed, float *scores,
                                          vf (&most)[MR], Ahead next) {
  for (int at = 0; at < PANEL; at += STRIP) {
    vf acc[MR][NV];
    multiply<E, NV, true>(q, k + at, words, acc, next);
    next.from += next.bytes * words;
    if constexpr (!PLAIN) scoring.finish<NV>(acc, bias + at);
    if (__builtin_expect(allowed != nullptr, 0)) hide<NV>(acc, allowed, at);
    each<MR>([&](auto r) __attribute__((always_inline)) {
      vf top = acc[r][0];
      each<NV>([&](auto c) __attribute__((always_inline)) {
        if constexpr (c > 0) top = vmax(top, acc[r][c]);
        store(scores + r * PANEL + at + c * W, acc[r][c]);
      });
      most[r] = at == 0 ? top : vmax(most[r], top);
    });
  }
}

// The keys of a panel whose score is a given one.
MH_INLINE uint64_t keys_with(const float *scores, float score) {
  uint64_t word = 0;
  for (int c = 0; c < VECTORS; c++) {
#if defined(__AVX512F__)
    const auto same = _mm512_cmp_ps_mask(load(scores + c * W), splat(score), _CMP_EQ_OQ);
    word |= static_cast<uint64_t>(same) << (c * W);
#else
    for (int i = 0; i < W; i++) word |= static_cast<uint64_t>(scores[c * W + i] == score) << (c * W + i);
#endif
  }
  return word;
}

// The largest score of a row and a panel among some keys.
MH_INLINE vf largest_of(const float *line, uint64_t keys) {
  vf top = splat(-INF);
  for (int c = 0; c < VECTORS; c++)
    top = vmax(top, pick(static_cast<uint32_t>(keys >> (c * W)), load(line + c * W), splat(-INF)));
  return top;
}

}  // namespace MH_VARIANT
}  // namespace mh
