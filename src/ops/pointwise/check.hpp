// Arguments of elementwise operations, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::pointwise {

void check(const PointwiseQuery& query);
void check(const PointwiseQuery& query, const PointwiseRun& tensors);

}  // namespace everglow::pointwise
