// Weight on sets of pairs: a word of 64 keys for each row and panel says which are in, the same for all heads but where
// a set says otherwise; only panels that hold a pair are looked at.
#pragma once

#include "spread.h"

namespace mh {
namespace MH_VARIANT {

template <class E>
class PairSets {
 public:
  PairSets(const Facts &f, Block<E> &b) : f_(f), b_(b) {}

  // The words of all sets for a block of rows and one head.
  void lay_out(int64_t head) {
    for (int64_t set = 0; set < f_.wanted.pair_sets; set++) {
      const mh_pairs &pairs = f_.wanted.pairs[set];
      if (head > 0 && !(pairs.dense && pairs.dense_head)) continue;
      for (int64_t panel = 0; panel < f_.panels; panel++) {
        for (int64_t tile = 0; tile < f_.tiles; tile++) {
          uint64_t any = 0;
          const int64_t end = at_most((tile + 1) * MR, b_.rows);
          for (int64_t r = tile * MR; r < end; r++) {
            const uint64_t word = word_of(pairs, head, panel, r);
            b_.pair_words[(set * f_.panels + panel) * f_.block_rows + r] = word;
            any |= word;
          }
          b_.pair_some[(set * f_.panels + panel) * f_.tiles + tile] = any != 0;
        }
      }
    }
  }

  // What a head gives to the pairs, once its rows are settled.
  void measure(int64_t head) {
    for (int64_t set = 0; set < f_.wanted.pair_sets; set++) {
      for (int64_t tile = 0; tile * MR < b_.rows; tile++) measure(set, head, tile);
    }
  }

 private:
  const Facts &f_;
  Block<E> &b_;

  struct Sum {
    double content, sunk;
    int32_t seen, seen_sunk;
  };

  uint64_t word_of(const mh_pairs &pairs, int64_t head, int64_t panel, int64_t r) const {
    const int64_t place = b_.first + r, key = panel * PANEL, keys = at_most(PANEL, f_.p.kv_len - key);
    const int64_t ahead = f_.centers[place] - key;
    const int64_t low = at_least(pairs.low, -FAR), high = at_most(pairs.high, FAR);
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

  void measure(int64_t set, int64_t head, int64_t tile) {
    Sum sums[MR] = {};
    const int64_t first = tile * MR, rows = at_most(MR, b_.rows - first);
    for (int64_t panel = b_.from; panel < b_.to; panel++) {
      if (!b_.pair_some[(set * f_.panels + panel) * f_.tiles + tile] || !b_.kind(f_, head, panel, tile)) continue;
      const uint64_t *words = b_.pair_words + (set * f_.panels + panel) * f_.block_rows + first;
      for (int64_t r = 0; r < rows; r++) {
        const uint64_t word = words[r] & b_.allowed[panel * f_.block_rows + first + r];
        if (word) add(word, head, panel, first + r, sums[r]);
      }
    }
    for (int64_t r = 0; r < rows; r++) tell(set, head, first + r, sums[r]);
  }

  void add(uint64_t word, int64_t head, int64_t panel, int64_t r, Sum &sum) {
    const float *line = b_.line(f_, head, panel, r);
    const uint64_t sunk = word & f_.sunk[panel];
    sum.seen += __builtin_popcountll(word);
    if (sunk) {
      sum.seen_sunk += __builtin_popcountll(sunk);
      for (uint64_t rest = sunk; rest; rest &= rest - 1) {
        const uint64_t before = f_.sunk[panel] & ((rest & -rest) - 1);
        const int64_t place = f_.sunk_at[panel] + __builtin_popcountll(before);
        sum.sunk += static_cast<double>(
            f_.found.sunk_weights[(place * f_.p.heads + head) * f_.wanted.row_count + b_.first + r]);
      }
    }
    word &= ~sunk;
    float content = 0.f;
    if (__builtin_popcountll(word) <= 8) {
      for (; word; word &= word - 1) {
        const float e = line[__builtin_ctzll(word)];
        content += f_.together ? e * e : e;
      }
    } else {
      vf total = {};
      for (int c = 0; c < VECTORS; c++) {
        const vf e = load(line + c * W);
        total += pick(static_cast<uint32_t>(word >> (c * W)), f_.together ? e * e : e, vf{});
      }
      content = sum_lanes(total);
    }
    sum.content += static_cast<double>(content);
  }

  void tell(int64_t set, int64_t head, int64_t r, const Sum &sum) {
    const mh_found &found = f_.found;
    const int64_t at = set * f_.p.batch * f_.p.heads * f_.wanted.row_count + f_.at(head, b_.first + r);
    const int64_t top = b_.row[r].top_key;
    const uint64_t word = b_.pair_words[(set * f_.panels + top / PANEL) * f_.block_rows + r];
    if (found.pair_weight) found.pair_weight[at] = static_cast<float>(sum.content * static_cast<double>(b_.row[r].scale));
    if (found.pair_sunk) found.pair_sunk[at] = static_cast<float>(sum.sunk);
    if (found.pair_seen) found.pair_seen[at] = sum.seen;
    if (found.pair_seen_sunk) found.pair_seen_sunk[at] = sum.seen_sunk;
    if (found.pair_top) found.pair_top[at] = b_.row[r].sees > 0 && (word >> (top % PANEL) & 1);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
