// Arguments of an optimiser step, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::adam {

void check(const AdamQuery& query);
void check(const AdamQuery& query, const AdamStep& tensors);

}  // namespace everglow::adam
