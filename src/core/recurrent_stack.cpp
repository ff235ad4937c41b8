// The memory of a stack and its runs. Reserve: that of each layer, then the sequences between layers (before dropout). Packed
// weights: those of each layer. Workspace: what the largest layer needs, then up to three sequences. Offsets are of the plan's
// sizes, so that forward and backward find the same places whatever a run brings.
#include "core/recurrent_stack.hpp"

#include "core/arena.hpp"
#include "core/recurrent.hpp"

#include <algorithm>

namespace everglow::recurrent {
namespace {

std::size_t on_cache_lines(std::size_t bytes) { return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment; }

std::byte* behind(void* start, std::size_t bytes) { return start == nullptr ? nullptr : static_cast<std::byte*>(start) + bytes; }

struct Stack {
  const LayerRow& row;
  const RecurrentQuery& q;
  RecurrentQuery lowest, higher;  // of the first layer and of each other
  Footprint first, other;

  Stack(const LayerRow& layer_row, const RecurrentQuery& query) : row(layer_row), q(query), lowest(query), higher(query) {
    lowest.description.layers = higher.description.layers = 1;
    lowest.description.dropout = higher.description.dropout = 0;
    higher.description.inputs = width();
    first = row.footprint(lowest), other = row.footprint(higher);
    for (Footprint* f : {&first, &other})
      for (std::size_t* bytes : {&f->workspace, &f->reserve, &f->packed}) *bytes = on_cache_lines(*bytes);
  }

  std::int64_t layers() const { return q.description.layers; }
  std::int64_t directions() const { return q.description.directions(); }
  std::int64_t width() const { return directions() * outputs_of(q.description); }
  bool drops() const { return q.description.dropout > 0; }
  const RecurrentQuery& query(std::int64_t layer) const { return layer == 0 ? lowest : higher; }
  /// Where a layer's part of something lies that each layer has.
  std::size_t place(std::size_t Footprint::*what, std::int64_t layer) const {
    return layer == 0 ? 0 : first.*what + static_cast<std::size_t>(layer - 1) * (other.*what);
  }
  std::size_t sequence_bytes() const {
    return on_cache_lines(static_cast<std::size_t>(q.sizes.steps * q.sizes.batch * width()) * size_of(q.description.dtype));
  }
  std::size_t scratch_bytes() const { return std::max(first.workspace, other.workspace); }

