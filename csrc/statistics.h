// Statistics of a call: tasks of some blocks of rows with all heads, whose sums are added up in the order of the rows.
#pragma once

#include "gram.h"
#include "pairs.h"
#include "scores.h"

namespace mh {
namespace MH_VARIANT {

// How a call is cut. It depends on sizes alone, and so does the order of additions.
struct Division {
  int64_t panels, block_rows, tiles, blocks, chunk_blocks, chunks;

  // `together`: what is kept of all heads, else of one, which is to stay in the nearer caches.
  Division(const mh_problem &p, const mh_wanted &wanted, bool together) {
    constexpr int64_t STASH = 12 << 20, STASH_ONE = 400 << 10, SUMS = 64 << 20;
    constexpr int64_t FEW_TILES = 4, MOST_TILES = 16, MOST_CHUNKS = 16;
    panels = (p.kv_len + PANEL - 1) / PANEL;
    const int64_t one = panels * PANEL * static_cast<int64_t>(sizeof(float)), line = p.heads * one;
    const int64_t some = at_least(FEW_TILES, at_most(MOST_TILES, wanted.row_count / (MR * MOST_CHUNKS)));
    tiles = at_least(1, together ? at_most(FEW_TILES, STASH / (line * MR)) : at_most(some, STASH_ONE / (one * MR)));
    block_rows = tiles * MR;
    blocks = (wanted.row_count + block_rows - 1) / block_rows;
    const int64_t wanted_chunks = at_least(1, at_most(MOST_CHUNKS, SUMS / line));
    chunk_blocks = (blocks + wanted_chunks - 1) / wanted_chunks;
    chunks = (blocks + chunk_blocks - 1) / chunk_blocks;
  }
};

// Words of a batch row: which keys exist and count, which belong to the sink; pieces of bins.
struct KeyWords {
  uint64_t *kept, *sunk;
  int64_t *sunk_at, *piece_at;
  Piece *pieces;

  KeyWords(Cutter &cutter, const mh_problem &p, int64_t panels)
      : kept(cutter.take<uint64_t>(panels)), sunk(cutter.take<uint64_t>(panels)),
        sunk_at(cutter.take<int64_t>(panels)), piece_at(cutter.take<int64_t>(panels + 1)),
        pieces(cutter.take<Piece>(p.kv_len)) {}

  // `before` is the number of keys of the sink in earlier batch rows; it is moved on.
  void fill(const mh_problem &p, const mh_wanted &w, int64_t batch, int64_t panels, int64_t *before) {
    const uint8_t *k_kept = w.k_kept ? w.k_kept + batch * w.k_kept_batch : nullptr;
    const uint8_t *is_sunk = w.sunk ? w.sunk + batch * w.sunk_batch : nullptr;
    const int32_t *bins = w.k_bins ? w.k_bins + batch * w.k_bins_batch : nullptr;
    int64_t count = 0;
    for (int64_t panel = 0; panel < panels; panel++) {
      const int64_t key = panel * PANEL, keys = at_most(PANEL, p.kv_len - key);
      kept[panel] = k_kept ? bits_of_bytes(k_kept + key, 1, keys) : bits_between(0, keys - 1);
      sunk[panel] = is_sunk ? bits_of_bytes(is_sunk + key, 1, keys) & kept[panel] : 0;
      sunk_at[panel] = *before;
      *before += __builtin_popcountll(sunk[panel]);
      piece_at[panel] = count;
      for (int64_t from = 0, to = 0; bins && from < keys; from = to) {
        const int32_t bin = bins[key + from];
        while (to < keys && bins[key + to] == bin) to++;
        // Beyond the last key there is nothing to be taken out.
        const int64_t end = to == keys ? PANEL : to;
        if (bin >= 0) pieces[count++] = {bin, static_cast<int32_t>(from), static_cast<int32_t>(end)};
      }
    }
    piece_at[panels] = count;
  }
};

template <class E>
Block<E> lay_out_block(Cutter &cutter, const mh_problem &p, const mh_wanted &w, const Division &d, bool together) {
  using Word = typename E::Word;
  const int64_t words = words_of<E>(p.head_dim), lines = d.panels * d.block_rows;
  const int64_t padded = round_up(p.heads, SIDE);
  Block<E> b{};
  b.q = cutter.take<Word>(d.block_rows * words);
  b.bias = cutter.take<float>(MR * PANEL);
  b.stash = cutter.take<float>((together ? p.heads : 1) * lines * PANEL);
  b.seen = cutter.take<uint8_t>(p.heads * d.panels * d.tiles);
  b.allowed = cutter.take<uint64_t>(lines);
  b.pair_words = cutter.take<uint64_t>(w.pair_sets * lines);
  b.pair_range = cutter.take<Range>(w.pair_sets * d.tiles);
  b.scores = cutter.take<float>(MR * PANEL);
  b.row = cutter.take<Row>(d.block_rows);
  b.factor = cutter.take<float>(p.heads * d.block_rows);
  b.roots = cutter.take<float>(padded * MR * PANEL);
  b.held = cutter.take<vf>(p.heads * VECTORS);
  b.products = cutter.take<vf>(padded * padded);
  b.link_at = cutter.take<int32_t>(d.block_rows);
  b.link_scores = cutter.take<float>(w.links * d.block_rows);
  b.link_keys = cutter.take<int32_t>(w.links * d.block_rows);
  b.link_counts = cutter.take<int64_t>(d.block_rows);
  return b;
}

// What a row tells beside its sums: weights near it, weights by octave, those on the sink.
template <class E>
class Tell {
 public:
  Tell(const Facts &f, Block<E> &b, int64_t head) : f_(f), b_(b), head_(head) {}

