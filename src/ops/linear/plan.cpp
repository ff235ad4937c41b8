// Chooses the row of a linear layer, explains the choice and its products, packs weights, and runs the row on checked tensors.
#include "core/check.hpp"
#include "core/hash.hpp"
#include "ops/explained.hpp"
#include "ops/linear/check.hpp"
#include "ops/tables.hpp"
#include "plan/linear.hpp"

#include <algorithm>
#include <functional>

namespace everglow {

struct LinearPlan::Impl {
  LinearQuery query;
  Explained explanation;
  const LinearRow* row = nullptr;
  Footprint footprint;
  linear::Packing packing;

  int tuned(const std::function<void()>& run) const {
    if (row != nullptr && row->tune != nullptr) return row->tune(run);
    run();
    return 0;
  }
};

namespace {

/// Of a text that holds everything the packed form depends on.
std::uint64_t packing_key(const LinearQuery& query, std::string_view row) {
  const auto& d = query.description;
  return hash_of(text("linear ", d.inputs, ' ', d.outputs, ' ', name(d.dtype), ' ', static_cast<int>(d.layout), ' ',
                      static_cast<int>(d.activation), ' ', d.training, ' ', query.device.name, ' ', name(query.isa), ' ', row));
}

}  // namespace

LinearPlan::LinearPlan(const LinearDescription& description, const LinearSizes& sizes, const DeviceDescription& device,
                       const PlanOptions& options) {
  auto impl = std::make_shared<Impl>(
      Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}, .packing = {}});
  linear::check(impl->query);
  const auto choice = choose("linear", linear_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  impl->packing = {impl->footprint.packed, choice.row ? packing_key(impl->query, choice.row->name) : 0};
  impl->explanation = Explained(explain_choice("linear", choice, impl->query, description.dtype));
  impl_ = std::move(impl);
}

const Explanation& LinearPlan::explain() const {
  return impl_->explanation.get([&](Explanation& out) {
    const LinearQuery& query = impl_->query;
    const plan::Machine machine = machine_of(query, query.description.dtype, out.kernel);
    plan::explain_linear(query.description, query.sizes.batch, machine, out);
    mark_products(machine, out);
    if (impl_->row != nullptr && impl_->row->explain != nullptr) impl_->row->explain(query, out);
  });
}
std::size_t LinearPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }
std::size_t LinearPlan::packed_bytes() const noexcept { return impl_->footprint.packed; }

std::int64_t LinearPlan::preferred_stride(std::int64_t columns) const noexcept {
  constexpr std::int64_t line = 64, page_part = 2048;  // bytes
  const auto size = static_cast<std::int64_t>(size_of(impl_->query.description.dtype));
  std::int64_t bytes = (std::max<std::int64_t>(columns, 0) * size + line - 1) / line * line;
  // Rows a multiple of 2 KiB apart fall into the same few sets of an L1 cache, where a column of a tile would evict itself.
  if (impl_->query.device.device.kind == DeviceKind::cpu && bytes > 0 && bytes % page_part == 0) bytes += line;
  return bytes / size;
}

void LinearPlan::pack(const ConstTensorView& weight, PackedWeights& packed, const Stream& stream) const {
  require_runnable("linear.pack", impl_->query.device, stream);
  linear::check(impl_->query, weight, packed, impl_->packing);
  impl_->row->pack(impl_->query, weight, packed.bytes.data, stream);
  packed.key = impl_->packing.key;
}

void LinearPlan::prepare(const LinearSizes& sizes) const {
  require_runnable("linear.prepare", impl_->query.device, {impl_->query.device.device});
  linear::check(impl_->query, sizes);
  if (impl_->row->prepare != nullptr) impl_->row->prepare(impl_->query, sizes);
}

int LinearPlan::tune(const LinearForward& tensors, const Workspace& workspace, const Stream& stream) const {
  return impl_->tuned([&] { forward(tensors, workspace, stream); });
}

int LinearPlan::tune(const LinearBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  return impl_->tuned([&] { backward(tensors, workspace, stream); });
}

void LinearPlan::forward(const LinearForward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("linear.forward", impl_->query.device, stream);
  const LinearForward checked = linear::check(impl_->query, tensors, impl_->packing);
  require_workspace("linear.forward", workspace, impl_->footprint.workspace);
  impl_->row->forward(impl_->query, checked, workspace.data, stream);
}

void LinearPlan::backward(const LinearBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("linear.backward", impl_->query.device, stream);
  const LinearBackward checked = linear::check(impl_->query, tensors, impl_->packing);
  require_workspace("linear.backward", workspace, impl_->footprint.workspace);
  impl_->row->backward(impl_->query, checked, workspace.data, stream);
}

}  // namespace everglow
