// Chooses the row of an elementwise operation, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "core/philox.hpp"
#include "ops/explained.hpp"
#include "ops/pointwise/check.hpp"
#include "ops/tables.hpp"
#include "plan/small_layers.hpp"

namespace everglow {

struct PointwisePlan::Impl {
  PointwiseQuery query;
  Explanation explanation;
  const PointwiseRow* row = nullptr;
  Footprint footprint;
};

PointwisePlan::PointwisePlan(const PointwiseDescription& description, const PointwiseSizes& sizes, const DeviceDescription& device,
                             const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  pointwise::check(impl->query);
  const auto choice = choose("pointwise", pointwise_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = explain_choice("pointwise", choice, impl->query, description.dtype);
  // Two tensors are read at most, one is written.
  const double bytes = 3 * static_cast<double>(size_of(description.dtype)) * static_cast<double>(sizes.elements);
  plan::explain_stream(bytes, machine_of(impl->query, description.dtype, impl->explanation.kernel), impl->explanation);
  impl_ = std::move(impl);
}

const Explanation& PointwisePlan::explain() const noexcept { return impl_->explanation; }
std::size_t PointwisePlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }

std::uint64_t PointwisePlan::dropout_counters() const noexcept {
  return impl_->query.description.operation == Pointwise::dropout ? dropout_counters_of(impl_->query.sizes.elements) : 0;
}

void PointwisePlan::run(const PointwiseRun& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("pointwise.run", impl_->query.device, stream);
  pointwise::check(impl_->query, tensors);
  require_workspace("pointwise.run", workspace, impl_->footprint.workspace);
  run_with_dropout_numbers(impl_->query.device.device, tensors,
                           [&](const PointwiseRun& t) { impl_->row->run(impl_->query, t, workspace.data, stream); });
}

}  // namespace everglow