  void run() {
    for (int64_t r = 0; r < b_.rows; r++) {
      if (f_.found.offsets) offsets(r);
      if (f_.found.octaves) octaves(r);
    }
    const int64_t first = f_.sunk_at[0], last = f_.sunk_at[f_.panels - 1] + __builtin_popcountll(f_.sunk[f_.panels - 1]);
    for (int64_t place = first; place < last; place++) {
      float *given = f_.found.sunk_weights + (place * f_.p.heads + head_) * f_.wanted.row_count + b_.first;
      for (int64_t r = 0; r < b_.rows; r++) given[r] *= b_.row[r].scale;
    }
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_;

  void offsets(int64_t r) {
    float *out = f_.found.offsets + f_.at(head_, b_.first + r) * MH_OFFSETS;
    for (int o = 0; o < MH_OFFSETS; o++) out[o] = 0.f;
    const int64_t center = f_.centers[b_.first + r];
    const int64_t from = at_least(center - MH_FARTHEST, b_.from * PANEL);
    const int64_t to = at_most(at_most(center + MH_FARTHEST + 1, b_.to * PANEL), f_.p.kv_len);
    for (int64_t key = from; key < to;) {
      const int64_t panel = key / PANEL, end = at_most(to, (panel + 1) * PANEL);
      if (b_.kind(f_, head_, panel, r / MR)) {
        const float *line = b_.line(f_, head_, panel, r) - panel * PANEL;
        for (int64_t j = key; j < end; j++)
          out[center - j + MH_FARTHEST] = (f_.together ? line[j] * line[j] : line[j]) * b_.row[r].scale;
      }
      key = end;
    }
  }

  void octaves(int64_t r) {
    float *out = f_.found.octaves + f_.at(head_, b_.first + r) * 2 * MH_OCTAVES;
    const float *segments = b_.row[r].segments;
    for (int s = 0; s < MH_OCTAVES; s++) {
      out[s] = segments[SEGMENTS - 1 - s] * b_.row[r].scale;
      out[MH_OCTAVES + s] = segments[MH_OCTAVES - 1 - s] * b_.row[r].scale;
    }
  }
};

template <class E, class T>
void run_chunk(const Facts &f, const Division &d, int64_t chunk, char *scratch, const Sums &sums) {
  const mh_problem &p = f.p;
  Cutter cutter(scratch);
  Block<E> b = lay_out_block<E>(cutter, p, f.wanted, d, f.together);
  const int64_t maps = p.heads * f.wanted.bins * f.wanted.bins;
  if (sums.columns) std::memset(sums.columns, 0, sizeof(float) * static_cast<size_t>(p.heads * d.panels * PANEL));
  if (sums.pooled) std::memset(sums.pooled, 0, sizeof(double) * static_cast<size_t>(maps));
  if (sums.pooled) std::memset(sums.pooled_sunk, 0, sizeof(double) * static_cast<size_t>(maps));
  if (sums.gram) std::memset(sums.gram, 0, sizeof(double) * static_cast<size_t>(p.heads * p.heads));
  const int64_t last = at_most(d.blocks, (chunk + 1) * d.chunk_blocks);
  for (int64_t block = chunk * d.chunk_blocks; block < last; block++) {
    b.first = block * d.block_rows;
    b.rows = at_most(d.block_rows, f.wanted.row_count - b.first);
    PairSets<E> pairs(f, b);
    Links<E>::find(f, b);
    for (int64_t head = 0; head < p.heads; head++) {
      pairs.lay_out(head);
      Scores<E, T>(f, b, head).run();
      Tell<E>(f, b, head).run();
      pairs.measure(head);
      if (sums.columns && !f.together) Columns<E>(f, b, sums).add(head);
    }
    if (f.together) LastLook<E>(f, b, sums).run();
    if (b.leaks && f.found.leaks) {
#if defined(_OPENMP)
#pragma omp atomic write
#endif
      f.found.leaks[f.batch] = 1;
    }
  }
}

// Sums of all chunks of a batch row, and where they go.
class Total {
 public:
  Total(Cutter &cutter, const mh_problem &p, const mh_wanted &w, const mh_found &found, const Division &d)
      : p_(p), found_(found), d_(d), columns_(p.heads * d.panels * PANEL), maps_(p.heads * w.bins * w.bins),
        pairs_(p.heads * p.heads), has_maps_(found.pooled || found.pooled_content),
        has_columns_(found.columns || has_maps_) {
    floats_ = cutter.take<float>(has_columns_ ? d.chunks * columns_ : 0);
    doubles_ = cutter.take<double>(d.chunks * ((has_maps_ ? 2 * maps_ : 0) + (found.gram ? pairs_ : 0)));
  }

