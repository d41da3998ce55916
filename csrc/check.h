// What an entry asks of its arguments before it touches any memory they point to, other than to read sizes and maps.
#pragma once

#include "multihead_statistics.h"

namespace mh {

// MH_OK, or what is wrong.
int check_problem(const mh_problem *problem);
// Whether these bytes overlap anything that the problem reads.
bool overlaps_inputs(const mh_problem &problem, const void *from, int64_t bytes);
int check_output(const mh_problem &problem, const mh_tensor *out, const float *lse);
int check_wanted(const mh_problem &problem, const mh_wanted *wanted, const mh_found *found);

}  // namespace mh
