// Arguments of the attention layer, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::attention {

/// Checks a description and its sizes; kv_heads, value_dim and scale come back with their defaults filled in.
AttentionDescription check(const AttentionQuery& query);
void check(const AttentionQuery& query, const AttentionForward& tensors);
void check(const AttentionQuery& query, const AttentionBackward& tensors);

}  // namespace everglow::attention
