// Chooses the row of a softmax, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "ops/explained.hpp"
#include "ops/softmax/check.hpp"
#include "ops/tables.hpp"
#include "plan/small_layers.hpp"

namespace everglow {

struct SoftmaxPlan::Impl {
  SoftmaxQuery query;
  Explanation explanation;
  const SoftmaxRow* row = nullptr;
  Footprint footprint;
};

SoftmaxPlan::SoftmaxPlan(const SoftmaxDescription& description, const SoftmaxSizes& sizes, const DeviceDescription& device,
                         const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  softmax::check(impl->query);
  const auto choice = choose("softmax", softmax_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = explain_choice("softmax", choice, impl->query, description.dtype);
  // Forward: x is read and y is written.
  const double bytes =
      2 * static_cast<double>(size_of(description.dtype)) * static_cast<double>(sizes.rows) * static_cast<double>(sizes.columns);
  plan::explain_stream(bytes, machine_of(impl->query, description.dtype, impl->explanation.kernel), impl->explanation);
  impl_ = std::move(impl);
}

const Explanation& SoftmaxPlan::explain() const noexcept { return impl_->explanation; }
std::size_t SoftmaxPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }

void SoftmaxPlan::forward(const SoftmaxForward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("softmax.forward", impl_->query.device, stream);
  const SoftmaxForward checked = softmax::check(impl_->query, tensors);
  require_workspace("softmax.forward", workspace, impl_->footprint.workspace);
  impl_->row->forward(impl_->query, checked, workspace.data, stream);
}

void SoftmaxPlan::backward(const SoftmaxBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("softmax.backward", impl_->query.device, stream);
  const SoftmaxBackward checked = softmax::check(impl_->query, tensors);
  require_workspace("softmax.backward", workspace, impl_->footprint.workspace);
  impl_->row->backward(impl_->query, checked, workspace.data, stream);
}

}  // namespace everglow
