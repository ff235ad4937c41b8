// Chooses the row of a classifier loss, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "ops/loss/check.hpp"
#include "ops/tables.hpp"

namespace everglow {

struct LossPlan::Impl {
  LossQuery query;
  Explanation explanation;
  const LossRow* row = nullptr;
  Footprint footprint;
};

LossPlan::LossPlan(const LossDescription& description, const LossSizes& sizes, const DeviceDescription& device,
                   const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  loss::check(impl->query);
  const auto choice = choose("loss", loss_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = explain_choice("loss", choice, impl->query, description.dtype);
  const std::int64_t rows = sizes.rows, inputs = description.inputs, classes = description.classes;
  auto& gemms = impl->explanation.gemms;
  gemms.push_back({.pass = "forward", .name = "classifier", .m = classes, .n = rows, .k = inputs});
  if (description.training) {
    gemms.push_back({.pass = "activation_gradient", .name = "classifier", .m = inputs, .n = rows, .k = classes});
    gemms.push_back({.pass = "weight_gradient", .name = "classifier", .m = inputs, .n = classes, .k = rows});
  }
  impl_ = std::move(impl);
}

const Explanation& LossPlan::explain() const noexcept { return impl_->explanation; }
std::size_t LossPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }

void LossPlan::forward(const LossForward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("loss.forward", impl_->query.device, stream);
  const LossForward checked = loss::check(impl_->query, tensors);
  require_workspace("loss.forward", workspace, impl_->footprint.workspace);
  impl_->row->forward(impl_->query, checked, workspace.data, stream);
}

void LossPlan::forward_backward(const LossBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("loss.forward_backward", impl_->query.device, stream);
  const LossBackward checked = loss::check(impl_->query, tensors);
  require_workspace("loss.forward_backward", workspace, impl_->footprint.workspace);
  impl_->row->forward_backward(impl_->query, checked, workspace.data, stream);
}

}  // namespace everglow
