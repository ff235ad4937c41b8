// Arguments of the softmax layer, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::softmax {

void check(const SoftmaxQuery& query);
/// Returns the tensors with leading dimensions folded: [rows, columns].
SoftmaxForward check(const SoftmaxQuery& query, const SoftmaxForward& tensors);
SoftmaxBackward check(const SoftmaxQuery& query, const SoftmaxBackward& tensors);

}  // namespace everglow::softmax
