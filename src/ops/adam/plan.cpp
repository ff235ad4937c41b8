// Chooses the row of an optimiser step, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "ops/adam/check.hpp"
#include "ops/explained.hpp"
#include "ops/tables.hpp"
#include "plan/small_layers.hpp"

namespace everglow {

struct AdamPlan::Impl {
  AdamQuery query;
  Explanation explanation;
  const AdamRow* row = nullptr;
  Footprint footprint;
};

AdamPlan::AdamPlan(const AdamDescription& description, const AdamSizes& sizes, const DeviceDescription& device,
                   const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  adam::check(impl->query);
  const auto choice = choose("adam", adam_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = explain_choice("adam", choice, impl->query, DType::f32);
  // Parameter and both moments are read and written, the gradient is read; once more for its norm.
  const double bytes = 4 * (description.clip > 0 ? 8.0 : 7.0) * static_cast<double>(sizes.parameters);
  plan::explain_stream(bytes, machine_of(impl->query, DType::f32, impl->explanation.kernel), impl->explanation);
  impl_ = std::move(impl);
}

const Explanation& AdamPlan::explain() const noexcept { return impl_->explanation; }
std::size_t AdamPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }

void AdamPlan::step(const AdamStep& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("adam.step", impl_->query.device, stream);
  adam::check(impl_->query, tensors);
  require_workspace("adam.step", workspace, impl_->footprint.workspace);
  impl_->row->step(impl_->query, tensors, workspace.data, stream);
}

}  // namespace everglow
