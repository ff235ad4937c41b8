// Chooses the row of an embedding, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "ops/embedding/check.hpp"
#include "ops/explained.hpp"
#include "ops/tables.hpp"
#include "plan/small_layers.hpp"

namespace everglow {

struct EmbeddingPlan::Impl {
  EmbeddingQuery query;
  Explanation explanation;
  const EmbeddingRow* row = nullptr;
  Footprint footprint;
};

EmbeddingPlan::EmbeddingPlan(const EmbeddingDescription& description, const EmbeddingSizes& sizes, const DeviceDescription& device,
                             const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  embedding::check(impl->query);
  const auto choice = choose("embedding", embedding_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = explain_choice("embedding", choice, impl->query, description.dtype);
  // Forward: a row of the table is read and written for each index.
  const double bytes = 2 * static_cast<double>(size_of(description.dtype)) * static_cast<double>(sizes.indices) *
                       static_cast<double>(description.width);
  plan::explain_stream(bytes, machine_of(impl->query, description.dtype, impl->explanation.kernel), impl->explanation);
  impl_ = std::move(impl);
}

const Explanation& EmbeddingPlan::explain() const noexcept { return impl_->explanation; }
std::size_t EmbeddingPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }

void EmbeddingPlan::forward(const EmbeddingForward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("embedding.forward", impl_->query.device, stream);
  const EmbeddingForward checked = embedding::check(impl_->query, tensors);
  require_workspace("embedding.forward", workspace, impl_->footprint.workspace);
  impl_->row->forward(impl_->query, checked, workspace.data, stream);
}

void EmbeddingPlan::backward(const EmbeddingBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("embedding.backward", impl_->query.device, stream);
  const EmbeddingBackward checked = embedding::check(impl_->query, tensors);
  require_workspace("embedding.backward", workspace, impl_->footprint.workspace);
  impl_->row->backward(impl_->query, checked, workspace.data, stream);
}

}  // namespace everglow
