// Arguments of the recurrent layer.
#include "ops/recurrent/check.hpp"

#include "core/check.hpp"
#include "core/hash.hpp"
#include "core/recurrent.hpp"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

namespace everglow::recurrent {

void check(const RecurrentQuery& query) {
  constexpr std::string_view where = "recurrent.plan";
  const RecurrentDescription& d = query.description;
  const auto at_least = [&](std::string_view argument, std::int64_t value, std::int64_t least) {
    require(value >= least, ErrorCode::invalid_argument, where, argument, ": expected ", least, " or more, got ", value);
  };
  require(d.dtype <= DType::f64, ErrorCode::type_mismatch, where, "dtype: expected f32, f16, bf16 or f64, got ", name(d.dtype));
  at_least("inputs", d.inputs, 0);
  at_least("hidden", d.hidden, 0);
  at_least("layers", d.layers, 1);
  at_least("projection", d.projection, 0);
  at_least("steps", query.sizes.steps, 0);
  at_least("batch", query.sizes.batch, 0);
  require_countable(where, "layers", {d.layers, 8});
  const std::int64_t gates = 4 * d.layers * d.directions();
  require_countable(where, "gates x hidden x inputs", {gates, d.hidden, std::max(d.inputs, d.hidden)});
  require_countable(where, "steps x batch x inputs", {query.sizes.steps, query.sizes.batch, d.inputs});
  require_countable(where, "steps x batch x gates x hidden", {query.sizes.steps, query.sizes.batch, gates, d.hidden});
  require_countable(where, "gates x hidden x projection", {gates, d.hidden, d.projection});
  require_countable(where, "steps x batch x layers x projection",
                    {query.sizes.steps, query.sizes.batch, 2 * d.layers, d.projection});
  require(d.cell <= Cell::relu, ErrorCode::invalid_argument, where,
          "cell: expected lstm, gru, gru_reset_before, tanh or relu, got ", static_cast<int>(d.cell));
  require(d.dropout >= 0 && d.dropout < 1, ErrorCode::invalid_argument, where, "dropout: expected 0 <= dropout < 1, got ",
          d.dropout);
  require(d.projection == 0 || d.cell == Cell::lstm, ErrorCode::invalid_argument, where,
          "projection: expected 0 for a cell other than lstm, got ", d.projection);
}

namespace {

/// The checks of one run; collects inputs and outputs on the way.
class Checker {
 public:
  Checker(std::string_view where, const Contract& contract)
      : where_(where), contract_(contract), d_(contract.query.description), device_(contract.query.device.device) {}

  std::int64_t directions() const { return d_.directions(); }
  std::int64_t parts() const { return d_.layers * directions(); }
  std::int64_t outputs() const { return outputs_of(d_); }
  std::int64_t steps() const { return steps_; }
  std::int64_t batch() const { return batch_; }

  void x(const ConstTensorView& x) {
    require_tensor(where_, "x", x, {-1, -1, d_.inputs}, d_.dtype, device_);
    const RecurrentSizes& most = contract_.query.sizes;
    require(x.size(0) <= most.steps, ErrorCode::invalid_argument, where_, "x: expected at most ", most.steps, " steps, got ",
            x.size(0));
    require(x.size(1) <= most.batch, ErrorCode::invalid_argument, where_, "x: expected at most ", most.batch, " rows, got ",
            x.size(1));
    steps_ = x.size(0), batch_ = x.size(1);
    input("x", x, {steps_, batch_, d_.inputs});
  }

  /// Null where not given and `needed` is false.
  void input(std::string argument, const ConstTensorView& view, std::initializer_list<std::int64_t> shape, bool needed = true) {
    if (!view.given() && !needed) return;
    require_tensor(where_, argument, view, shape, d_.dtype, device_);
    require_unit_stride(where_, argument, view);
    inputs_.push_back(named(std::move(argument), view));
  }

  void output(std::string argument, const ConstTensorView& view, std::initializer_list<std::int64_t> shape, bool needed = false) {
    if (!view.given() && !needed) return;
    require_tensor(where_, argument, view, shape, d_.dtype, device_);
    written(std::move(argument), view);
  }

  void gradient(std::string argument, const ConstTensorView& view, std::initializer_list<std::int64_t> shape) {
    if (!view.given()) return;
    require_gradient(where_, argument, view, shape, d_.dtype, device_);
    written(std::move(argument), view);
  }