  Sums of(int64_t chunk) {
    Sums sums{};
    if (has_columns_) sums.columns = floats_ + chunk * columns_;
    double *at = doubles_;
    if (has_maps_) {
      sums.pooled = at + chunk * 2 * maps_;
      sums.pooled_sunk = sums.pooled + maps_;
      at += d_.chunks * 2 * maps_;
    }
    if (found_.gram) sums.gram = at + chunk * pairs_;
    return sums;
  }

  void write(int64_t batch) {
    for (int64_t chunk = 0; chunk < d_.chunks; chunk++) {
      const Sums sums = of(chunk);
      const bool first = chunk == 0;
      if (found_.columns) {
        for (int64_t h = 0; h < p_.heads; h++)
          add(found_.columns + (batch * p_.heads + h) * p_.kv_len, sums.columns + h * d_.panels * PANEL, p_.kv_len, first);
      }
      if (found_.pooled_content) add(found_.pooled_content + batch * maps_, sums.pooled, maps_, first);
      if (found_.pooled) {
        add(found_.pooled + batch * maps_, sums.pooled, maps_, first);
        add(found_.pooled + batch * maps_, sums.pooled_sunk, maps_, false);
      }
      if (found_.gram) add(found_.gram + batch * pairs_, sums.gram, pairs_, first);
    }
    if (!found_.gram) return;
    double *gram = found_.gram + batch * pairs_;
    for (int64_t h = 0; h < p_.heads; h++)
      for (int64_t g = h + 1; g < p_.heads; g++) gram[h * p_.heads + g] = gram[g * p_.heads + h];
  }

 private:
  const mh_problem &p_;
  const mh_found &found_;
  const Division &d_;
  int64_t columns_, maps_, pairs_;
  bool has_maps_, has_columns_;
  float *floats_;
  double *doubles_;

