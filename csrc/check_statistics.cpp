// What mh_statistics asks of its arguments beyond those of a problem.
#include <climits>
#include <initializer_list>

#include "check.h"
#include "multihead_statistics.h"

namespace mh {
namespace {

constexpr int64_t MOST = int64_t{1} << 40;

bool fits(int64_t x, int64_t most) { return x >= 0 && x <= most; }
bool aligned(const void *p, uintptr_t item) { return reinterpret_cast<uintptr_t>(p) % item == 0; }

int check_rows(const mh_problem &p, const mh_wanted &w) {
  if (!fits(w.row_count, p.q_len) || w.bins < 1 || w.bins > 1024 || w.least < 0) return MH_BAD_SIZE;
  if (!w.rows) return fits(w.row_first, p.q_len - w.row_count) ? MH_OK : MH_BAD_SIZE;
  if (!aligned(w.rows, 8)) return MH_BAD_POINTER;
  for (int64_t i = 0; i < w.row_count; i++)
    if (!fits(w.rows[i], p.q_len - 1)) return MH_BAD_SIZE;
  return MH_OK;
}

// Bins within [low, bins).
int check_bins(const int32_t *bins, int64_t batches, int64_t stride, int64_t length, int32_t low, int32_t count) {
  if (!bins) return MH_OK;
  if (!aligned(bins, 4)) return MH_BAD_POINTER;
  for (int64_t b = 0; b < (stride ? batches : 1); b++)
    for (int64_t i = 0; i < length; i++)
      if (bins[b * stride + i] < low || bins[b * stride + i] >= count) return MH_BAD_NUMBER;
  return MH_OK;
}

int check_centers(const mh_problem &p, const mh_wanted &w) {
  if (!w.centers || !aligned(w.centers, 8)) return MH_BAD_POINTER;
  for (int64_t b = 0; b < (w.centers_batch ? p.batch : 1); b++)
    for (int64_t i = 0; i < w.row_count; i++)
      if (!fits(w.centers[b * w.centers_batch + i], MOST) && !fits(-w.centers[b * w.centers_batch + i], MOST))
        return MH_BAD_NUMBER;
  return MH_OK;
}

int check_pairs(const mh_problem &p, const mh_wanted &w) {
  if (!fits(w.pair_sets, 64) || (w.pair_sets > 0 && !w.pairs)) return MH_BAD_SIZE;
  for (int64_t i = 0; i < w.pair_sets; i++) {
    const mh_pairs &s = w.pairs[i];
    if (!s.q_ids != !s.k_ids) return MH_BAD_MASK;
    if (!aligned(s.q_ids, 4) || !aligned(s.k_ids, 4)) return MH_BAD_POINTER;
    for (int64_t stride : {s.q_ids_batch, s.k_ids_batch, s.dense_batch, s.dense_head, s.dense_row})
      if (!fits(stride, MOST)) return MH_BAD_STRIDE;
    if (s.dense && (!fits(s.dense_keys, p.kv_len) || !fits(s.dense_first, p.kv_len - s.dense_keys))) return MH_BAD_MASK;
    if (s.without != INT64_MIN && !fits(s.without, MOST) && !fits(-s.without, MOST)) return MH_BAD_NUMBER;
  }
  return MH_OK;
}

// Keys of the sink in all batch rows.
int64_t count_sunk(const mh_problem &p, const mh_wanted &w) {
  int64_t count = 0;
  for (int64_t b = 0; w.sunk && b < p.batch; b++)
    for (int64_t j = 0; j < p.kv_len; j++)
      count += w.sunk[b * w.sunk_batch + j] && (!w.k_kept || w.k_kept[b * w.k_kept_batch + j]);
  return count;
}

int check_links(const mh_wanted &w) {
  if (!fits(w.links, 64) || !fits(w.link_count, w.row_count)) return MH_BAD_SIZE;
  if (!aligned(w.link_rows, 8)) return MH_BAD_POINTER;
  for (int64_t i = 0; w.link_rows && i < w.link_count; i++)
    if (!fits(w.link_rows[i], w.row_count - 1) || (i > 0 && w.link_rows[i] <= w.link_rows[i - 1])) return MH_BAD_SIZE;
  return MH_OK;
}

// Each output beside everything that is read and every other output.
int check_overlap(const mh_problem &p, const mh_wanted &w, const mh_found &f) {
  const int64_t heads = p.batch * p.heads, rows = heads * w.row_count, sets = w.pair_sets * rows, keys = heads * p.kv_len;
  const int64_t sunk = w.sunk ? w.sunk_keys * p.heads * w.row_count : 0, links = heads * w.link_count * w.links;
  const int64_t map = heads * w.bins * w.bins;
  const struct {
    const void *data;
    int64_t bytes;
  } outputs[] = {
      {f.sees, 4 * rows},         {f.sees_sunk, 4 * rows},        {f.top_key, 4 * rows},
      {f.peak, 4 * rows},         {f.top, 4 * rows},              {f.entropy, 4 * rows},
      {f.sink, 4 * rows},         {f.sunk, 4 * rows},             {f.left, 4 * rows},
      {f.left_entropy, 4 * rows}, {f.squares, 4 * rows},          {f.distance, 4 * rows},
      {f.distance_absolute, 4 * rows},                            {f.lse, 4 * rows},
      {f.offsets, 4 * MH_OFFSETS * rows},                         {f.octaves, 8 * MH_OCTAVES * rows},
      {f.sunk_weights, 4 * sunk}, {f.sunk_seen, sunk},            {f.columns, 8 * keys},
      {f.pooled, 8 * map},        {f.pooled_content, 8 * map},    {f.gram, 8 * heads * p.heads},
      {f.pair_weight, 4 * sets},  {f.pair_sunk, 4 * sets},        {f.pair_seen, 4 * sets},
      {f.pair_seen_sunk, 4 * sets},                               {f.pair_top, sets},
      {f.link_keys, 4 * links},   {f.link_weights, 4 * links},    {f.leaks, p.batch},
      {w.packed_ready ? nullptr : w.packed, w.packed_size},
  };
  for (const auto &one : outputs) {
    if (!one.data || one.bytes == 0) continue;
    if (overlaps_inputs(p, one.data, one.bytes)) return MH_ALIASED;
    for (const auto &other : outputs) {
      const uintptr_t a = reinterpret_cast<uintptr_t>(one.data), b = reinterpret_cast<uintptr_t>(other.data);
      if (&other != &one && other.data && a < b + static_cast<uintptr_t>(other.bytes) && b < a + static_cast<uintptr_t>(one.bytes))
        return MH_ALIASED;
    }
  }
  return MH_OK;
}

}  // namespace

int check_wanted(const mh_problem &p, const mh_wanted *wanted, const mh_found *found) {
  if (!wanted || !found) return MH_BAD_POINTER;
  const mh_wanted &w = *wanted;
  if (w.abi != MH_STATISTICS_ABI) return MH_BAD_NUMBER;
  for (int64_t stride : {w.centers_batch, w.q_kept_batch, w.k_kept_batch, w.sunk_batch, w.q_bins_batch, w.k_bins_batch})
    if (!fits(stride, MOST)) return MH_BAD_STRIDE;
  if (int status = check_rows(p, w)) return status;
  if (int status = check_centers(p, w)) return status;
  if (int status = check_bins(w.q_bins, p.batch, w.q_bins_batch, w.row_count, 0, w.bins)) return status;
  if (int status = check_bins(w.k_bins, p.batch, w.k_bins_batch, p.kv_len, -1, w.bins)) return status;
  if (int status = check_pairs(p, w)) return status;
  if (int status = check_links(w)) return status;
  if (!aligned(w.packed, 64) || (w.packed_ready && !w.packed)) return MH_BAD_POINTER;
  if (!fits(w.packed_size, MOST)) return MH_BAD_SIZE;
  if (w.sunk && !found->sunk_weights) return MH_BAD_POINTER;
  if (w.sunk && w.sunk_keys != count_sunk(p, w)) return MH_BAD_SIZE;
  for (const void *made : {static_cast<const void *>(found->sees), static_cast<const void *>(found->sees_sunk),
                           static_cast<const void *>(found->top_key), static_cast<const void *>(found->pair_seen),
                           static_cast<const void *>(found->pair_seen_sunk), static_cast<const void *>(found->link_keys)})
    if (!aligned(made, 4)) return MH_BAD_POINTER;
  for (const float *made : {found->peak, found->top, found->entropy, found->sink, found->sunk, found->left,
                            found->left_entropy, found->squares, found->distance, found->distance_absolute, found->lse,
                            found->offsets, found->octaves, found->sunk_weights, found->pair_weight, found->pair_sunk,
                            found->link_weights})
    if (!aligned(made, 4)) return MH_BAD_POINTER;
  for (const double *made : {found->columns, found->pooled, found->pooled_content, found->gram})
    if (!aligned(made, 8)) return MH_BAD_POINTER;
  return check_overlap(p, w, *found);
}

}  // namespace mh