  /// The LSTM's cell state or its gradient, f32 or the storage type.
  void cell_state(std::string argument, const ConstTensorView& view, bool is_output) {
    require(d_.cell == Cell::lstm || !view.given(), ErrorCode::invalid_argument, where_, argument,
            ": expected none for a cell other than lstm, got ", to_string(view));
    if (!view.given()) return;
    require_f32_or_storage(where_, argument, view, {parts(), batch_, d_.hidden}, d_.dtype, device_);
    require_unit_stride(where_, argument, view);
    (is_output ? outputs_ : inputs_).push_back(named(std::move(argument), view));
  }

  void written(std::string argument, const ConstTensorView& view) {
    require_unit_stride(where_, argument, view);
    outputs_.push_back(named(std::move(argument), view));
  }

  void weights(std::span<const RecurrentWeights> weights, bool packed) {
    count("weights", weights.size());
    const std::int64_t rows = gate_count(d_.cell) * d_.hidden;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto label = [&](std::string_view field) { return text("weights[", i, "].", field); };
      input(label("w_ih"), weights[i].w_ih, {rows, inputs_of(i)}, !packed);
      input(label("w_hh"), weights[i].w_hh, {rows, outputs()}, !packed);
      input(label("b_ih"), weights[i].b_ih, {rows}, false);
      input(label("b_hh"), weights[i].b_hh, {rows}, false);
      projection(label("w_hr"), weights[i].w_hr);
      if (d_.projection > 0) input(label("w_hr"), weights[i].w_hr, {d_.projection, d_.hidden}, !packed);
    }
  }

  void weight_gradients(std::span<const RecurrentWeightGradients> gradients) {
    if (gradients.empty()) return;
    count("dweights", gradients.size());
    const std::int64_t rows = gate_count(d_.cell) * d_.hidden;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto label = [&](std::string_view field) { return text("dweights[", i, "].", field); };
      gradient(label("w_ih"), gradients[i].w_ih, {rows, inputs_of(i)});
      gradient(label("w_hh"), gradients[i].w_hh, {rows, outputs()});
      gradient(label("b_ih"), gradients[i].b_ih, {rows});
      gradient(label("b_hh"), gradients[i].b_hh, {rows});
      projection(label("w_hr"), gradients[i].w_hr);
      if (d_.projection > 0) gradient(label("w_hr"), gradients[i].w_hr, {d_.projection, d_.hidden});
    }
  }

  void lengths(const ConstTensorView& lengths) {
    promised("lengths", lengths, d_.lengths);
    if (!lengths.given()) return;
    require_tensor(where_, "lengths", lengths, {batch_}, DType::i32, device_);
    inputs_.push_back({"lengths", lengths});
    if (device_.kind != DeviceKind::cpu) return;
    for (std::int64_t b = 0; b < batch_; ++b) {
      const std::int64_t length = length_of(lengths, b, steps_);
      require(length >= 0 && length <= steps_, ErrorCode::invalid_argument, where_, "lengths: expected 0 ... ", steps_, " for row ",
              b, ", got ", length);
    }
  }

  void resets(const ConstTensorView& resets) {
    promised("resets", resets, d_.resets);
    if (!resets.given()) return;
    require_tensor(where_, "resets", resets, {steps_, batch_}, DType::u8, device_);
    inputs_.push_back({"resets", resets});
  }

  void dropout(const DropoutSource& source) {
    require_dropout(where_, d_.dropout != 0, source, device_);
    if (source.state.given()) inputs_.push_back({"dropout_state", source.state});
  }
  void status(const ConstTensorView& status) {
    if (!status.given()) return;
    require_tensor(where_, "status", status, {1}, DType::i32, device_);
    outputs_.push_back({"status", status});
  }

  void packed(const PackedWeights* packed) {
    if (packed == nullptr) return;
    bytes("packed", packed->bytes, contract_.footprint.packed);
    require(packed->key == contract_.key, ErrorCode::invalid_argument, where_, "packed: expected weights packed for ",
            contract_.row, " (key ", contract_.key, "), got key ", packed->key);
    inputs_.push_back({"packed", packed->bytes});
  }

  void reserve(const ConstTensorView& reserve, bool is_output) {
    if (!d_.training && !reserve.given()) return;
    require(d_.training, ErrorCode::invalid_argument, where_, "reserve: expected none in a plan that does not train, got ",
            to_string(reserve));
    bytes("reserve", reserve, contract_.footprint.reserve);
    (is_output ? outputs_ : inputs_).push_back({"reserve", reserve});
  }

  void bytes(std::string_view argument, const ConstTensorView& view, std::size_t least) const {
    require_bytes(where_, argument, view, least, device_);
  }

  void apart() const { require_all_apart(where_, outputs_, inputs_); }

