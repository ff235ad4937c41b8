// Placements: blocks of host memory and their copies.
#include "cases/proof/placement.hpp"

#include <stdexcept>

namespace everglow::proof {
namespace {

/// Bytes as a tensor.
TensorView bytes_at(std::uintptr_t address, std::size_t bytes, Device device) {
  return {reinterpret_cast<void*>(address), DType::u8, {static_cast<std::int64_t>(bytes)}, device};
}

/// What the passes of a layer share.
template <class Tensors>
void place_common(Placement& place, Tensors& t) {
  t.q = place(t.q), t.k = place(t.k), t.v = place(t.v), t.o = place(t.o), t.lse = place(t.lse);
  t.query_lengths = place(t.query_lengths), t.key_lengths = place(t.key_lengths);
  t.cu_queries = place(t.cu_queries), t.cu_keys = place(t.cu_keys);
  t.alibi_slopes = place(t.alibi_slopes), t.bias = place(t.bias);
  t.dropout_state = place(t.dropout_state), t.status = place(t.status);
}

}  // namespace

Placement::Block& Placement::block_of(const void* data) {
  const HostBlock host = host_block_of(data);
  if (host.memory == nullptr) throw std::logic_error("a placement knows only the memory of HostTensor and Scratch");
  const auto [entry, added] = blocks_.try_emplace(host.memory);
  Block& block = entry->second;
  if (!added) return block;
  constexpr std::uintptr_t line = 256;
  block.memory = Buffer(host.bytes + line, device_);
  block.address = reinterpret_cast<std::uintptr_t>(block.memory.data()) + reinterpret_cast<std::uintptr_t>(host.memory) % line;
  block.host = host.memory, block.bytes = host.bytes;
  copy(bytes_at(block.address, block.bytes, device_), TensorView(block.host, DType::u8, {static_cast<std::int64_t>(block.bytes)}),
       stream());
  return block;
}

template <class Void>
BasicTensorView<Void> Placement::moved(BasicTensorView<Void> view, bool written) {
  if (device_.kind == DeviceKind::cpu || !view.given()) return view;
  Block& block = block_of(view.data);
  block.written = block.written || written;
  const auto offset = reinterpret_cast<std::uintptr_t>(view.data) - reinterpret_cast<std::uintptr_t>(block.host);
  view.data = reinterpret_cast<Void*>(block.address + offset);
  view.device = device_;
  return view;
}

ConstTensorView Placement::operator()(const ConstTensorView& view) { return moved(view, false); }
TensorView Placement::operator()(const TensorView& view) { return moved(view, true); }

Workspace Placement::operator()(const Scratch& scratch) {
  const TensorView bytes(scratch.data(), DType::u8, {static_cast<std::int64_t>(scratch.bytes())});
  return {moved(bytes, true).data, scratch.bytes()};
}

const PackedWeights* Placement::operator()(const PackedWeights* packed) {
  if (packed == nullptr || device_.kind == DeviceKind::cpu) return packed;
  packed_.push_back({.bytes = moved(packed->bytes, false), .key = packed->key});
  return &packed_.back();
}

std::span<const RecurrentWeights> Placement::operator()(std::span<const RecurrentWeights> weights) {
  auto& there = weights_.emplace_back();
  for (const RecurrentWeights& w : weights)
    there.push_back({moved(w.w_ih, false), moved(w.w_hh, false), moved(w.b_ih, false), moved(w.b_hh, false), moved(w.w_hr, false)});
  return there;
}

std::span<const RecurrentWeightGradients> Placement::operator()(std::span<const RecurrentWeightGradients> gradients) {
  auto& there = gradients_.emplace_back();
  for (const RecurrentWeightGradients& w : gradients)
    there.push_back({moved(w.w_ih, true), moved(w.w_hh, true), moved(w.b_ih, true), moved(w.b_hh, true), moved(w.w_hr, true)});
  return there;
}

std::span<const AdamTensor> Placement::operator()(std::span<const AdamTensor> tensors) {
  std::vector<AdamTensor>& list = lists_.emplace_back(tensors.begin(), tensors.end());
  for (AdamTensor& t : list)
    t = {.parameter = (*this)(t.parameter),
         .gradient = (*this)(t.gradient),
         .m = (*this)(t.m),
         .v = (*this)(t.v),
         .copy = (*this)(t.copy)};
  return list;
}

void Placement::finish() {
  stream().synchronize();
  for (const auto& [_, block] : blocks_)
    if (block.written)
      copy(TensorView(block.host, DType::u8, {static_cast<std::int64_t>(block.bytes)}),
           bytes_at(block.address, block.bytes, device_), stream());
  stream().synchronize();
}

AdamStep placed(Placement& place, const AdamStep& t) {
  return {.tensors = place(t.tensors),
          .step = place(t.step),
          .rate = place(t.rate),
          .scale = place(t.scale),
          .norm = place(t.norm),
          .overflow = place(t.overflow),
          .scaler = place(t.scaler)};
}
AttentionForward placed(Placement& place, const AttentionForward& tensors) {
  AttentionForward t = tensors;
  place_common(place, t);
  return t;
}
AttentionBackward placed(Placement& place, const AttentionBackward& tensors) {
  AttentionBackward t = tensors;
  place_common(place, t);
  t.d_o = place(t.d_o), t.dlse = place(t.dlse);
  t.dq = place(t.dq), t.dk = place(t.dk), t.dv = place(t.dv), t.dbias = place(t.dbias);
  return t;
}
EmbeddingForward placed(Placement& place, const EmbeddingForward& t) {
  return {.indices = place(t.indices), .table = place(t.table), .y = place(t.y), .status = place(t.status)};
}
EmbeddingBackward placed(Placement& place, const EmbeddingBackward& t) {
  return {.indices = place(t.indices),
          .dy = place(t.dy),
          .dtable = place(t.dtable),
          .accumulate = t.accumulate,
          .status = place(t.status)};
}
LinearForward placed(Placement& place, const LinearForward& t) {
  return {.x = place(t.x),
          .weight = place(t.weight),
          .bias = place(t.bias),
          .y = place(t.y),
          .preactivation = place(t.preactivation),
          .packed = place(t.packed)};
}
LinearBackward placed(Placement& place, const LinearBackward& t) {
  return {.dy = place(t.dy),
          .x = place(t.x),
          .weight = place(t.weight),
          .preactivation = place(t.preactivation),
          .dx = place(t.dx),
          .dweight = place(t.dweight),
          .dbias = place(t.dbias),
          .packed = place(t.packed),
          .accumulate = t.accumulate};
}
LossForward placed(Placement& place, const LossForward& t) {
  return {.x = place(t.x),
          .weight = place(t.weight),
          .bias = place(t.bias),
          .targets = place(t.targets),
          .loss = place(t.loss),
          .count = place(t.count),
          .status = place(t.status)};
}
LossBackward placed(Placement& place, const LossBackward& t) {
  return {.forward = placed(place, t.forward),
          .scale = place(t.scale),
          .divide_by_count = t.divide_by_count,
          .dx = place(t.dx),
          .dweight = place(t.dweight),
          .dbias = place(t.dbias),
          .accumulate = t.accumulate};
}
PointwiseRun placed(Placement& place, const PointwiseRun& tensors) {
  PointwiseRun t = tensors;
  t.a = place(t.a), t.b = place(t.b), t.y = place(t.y), t.dropout_state = place(t.dropout_state);
  return t;
}
RecurrentForward placed(Placement& place, const RecurrentForward& tensors) {
  RecurrentForward t = tensors;
  t.x = place(t.x), t.h0 = place(t.h0), t.c0 = place(t.c0), t.weights = place(t.weights);
  t.y = place(t.y), t.hn = place(t.hn), t.cn = place(t.cn), t.reserve = place(t.reserve);
  t.lengths = place(t.lengths), t.resets = place(t.resets), t.packed = place(t.packed);
  t.dropout_state = place(t.dropout_state), t.status = place(t.status);
  return t;
}
RecurrentBackward placed(Placement& place, const RecurrentBackward& tensors) {
  RecurrentBackward t = tensors;
  t.x = place(t.x), t.h0 = place(t.h0), t.c0 = place(t.c0), t.weights = place(t.weights);
  t.y = place(t.y), t.reserve = place(t.reserve), t.lengths = place(t.lengths), t.resets = place(t.resets);
  t.dy = place(t.dy), t.dhn = place(t.dhn), t.dcn = place(t.dcn);
  t.dx = place(t.dx), t.dh0 = place(t.dh0), t.dc0 = place(t.dc0), t.dweights = place(t.dweights);
  t.packed = place(t.packed), t.dropout_state = place(t.dropout_state), t.status = place(t.status);
  return t;
}
SoftmaxForward placed(Placement& place, const SoftmaxForward& t) { return {.x = place(t.x), .y = place(t.y)}; }
SoftmaxBackward placed(Placement& place, const SoftmaxBackward& t) {
  return {.y = place(t.y), .dy = place(t.dy), .dx = place(t.dx)};
}

}  // namespace everglow::proof
