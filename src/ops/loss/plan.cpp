// Chooses the row of a classifier loss, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "ops/explained.hpp"
#include "ops/loss/check.hpp"
#include "ops/tables.hpp"
#include "plan/small_layers.hpp"

namespace everglow {

struct LossPlan::Impl {
  LossQuery query;
  Explained explanation;
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
  impl->explanation = Explained(explain_choice("loss", choice, impl->query, description.dtype));
  impl_ = std::move(impl);
}

const Explanation& LossPlan::explain() const {
  return impl_->explanation.get([&](Explanation& out) {
    const LossQuery& query = impl_->query;
    const plan::Machine machine = machine_of(query, query.description.dtype, out.kernel);
    plan::explain_loss(query.description, query.sizes.rows, machine, out);
    mark_products(machine, out);
  });
}
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
