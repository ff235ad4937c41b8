// Chooses the row of an attention layer, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "core/philox.hpp"
#include "ops/attention/check.hpp"
#include "ops/explained.hpp"
#include "ops/tables.hpp"
#include "plan/attention.hpp"

namespace everglow {

struct AttentionPlan::Impl {
  AttentionQuery query;
  Explained explanation;
  const AttentionRow* row = nullptr;
  Footprint footprint;
};

AttentionPlan::AttentionPlan(const AttentionDescription& description, const AttentionSizes& sizes, const DeviceDescription& device,
                             const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  impl->query.description = attention::check(impl->query);
  const auto choice = choose("attention", attention_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = Explained(explain_choice("attention", choice, impl->query, description.dtype));
  impl_ = std::move(impl);
}

const Explanation& AttentionPlan::explain() const {
  return impl_->explanation.get([&](Explanation& out) {
    const AttentionQuery& query = impl_->query;
    const plan::Machine machine = machine_of(query, query.description.dtype, out.kernel);
    plan::explain_attention(query.description, query.sizes, query.device.figures, machine, out);
    mark_products(machine, out);
  });
}
std::size_t AttentionPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }

std::uint64_t AttentionPlan::dropout_counters() const noexcept {
  const AttentionQuery& query = impl_->query;
  if (query.description.dropout == 0) return 0;
  return dropout_counters_of(query.sizes.batch * query.description.heads * query.sizes.queries * query.sizes.keys);
}

void AttentionPlan::forward(const AttentionForward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("attention.forward", impl_->query.device, stream);
  attention::check(impl_->query, tensors);
  require_workspace("attention.forward", workspace, impl_->footprint.workspace);
  run_with_dropout_numbers(impl_->query.device.device, tensors,
                           [&](const AttentionForward& t) { impl_->row->forward(impl_->query, t, workspace.data, stream); });
}

void AttentionPlan::backward(const AttentionBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("attention.backward", impl_->query.device, stream);
  attention::check(impl_->query, tensors);
  require_workspace("attention.backward", workspace, impl_->footprint.workspace);
  run_with_dropout_numbers(impl_->query.device.device, tensors,
                           [&](const AttentionBackward& t) { impl_->row->backward(impl_->query, t, workspace.data, stream); });
}

}  // namespace everglow
