// Rows of a table by index, and the gradient of the table (repeated indices are summed in a fixed order).
#pragma once

#include <everglow/plan.hpp>

#include <memory>

namespace everglow {

struct EmbeddingDescription {
  std::int64_t vocabulary = 0;
  std::int64_t width = 0;
  DType dtype = DType::f32;         ///< of table, y and dy: f32, f16, bf16 or f64
  std::int64_t padding_index = -1;  ///< rows of this index get no gradient; -1: none
};
struct EmbeddingSizes {
  std::int64_t indices = 0;  ///< most that a run has, all dimensions of `indices` together
};
struct EmbeddingForward {
  ConstTensorView indices{};  // i32 or i64, any shape, 0 ... vocabulary-1
  ConstTensorView table{};    // [vocabulary, width], any row stride, last stride 1
  TensorView y{};             // indices' shape + [width], any strides that fold into rows, last stride 1
  TensorView status{};        // u32 [1] in an i32 view; a run only ORs into it (check_status)
};
struct EmbeddingBackward {
  ConstTensorView indices{};
  ConstTensorView dy{};  // as y
  TensorView dtable{};   // [vocabulary, width], f32 or dtype, last stride 1; written whole (0 where no index points), or added into
  bool accumulate = false;  // add to what dtable holds
  TensorView status{};
};

/// Plan of an embedding: y = table[indices], and dtable[v] = the sum of dy over the places of v, added in f32 (f64 for f64) in
/// a fixed order and rounded once. y must be apart from table and indices, dtable from dy and indices. On a CPU an index outside the
/// vocabulary throws before anything is written; on a GPU its row of y is 0, it has no gradient, and `status` gets status_indices.
class EVERGLOW_API EmbeddingPlan {
 public:
  EmbeddingPlan(const EmbeddingDescription& description, const EmbeddingSizes& sizes,
                const DeviceDescription& device = Device::cpu(), const PlanOptions& options = {});
  const Explanation& explain() const noexcept;
  std::size_t workspace_bytes() const noexcept;
  void forward(const EmbeddingForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void backward(const EmbeddingBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
