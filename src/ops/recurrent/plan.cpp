// Chooses the row of a recurrent layer, explains the choice, and runs it on checked tensors. On a CPU a reserve opens with a
// header that backward checks; the row sees the memory behind it.
#include "core/check.hpp"
#include "core/philox.hpp"
#include "core/recurrent.hpp"
#include "ops/explained.hpp"
#include "ops/recurrent/check.hpp"
#include "ops/tables.hpp"
#include "plan/recurrent.hpp"

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

}  // namespace

struct RecurrentPlan::Impl {
  RecurrentQuery query;
  Explained explanation;
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
  if (choice.row != nullptr) impl->key = recurrent::packing_key(impl->query, choice.row->name);
  impl->explanation = Explained(explain_choice("recurrent", choice, impl->query, description.dtype));
  impl_ = std::move(impl);
}

const Explanation& RecurrentPlan::explain() const {
  return impl_->explanation.get([&](Explanation& out) {
    const RecurrentQuery& query = impl_->query;
    const plan::Machine machine = machine_of(query, query.description.dtype, out.kernel);
    plan::explain_recurrent(query.description, query.sizes, query.device.figures, machine, out);
    mark_products(machine, out);
  });
}
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