  template <class N>
  static void add(double *to, const N *from, int64_t count, bool first) {
    for (int64_t i = 0; i < count; i++) to[i] = (first ? 0.0 : to[i]) + static_cast<double>(from[i]);
  }
};

template <class E, class T>
int measure_row(const Facts &f, const Division &d, typename E::Word *keys, Total &total) {
  const mh_problem &p = f.p;
  const int64_t size = f.words * PANEL;
  int status = MH_OK;
  if (!f.wanted.packed_ready) {
    status = run_tasks(p.kv_heads * d.panels, p.threads, 0, [&](int64_t task, char *) {
      const int64_t head = task / d.panels, key = task % d.panels * PANEL;
      const T *k = static_cast<const T *>(p.k.data) + f.batch * p.k.batch + head * p.k.head + key * p.k.row;
      pack_keys<E>(k, p.k.row, at_most(PANEL, p.kv_len - key), p.head_dim, keys + task * size);
    });
  }
  if (status != MH_OK) return status;
  Cutter counter(nullptr);
  lay_out_block<E>(counter, p, f.wanted, d, f.together);
  status = run_tasks(d.chunks, p.threads, counter.used(), [&](int64_t chunk, char *scratch) {
    run_chunk<E, T>(f, d, chunk, scratch, total.of(chunk));
  });
  if (status == MH_OK) total.write(f.batch);
  return status;
}

// Fills what only some rows write.
inline void clear(const mh_problem &p, const mh_wanted &w, const mh_found &found) {
  const size_t size = w.sunk ? static_cast<size_t>(w.sunk_keys * p.heads * w.row_count) : 0;
  if (found.sunk_weights && size) std::memset(found.sunk_weights, 0, sizeof(float) * size);
  if (found.sunk_seen && size) std::memset(found.sunk_seen, 0, size);
  if (found.leaks) std::memset(found.leaks, 0, static_cast<size_t>(p.batch));
}

// Memory of a whole call.
template <class E>
struct Shared {
  typename E::Word *keys;
  KeyWords words;
  Total total;

  Shared(Cutter &cutter, const mh_problem &p, const mh_wanted &w, const mh_found &found, const Division &d)
      : keys(cutter.take<typename E::Word>(w.packed ? 0 : p.kv_heads * d.panels * words_of<E>(p.head_dim) * PANEL)),
        words(cutter, p, d.panels), total(cutter, p, w, found, d) {}
};

template <class E, class T>
int measure(const mh_problem &p, const mh_wanted &w, const mh_found &found) {
  const bool together = found.gram;
  const Division d(p, w, together);
  Cutter counter(nullptr);
  const Shared<E> sizes(counter, p, w, found, d);
  const Scratch memory(counter.used());
  if (!memory) return MH_NO_MEMORY;
  Cutter cutter(memory.data());
  Shared<E> shared(cutter, p, w, found, d);
  clear(p, w, found);
  const Scoring scoring(p);
  const bool usual = scoring.scale > 1e-6f && scoring.scale < 1e6f;  // else powers of 2 of it leave float32
  const bool plain = scoring.plain && usual;
  const float unit = plain ? scoring.scale : 1.f;
  int64_t before = 0;
  for (int64_t batch = 0; batch < p.batch; batch++) {
    shared.words.fill(p, w, batch, d.panels, &before);
    const KeyWords &k = shared.words;
    const int64_t words = words_of<E>(p.head_dim), size = p.kv_heads * d.panels * words * PANEL;
    auto *keys = w.packed ? static_cast<typename E::Word *>(w.packed) + batch * size : shared.keys;
    const float to_log2 = unit * (together ? LOG2E / 2 : LOG2E);
    const Facts f{p, w, found, scoring, plain, unit, to_log2, together, batch, d.panels, words, d.block_rows,
                  d.tiles, keys, k.kept, k.sunk, k.sunk_at, w.centers + batch * w.centers_batch,
                  w.q_kept ? w.q_kept + batch * w.q_kept_batch : nullptr,
                  w.q_bins ? w.q_bins + batch * w.q_bins_batch : nullptr, k.pieces, k.piece_at};
    const int status = measure_row<E, T>(f, d, keys, shared.total);
    if (status != MH_OK) return status;
  }
  return MH_OK;
}

}  // namespace MH_VARIANT
}  // namespace mh