 private:
  std::int64_t inputs_of(std::size_t part) const {
    return static_cast<std::int64_t>(part) < directions() ? d_.inputs : directions() * outputs();
  }
  NamedView named(std::string name, const ConstTensorView& view) { return {names_.emplace_back(std::move(name)), view}; }
  void count(std::string_view argument, std::size_t came) const {
    require(static_cast<std::int64_t>(came) == parts(), ErrorCode::invalid_argument, where_, argument,
            ": expected layers x directions = ", parts(), " entries, got ", came);
  }
  void projection(const std::string& argument, const ConstTensorView& view) const {
    require(d_.projection > 0 || !view.given(), ErrorCode::invalid_argument, where_, argument,
            ": expected none without projection, got ", to_string(view));
  }
  void promised(std::string_view argument, const ConstTensorView& view, bool described) const {
    require(view.given() == described, ErrorCode::invalid_argument, where_, argument, ": expected ",
            described ? "a tensor" : "none", ", as the description says, got ", to_string(view));
  }

  std::string_view where_;
  const Contract& contract_;
  const RecurrentDescription& d_;
  Device device_;
  std::int64_t steps_ = 0, batch_ = 0;
  std::deque<std::string> names_;  // where the names of the views stay
  std::vector<NamedView> inputs_, outputs_;
};

}  // namespace

void check(const Contract& contract, const RecurrentForward& t) {
  constexpr std::string_view where = "recurrent.forward";
  Checker checker(where, contract);
  checker.x(t.x);
  const std::int64_t parts = checker.parts(), steps = checker.steps(), batch = checker.batch();
  checker.input("h0", t.h0, {parts, batch, checker.outputs()}, false);
  checker.cell_state("c0", t.c0, false);
  checker.weights(t.weights, t.packed != nullptr);
  checker.packed(t.packed);
  checker.lengths(t.lengths);
  checker.resets(t.resets);
  checker.output("y", t.y, {steps, batch, checker.directions() * checker.outputs()}, true);
  checker.output("hn", t.hn, {parts, batch, checker.outputs()});
  checker.cell_state("cn", t.cn, true);
  checker.reserve(t.reserve, true);
  checker.dropout({t.dropout_seed, t.dropout_offset, t.dropout_state});
  checker.status(t.status);
  checker.apart();
}

void check(const Contract& contract, const RecurrentBackward& t) {
  constexpr std::string_view where = "recurrent.backward";
  const RecurrentDescription& d = contract.query.description;
  require(d.training, ErrorCode::invalid_argument, where, "training: expected a plan made with training = true, got false");
  Checker checker(where, contract);
  checker.x(t.x);
  const std::int64_t parts = checker.parts(), steps = checker.steps(), batch = checker.batch();
  const std::int64_t width = checker.directions() * checker.outputs();
  checker.input("h0", t.h0, {parts, batch, checker.outputs()}, false);
  checker.cell_state("c0", t.c0, false);
  checker.weights(t.weights, t.packed != nullptr);
  checker.packed(t.packed);
  checker.lengths(t.lengths);
  checker.resets(t.resets);
  checker.input("y", t.y, {steps, batch, width});
  checker.reserve(t.reserve, false);
  checker.input("dy", t.dy, {steps, batch, width}, false);
  checker.input("dhn", t.dhn, {parts, batch, checker.outputs()}, false);
  checker.cell_state("dcn", t.dcn, false);
  checker.output("dx", t.dx, {steps, batch, d.inputs});
  checker.output("dh0", t.dh0, {parts, batch, checker.outputs()});
  checker.cell_state("dc0", t.dc0, true);
  checker.weight_gradients(t.dweights);
  checker.dropout({t.dropout_seed, t.dropout_offset, t.dropout_state});
  checker.status(t.status);
  checker.apart();
}

void check_pack(const Contract& contract, std::span<const RecurrentWeights> weights, const PackedWeights& packed) {
  Checker checker("recurrent.pack", contract);
  checker.weights(weights, false);
  checker.bytes("packed", packed.bytes, contract.footprint.packed);
  checker.written("packed", packed.bytes);
  checker.apart();
}

std::uint64_t packing_key(const RecurrentQuery& query, std::string_view row) {
  const RecurrentDescription& d = query.description;
  return hash_of(text("recurrent ", static_cast<int>(d.cell), ' ', d.inputs, ' ', d.hidden, ' ', d.layers, ' ', d.bidirectional,
                      ' ', d.projection, ' ', name(d.dtype), ' ', to_string(query.device.device), ' ', name(query.isa), ' ', row));
}

}  // namespace everglow::recurrent