  /// The i-th sequence of the workspace, for a run whose input is x.
  TensorView room(void* workspace, std::size_t i, const ConstTensorView& x) const {
    return {behind(workspace, scratch_bytes() + i * sequence_bytes()), q.description.dtype, {x.size(0), x.size(1), width()}};
  }
  /// The output of a layer below the last, as the reserve keeps it.
  TensorView kept(void* reserve, std::int64_t layer, const ConstTensorView& x) const {
    const std::size_t start = place(&Footprint::reserve, layers());
    return {behind(reserve, start + static_cast<std::size_t>(layer) * sequence_bytes()),
            q.description.dtype,
            {x.size(0), x.size(1), width()}};
  }
  /// What a layer sees of h0, hn and their like.
  template <class View>
  View states(const View& all, std::int64_t layer) const {
    return all.given() ? all.narrow(0, layer * directions(), directions()) : all;
  }
  template <class T>
  std::span<T> parts(std::span<T> all, std::int64_t layer) const {
    if (all.empty()) return all;
    return all.subspan(static_cast<std::size_t>(layer * directions()), static_cast<std::size_t>(directions()));
  }
  PackedWeights packed(const PackedWeights* all, std::int64_t layer) const {
    if (all == nullptr) return {};
    return {TensorView(behind(all->bytes.data, place(&Footprint::packed, layer)), DType::u8,
                       {static_cast<std::int64_t>((layer == 0 ? first : other).packed)}),
            all->key};
  }
  template <class View>
  View reserve(const View& all, std::int64_t layer) const {
    if (!all.given()) return all;
    return all.narrow(0, static_cast<std::int64_t>(place(&Footprint::reserve, layer)),
                      static_cast<std::int64_t>((layer == 0 ? first : other).reserve));
  }
  /// The mask of what a layer puts out.
  template <class Tensors>
  Mask mask(const Tensors& t, std::int64_t layer) const {
    return {.probability = q.description.dropout,
            .seed = t.dropout_seed,
            .offset = t.dropout_offset,
            .first = static_cast<std::uint64_t>(layer * t.x.size(0) * t.x.size(1) * width()),
            .state = t.dropout_state};
  }
};

}  // namespace

Footprint stack_footprint(const LayerRow& row, const RecurrentQuery& q) {
  if (q.description.layers == 1) return row.footprint(q);
  const Stack stack(row, q);
  const auto between = static_cast<std::size_t>(q.description.layers - 1);
  return {stack.scratch_bytes() + (q.description.training ? 3 : 2) * stack.sequence_bytes(),
          q.description.training ? stack.place(&Footprint::reserve, stack.layers()) + between * stack.sequence_bytes() : 0,
          stack.place(&Footprint::packed, stack.layers())};
}

void stack_forward(const LayerRow& row, const RecurrentQuery& q, const RecurrentForward& t, void* workspace, const Stream& stream) {
  if (q.description.layers == 1) return row.forward(q, t, workspace, stream);
  const Stack stack(row, q);
  ConstTensorView input = t.x;
  for (std::int64_t layer = 0; layer < stack.layers(); ++layer) {
    const bool last = layer + 1 == stack.layers();
    RecurrentForward one = t;
    one.x = input;
    one.h0 = stack.states(t.h0, layer), one.c0 = stack.states(t.c0, layer);
    one.hn = stack.states(t.hn, layer), one.cn = stack.states(t.cn, layer);
    one.weights = stack.parts(t.weights, layer);
    const PackedWeights packed = stack.packed(t.packed, layer);
    if (t.packed != nullptr) one.packed = &packed;
    one.reserve = stack.reserve(t.reserve, layer);
    if (!last)
      one.y = q.description.training ? stack.kept(t.reserve.data, layer, t.x)
                                     : stack.room(workspace, static_cast<std::size_t>(layer % 2), t.x);
    row.forward(stack.query(layer), one, workspace, stream);
    input = one.y;
    if (last || !stack.drops()) continue;
    const TensorView dropped = q.description.training ? stack.room(workspace, 0, t.x) : one.y;
    row.drop(q, stack.mask(t, layer), one.y, dropped, stream);
    input = dropped;
  }
}

void stack_backward(const LayerRow& row, const RecurrentQuery& q, const RecurrentBackward& t, void* workspace,
                    const Stream& stream) {
  if (q.description.layers == 1) return row.backward(q, t, workspace, stream);
  const Stack stack(row, q);
  void* reserve = const_cast<void*>(t.reserve.data);  // only read
  ConstTensorView incoming = t.dy, output = t.y;
  for (std::int64_t layer = stack.layers() - 1; layer >= 0; --layer) {
    RecurrentBackward one = t;
    one.y = output;
    one.dy = incoming;
    one.h0 = stack.states(t.h0, layer), one.c0 = stack.states(t.c0, layer);
    one.dhn = stack.states(t.dhn, layer), one.dcn = stack.states(t.dcn, layer);
    one.dh0 = stack.states(t.dh0, layer), one.dc0 = stack.states(t.dc0, layer);
    one.weights = stack.parts(t.weights, layer);
    one.dweights = stack.parts(t.dweights, layer);
    const PackedWeights packed = stack.packed(t.packed, layer);
    if (t.packed != nullptr) one.packed = &packed;
    one.reserve = stack.reserve(t.reserve, layer);
    if (layer > 0) {
      one.dx = stack.room(workspace, static_cast<std::size_t>(layer % 2), t.x);
      output = stack.kept(reserve, layer - 1, t.x);
      one.x = output;
      if (stack.drops()) {
        const TensorView dropped = stack.room(workspace, 2, t.x);
        row.drop(q, stack.mask(t, layer - 1), output, dropped, stream);
        one.x = dropped;
      }
    }
    row.backward(stack.query(layer), one, workspace, stream);
    if (layer > 0 && stack.drops()) row.drop(q, stack.mask(t, layer - 1), one.dx, one.dx, stream);
    incoming = one.dx;
  }
}

void stack_pack(const LayerRow& row, const RecurrentQuery& q, std::span<const RecurrentWeights> weights, void* packed,
                const Stream& stream) {
  if (q.description.layers == 1) return row.pack(q, weights, packed, stream);
  const Stack stack(row, q);
  for (std::int64_t layer = 0; layer < stack.layers(); ++layer)
    row.pack(stack.query(layer), stack.parts(weights, layer), behind(packed, stack.place(&Footprint::packed, layer)), stream);
}

}  // namespace everglow::recurrent
