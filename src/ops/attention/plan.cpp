// Chooses the row of an attention layer, explains the choice, and runs it on checked tensors.
#include "core/check.hpp"
#include "core/philox.hpp"
#include "ops/attention/check.hpp"
#include "ops/tables.hpp"

namespace everglow {

struct AttentionPlan::Impl {
  AttentionQuery query;
  Explanation explanation;
  const AttentionRow* row = nullptr;
  Footprint footprint;
};

namespace {

/// The products of one (batch, head), column-major: S = q kᵀ, o = P v, and the gradients with S computed again.
std::vector<ExplanationGemm> products(const AttentionQuery& query) {
  const AttentionDescription& d = query.description;
  const std::int64_t sq = query.sizes.queries, sk = query.sizes.keys;
  std::vector<ExplanationGemm> out = {{"forward", "qk", sk, sq, d.head_dim}, {"forward", "pv", d.value_dim, sq, sk}};
  if (!d.training) return out;
  out.push_back({"activation_gradient", "qk", sk, sq, d.head_dim});
  out.push_back({"activation_gradient", "dp", sk, sq, d.value_dim});
  out.push_back({"activation_gradient", "dv", d.value_dim, sk, sq});
  out.push_back({"activation_gradient", "dq", d.head_dim, sq, sk});
  out.push_back({"activation_gradient", "dk", d.head_dim, sk, sq});
  return out;
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionDescription& description, const AttentionSizes& sizes, const DeviceDescription& device,
                             const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  impl->query.description = attention::check(impl->query);
  const auto choice = choose("attention", attention_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->explanation = explain_choice("attention", choice, impl->query, description.dtype);
  impl->explanation.gemms = products(impl->query);
  impl_ = std::move(impl);
}

const Explanation& AttentionPlan::explain() const noexcept { return impl_->explanation; }
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
  const bool on_cpu = impl_->query.device.device.kind == DeviceKind::cpu;
  impl_->row->forward(impl_->query, on_cpu ? with_dropout_numbers(tensors) : tensors, workspace.data, stream);
}

void AttentionPlan::backward(const AttentionBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("attention.backward", impl_->query.device, stream);
  attention::check(impl_->query, tensors);
  require_workspace("attention.backward", workspace, impl_->footprint.workspace);
  const bool on_cpu = impl_->query.device.device.kind == DeviceKind::cpu;
  impl_->row->backward(impl_->query, on_cpu ? with_dropout_numbers(tensors) : tensors, workspace.data, stream);
}

}  // namespace everglow
