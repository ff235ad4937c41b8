// Chooses the row of a recurrent layer, explains the choice, and runs it on checked tensors. On a CPU a reserve opens with a
// header that backward checks; the row sees the memory behind it.
#include "core/check.hpp"
#include "core/philox.hpp"
#include "core/recurrent.hpp"
#include "ops/recurrent/check.hpp"
#include "ops/tables.hpp"

#include <cstring>
#include <utility>

namespace everglow {
namespace {

/// The first bytes of a reserve on a CPU: which row wrote it, for what run.
struct alignas(64) ReserveHeader {
  std::uint64_t magic = 0x6576677265736572;
  std::uint64_t key = 0;
  std::int64_t steps = 0, batch = 0;
  std::uint64_t has_h0 = 0, has_c0 = 0;
  std::uint64_t unused[2] = {0, 0};
};
static_assert(sizeof(ReserveHeader) == 64, "what stands behind the header stays on a cache line");

template <class Tensors>
ReserveHeader header_of(std::uint64_t key, const Tensors& t) {
  return {.key = key, .steps = t.x.size(0), .batch = t.x.size(1), .has_h0 = t.h0.given(), .has_c0 = t.c0.given()};
}

template <class View>
View behind_header(const View& reserve) {
  return reserve.narrow(0, sizeof(ReserveHeader), reserve.size(0) - static_cast<std::int64_t>(sizeof(ReserveHeader)));
}

void check_header(const ReserveHeader& expected, const ConstTensorView& reserve) {
  constexpr std::string_view where = "recurrent.backward";
  ReserveHeader came;
  std::memcpy(&came, reserve.data, sizeof came);
  require(came.magic == expected.magic && came.key == expected.key, ErrorCode::invalid_argument, where,
          "reserve: expected what forward of this layer and row wrote, got other bytes");
  require(came.steps == expected.steps && came.batch == expected.batch, ErrorCode::invalid_argument, where,
          "reserve: expected that of a forward run with ", expected.steps, " steps and ", expected.batch, " rows, got ", came.steps,
          " steps and ", came.batch, " rows");
  require(came.has_h0 == expected.has_h0 && came.has_c0 == expected.has_c0, ErrorCode::invalid_argument, where,
          "h0, c0: expected them given or not as in the forward run");
}

/// The products of one layer. Those of the recurrence are per step and direction; a reset before the product cuts a GRU's in two.
std::vector<ExplanationGemm> layer_gemms(const RecurrentQuery& query, std::int64_t inputs, const std::string& prefix) {
  const RecurrentDescription& d = query.description;
  const std::int64_t gates = recurrent::gate_count(d.cell) * d.hidden, all = d.directions() * gates;
  const std::int64_t state = recurrent::outputs_of(d), batch = query.sizes.batch, rows = query.sizes.steps * batch;
  const bool cut = d.cell == Cell::gru_reset_before;
  const std::int64_t first = cut ? gates - d.hidden : gates;
  std::vector<ExplanationGemm> out;
  const auto add = [&](const char* pass, const char* what, std::int64_t m, std::int64_t n, std::int64_t k) {
    out.push_back({pass, prefix + what, m, n, k});
  };
  add("forward", "input", all, rows, inputs);
  add("forward", "recurrent", first, batch, state);
  if (cut) add("forward", "candidate", d.hidden, batch, state);
  if (d.projection > 0) add("forward", "projection", d.projection, batch, d.hidden);
  if (!d.training) return out;
  if (d.projection > 0) add("activation_gradient", "projection", d.hidden, batch, d.projection);
  if (cut) add("activation_gradient", "candidate", state, batch, d.hidden);
  add("activation_gradient", "recurrent", state, batch, first);
  add("activation_gradient", "input", inputs, rows, all);
  add("weight_gradient", "input", inputs, all, rows);
  add("weight_gradient", "recurrent", state, first, rows);
  if (cut) add("weight_gradient", "candidate", state, d.hidden, rows);
  if (d.projection > 0) add("weight_gradient", "projection", d.hidden, d.projection, rows);
  return out;
}

std::vector<ExplanationGemm> gemms(const RecurrentQuery& query) {
  const RecurrentDescription& d = query.description;
  if (d.layers == 1) return layer_gemms(query, d.inputs, "");
  std::vector<ExplanationGemm> out;
  for (std::int64_t layer = 0; layer < d.layers; ++layer) {
    const std::int64_t inputs = layer == 0 ? d.inputs : d.directions() * recurrent::outputs_of(d);
    for (auto& product : layer_gemms(query, inputs, text("layer ", layer, ' '))) out.push_back(std::move(product));
  }
  return out;
}

}  // namespace

struct RecurrentPlan::Impl {
  RecurrentQuery query;
  Explanation explanation;
  const RecurrentRow* row = nullptr;
  Footprint footprint;
  std::uint64_t key = 0;

