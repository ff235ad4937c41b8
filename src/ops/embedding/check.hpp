// Arguments of the embedding, checked before a row sees them.
#pragma once

#include "core/rows.hpp"

namespace everglow::embedding {

void check(const EmbeddingQuery& query);
/// Returns the tensors with leading dimensions folded: indices [n], y and dy [n, width].
EmbeddingForward check(const EmbeddingQuery& query, const EmbeddingForward& tensors);
EmbeddingBackward check(const EmbeddingQuery& query, const EmbeddingBackward& tensors);

}  // namespace everglow::embedding
