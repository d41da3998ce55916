// Weight on sets of pairs: a word of 64 keys for each row and panel says which are in, the same for all heads but where
// a set says otherwise; only panels from the first to the last that hold a pair are looked at.
#pragma once

#include "spread.h"

namespace mh {
namespace MH_VARIANT {

template <class E>
class PairSets {
 public:
  PairSets(const Facts &f, Block<E> &b) : f_(f), b_(b) {}

  // The words of all sets for a block of rows and one head, and the panels of each tile of rows that hold a pair.
  void lay_out(int64_t head) {
    for (int64_t set = 0; set < f_.wanted.pair_sets; set++) {
      const mh_pairs &pairs = f_.wanted.pairs[set];
      if (head > 0 && !(pairs.dense && pairs.dense_head)) continue;
      for (int64_t tile = 0; tile < f_.tiles; tile++) {
        Range range{f_.panels, 0};
        for (int64_t r = tile * MR; r < at_most((tile + 1) * MR, b_.rows); r++)
          lay_out(pairs, head, r, words_of(set, r), range);
        b_.pair_range[set * f_.tiles + tile] = range;
      }
    }
  }

  // What a head gives to the pairs, once its rows are settled.
  void measure(int64_t head) {
    for (int64_t r = 0; r < b_.rows; r++) {
      for (int64_t set = 0; set < f_.wanted.pair_sets; set++) measure(set, head, r);
    }
  }

 private:
  const Facts &f_;
  Block<E> &b_;

  struct Sum {
    float content;
    double sunk;
    int32_t seen, seen_sunk;
  };

  // A bound beyond any distance, far from overflow, for one that is farther.
  static int64_t near_enough(int64_t bound) { return at_most(at_least(bound, -FAR), FAR); }

  // The words of a set and a row, one a panel.
  uint64_t *words_of(int64_t set, int64_t r) const { return b_.pair_words + (set * f_.block_rows + r) * f_.panels; }

  void lay_out(const mh_pairs &pairs, int64_t head, int64_t r, uint64_t *words, Range &range) const {
    // The keys that the bounds let in.
    const int64_t center = f_.centers[b_.first + r];
    const int64_t first = at_least(0, center - near_enough(pairs.high));
    const int64_t last = at_most(f_.p.kv_len - 1, center - near_enough(pairs.low));
    std::memset(words, 0, sizeof *words * static_cast<size_t>(f_.panels));
    for (int64_t panel = first / PANEL; panel * PANEL <= last; panel++) {
      words[panel] = word_of(pairs, head, panel, r);
      if (!words[panel]) continue;
      range.from = at_most(range.from, panel);
      range.to = at_least(range.to, panel + 1);
    }
  }

  uint64_t word_of(const mh_pairs &pairs, int64_t head, int64_t panel, int64_t r) const {
    const int64_t place = b_.first + r, key = panel * PANEL, keys = at_most(PANEL, f_.p.kv_len - key);
    const int64_t ahead = f_.centers[place] - key;
    const int64_t low = near_enough(pairs.low), high = near_enough(pairs.high);
    uint64_t word = bits_between(ahead - high, ahead - low) & f_.kept[panel];
    if (!word) return 0;
    if (pairs.without != INT64_MIN) {
      const int64_t own = ahead - pairs.without;
      if (own >= 0 && own < PANEL) word &= ~(uint64_t{1} << own);
    }
    if (pairs.q_ids)
      word &= bits_of_equal(pairs.k_ids + f_.batch * pairs.k_ids_batch + key,
                            pairs.q_ids[f_.batch * pairs.q_ids_batch + place], keys);
    if (pairs.dense && word) word &= dense_word(pairs, head, key, keys, r);
    return word;
  }

  uint64_t dense_word(const mh_pairs &pairs, int64_t head, int64_t key, int64_t keys, int64_t r) const {
    const int64_t from = at_least(key, pairs.dense_first);
    const int64_t to = at_most(key + keys, pairs.dense_first + pairs.dense_keys);
    if (from >= to) return 0;
    const uint8_t *line = pairs.dense + f_.batch * pairs.dense_batch + head * pairs.dense_head +
                          (b_.first + r) * pairs.dense_row + (from - pairs.dense_first);
    return bits_of_bytes(line, 1, to - from) << (from - key);
  }

  void measure(int64_t set, int64_t head, int64_t r) {
    Sum sum = {};
    vf content[VECTORS] = {};
    const Range &range = b_.pair_range[set * f_.tiles + r / MR];
    const uint64_t *words = words_of(set, r), *allowed = b_.allowed + r, *all_sunk = f_.sunk;
    const int64_t from = at_least(b_.from, range.from), to = at_most(b_.to, range.to), rows = f_.block_rows;
    const int64_t step = b_.line(f_, head, 1, 0) - b_.line(f_, head, 0, 0);
    const float *line = b_.line(f_, head, from, r);
    const bool squared = f_.together;
    for (int64_t panel = from; panel < to; panel++, line += step) {
      uint64_t word = words[panel] & allowed[panel * rows];
      if (!word) continue;
      sum.seen += __builtin_popcountll(word);
      const uint64_t sunk = word & all_sunk[panel];
      if (__builtin_expect(sunk != 0, 0)) add_sunk(sunk, head, panel, r, sum);
      word &= ~sunk;
      each<VECTORS>([&](auto c) __attribute__((always_inline)) {
        const vf e = load(line + c * W);
        content[c] = add_where(static_cast<uint32_t>(word >> (c * W)), content[c], squared ? e * e : e);
      });
    }
    for (int c = 1; c < VECTORS; c++) content[0] += content[c];
    sum.content = sum_lanes(content[0]);
    tell(set, head, r, sum);
  }

  void add_sunk(uint64_t sunk, int64_t head, int64_t panel, int64_t r, Sum &sum) const {
    sum.seen_sunk += __builtin_popcountll(sunk);
    for (uint64_t rest = sunk; rest; rest &= rest - 1) {
      const uint64_t before = f_.sunk[panel] & ((rest & -rest) - 1);
      const int64_t place = f_.sunk_at[panel] + __builtin_popcountll(before);
      sum.sunk += static_cast<double>(
          f_.found.sunk_weights[(place * f_.p.heads + head) * f_.wanted.row_count + b_.first + r]);
    }
  }

  void tell(int64_t set, int64_t head, int64_t r, const Sum &sum) {
    const mh_found &found = f_.found;
    const int64_t at = set * f_.p.batch * f_.p.heads * f_.wanted.row_count + f_.at(head, b_.first + r);
    const int64_t top = b_.row[r].top_key;
    const uint64_t word = words_of(set, r)[top / PANEL];
    if (found.pair_weight) found.pair_weight[at] = sum.content * b_.row[r].scale;
    if (found.pair_sunk) found.pair_sunk[at] = static_cast<float>(sum.sunk);
    if (found.pair_seen) found.pair_seen[at] = sum.seen;
    if (found.pair_seen_sunk) found.pair_seen_sunk[at] = sum.seen_sunk;
    if (found.pair_top) found.pair_top[at] = b_.row[r].sees > 0 && (word >> (top % PANEL) & 1);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