  bool on_cpu() const { return query.device.device.kind == DeviceKind::cpu; }
  recurrent::Contract contract() const { return {query, row->name, footprint, key}; }
};

RecurrentPlan::RecurrentPlan(const RecurrentDescription& description, const RecurrentSizes& sizes, const DeviceDescription& device,
                             const PlanOptions& options) {
  auto impl =
      std::make_shared<Impl>(Impl{.query = make_query(description, sizes, device, options), .explanation = {}, .footprint = {}});
  recurrent::check(impl->query);
  const auto choice = choose("recurrent", recurrent_table(device.device.kind), impl->query);
  impl->row = choice.row;
  impl->footprint = footprint_of(choice, impl->query);
  if (impl->on_cpu() && description.training) impl->footprint.reserve += sizeof(ReserveHeader);
  impl->key = recurrent::packing_key(impl->query, choice.row->name);
  impl->explanation = explain_choice("recurrent", choice, impl->query, description.dtype);
  impl->explanation.gemms = gemms(impl->query);
  impl_ = std::move(impl);
}

const Explanation& RecurrentPlan::explain() const noexcept { return impl_->explanation; }
std::size_t RecurrentPlan::workspace_bytes() const noexcept { return impl_->footprint.workspace; }
std::size_t RecurrentPlan::reserve_bytes() const noexcept { return impl_->footprint.reserve; }
std::size_t RecurrentPlan::packed_bytes() const noexcept { return impl_->footprint.packed; }

std::uint64_t RecurrentPlan::dropout_counters() const noexcept {
  const RecurrentDescription& d = impl_->query.description;
  if (d.dropout == 0) return 0;
  const RecurrentSizes& sizes = impl_->query.sizes;
  return dropout_counters_of(d.layers * sizes.steps * sizes.batch * d.directions() * recurrent::outputs_of(d));
}

void RecurrentPlan::pack(std::span<const RecurrentWeights> weights, PackedWeights& packed, const Stream& stream) const {
  require_runnable("recurrent.pack", impl_->query.device, stream);
  recurrent::check_pack(impl_->contract(), weights, packed);
  impl_->row->pack(impl_->query, weights, packed.bytes.data, stream);
  packed.key = impl_->key;
}

void RecurrentPlan::forward(const RecurrentForward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("recurrent.forward", impl_->query.device, stream);
  recurrent::check(impl_->contract(), tensors);
  require_workspace("recurrent.forward", workspace, impl_->footprint.workspace);
  RecurrentForward inner = impl_->on_cpu() ? with_dropout_numbers(tensors) : tensors;
  if (impl_->on_cpu() && tensors.reserve.given()) {
    const ReserveHeader header = header_of(impl_->key, tensors);
    std::memcpy(tensors.reserve.data, &header, sizeof header);
    inner.reserve = behind_header(tensors.reserve);
  }
  impl_->row->forward(impl_->query, inner, workspace.data, stream);
}

void RecurrentPlan::backward(const RecurrentBackward& tensors, const Workspace& workspace, const Stream& stream) const {
  require_runnable("recurrent.backward", impl_->query.device, stream);
  recurrent::check(impl_->contract(), tensors);
  require_workspace("recurrent.backward", workspace, impl_->footprint.workspace);
  RecurrentBackward inner = impl_->on_cpu() ? with_dropout_numbers(tensors) : tensors;
  if (impl_->on_cpu()) {
    check_header(header_of(impl_->key, tensors), tensors.reserve);
    inner.reserve = behind_header(tensors.reserve);
  }
  impl_->row->backward(impl_->query, inner, workspace.data, stream);
}

}  // namespace everglow
