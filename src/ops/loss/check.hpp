// Arguments of the classifier loss, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::loss {

void check(const LossQuery& query);
/// Returns the tensors with leading dimensions folded: x and dx [n, inputs], targets [n].
LossForward check(const LossQuery& query, const LossForward& tensors);
LossBackward check(const LossQuery& query, const LossBackward& tensors);

}  // namespace everglow::loss
