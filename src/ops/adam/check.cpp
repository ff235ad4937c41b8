// Arguments of an optimiser step.
#include "ops/adam/check.hpp"

#include "core/check.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace everglow::adam {

void check(const AdamQuery& query) {
  constexpr std::string_view where = "adam.plan";
  const AdamDescription& d = query.description;
  require(d.beta1 >= 0 && d.beta1 < 1, ErrorCode::invalid_argument, where, "beta1: expected at least 0 and below 1, got ", d.beta1);
  require(d.beta2 >= 0 && d.beta2 < 1, ErrorCode::invalid_argument, where, "beta2: expected at least 0 and below 1, got ", d.beta2);
  require(d.epsilon >= 0 && std::isfinite(d.epsilon), ErrorCode::invalid_argument, where, "epsilon: expected 0 or more, got ",
          d.epsilon);
  require(d.weight_decay >= 0 && std::isfinite(d.weight_decay), ErrorCode::invalid_argument, where,
          "weight_decay: expected 0 or more, got ", d.weight_decay);
  require(d.clip >= 0 && std::isfinite(d.clip), ErrorCode::invalid_argument, where, "clip: expected 0 or more, got ", d.clip);
  require(query.sizes.parameters >= 0, ErrorCode::invalid_argument, where, "parameters: expected 0 or more, got ",
          query.sizes.parameters);
  require(query.sizes.tensors >= 0, ErrorCode::invalid_argument, where, "tensors: expected 0 or more, got ", query.sizes.tensors);
  require_countable(where, "parameters", {query.sizes.parameters});
  require_countable(where, "tensors", {query.sizes.tensors});
}

namespace {

/// The bytes of one dense tensor, and whether the step writes them.
struct Extent {
  std::uintptr_t begin = 0, end = 0;
  bool written = false;
  std::string name;
};

/// What is written shares no byte with anything else: a sweep over all tensors by address.
class Extents {
 public:
  void add(const ConstTensorView& view, bool written, std::string name) {
    if (!view.given() || view.elements() == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
    extents_.push_back({begin, begin + static_cast<std::size_t>(view.elements()) * size_of(view.dtype), written, std::move(name)});
  }
  void require_apart(std::string_view where) {
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    const Extent* reach = nullptr;          // the extent that ends last so far
    const Extent* written_reach = nullptr;  // the same among the written ones
    for (const Extent& e : extents_) {
      const Extent* other = e.written ? reach : written_reach;
      require(other == nullptr || other->end <= e.begin, ErrorCode::invalid_argument, where, e.name,
              ": expected memory apart from ", other == nullptr ? std::string() : other->name, ", got an overlap");
      if (reach == nullptr || e.end > reach->end) reach = &e;
      if (e.written && (written_reach == nullptr || e.end > written_reach->end)) written_reach = &e;
    }
  }

 private:
  std::vector<Extent> extents_;
};

/// A dense tensor of the parameter's shape.
void check_tensor(std::string_view where, std::string_view argument, const ConstTensorView& view, const ConstTensorView& parameter,
                  DType dtype, Device device) {
  require_tensor(where, argument, view,
                 std::span(parameter.shape.data(), static_cast<std::size_t>(std::min(parameter.rank, max_rank))), dtype, device);
  require(view.dense(), ErrorCode::invalid_argument, where, argument, ": expected a dense tensor, got gaps in ", to_string(view));
}

}  // namespace

void check(const AdamQuery& query, const AdamStep& t) {
  constexpr std::string_view where = "adam.step";
  const Device device = query.device.device;
  const auto tensors = static_cast<std::int64_t>(t.tensors.size());
  require(tensors <= query.sizes.tensors, ErrorCode::invalid_argument, where, "tensors: expected at most ", query.sizes.tensors,
          ", got ", tensors);
  Extents extents;
  std::int64_t parameters = 0;
  for (std::int64_t i = 0; i < tensors; ++i) {
    const AdamTensor& a = t.tensors[static_cast<std::size_t>(i)];
    const auto named = [&](std::string_view argument) { return text("tensors[", i, "].", argument); };
    require(a.parameter.given(), ErrorCode::invalid_argument, where, named("parameter"), ": expected a tensor on ",
            to_string(device), ", got ", to_string(a.parameter));
    check_tensor(where, named("parameter"), a.parameter, a.parameter, DType::f32, device);
    check_tensor(where, named("gradient"), a.gradient, a.parameter, DType::f32, device);
    check_tensor(where, named("m"), a.m, a.parameter, DType::f32, device);
    check_tensor(where, named("v"), a.v, a.parameter, DType::f32, device);
    if (a.copy.given()) {
      require(a.copy.dtype == DType::f16 || a.copy.dtype == DType::bf16, ErrorCode::type_mismatch, where, named("copy"),
              ": expected f16 or bf16, got ", to_string(a.copy));
      check_tensor(where, named("copy"), a.copy, a.parameter, a.copy.dtype, device);
    }
    parameters += a.parameter.elements();
    extents.add(a.parameter, true, named("parameter"));
    extents.add(a.gradient, false, named("gradient"));
    extents.add(a.m, true, named("m"));
    extents.add(a.v, true, named("v"));
    extents.add(a.copy, true, named("copy"));
  }
  require(parameters <= query.sizes.parameters, ErrorCode::invalid_argument, where, "tensors: expected at most ",
          query.sizes.parameters, " parameters, got ", parameters);
  require_tensor(where, "step", t.step, {1}, DType::i64, device);
  require_tensor(where, "rate", t.rate, {1}, DType::f32, device);
  require_optional(where, "scale", t.scale, {1}, DType::f32, device);
  require_optional(where, "norm", t.norm, {1}, DType::f32, device);
  require_optional(where, "overflow", t.overflow, {1}, DType::i32, device);
  extents.add(t.step, true, "step");
  extents.add(t.rate, false, "rate");
  extents.add(t.scale, false, "scale");
  extents.add(t.norm, true, "norm");
  extents.add(t.overflow, true, "overflow");
  extents.require_apart(where);
}

}  // namespace everglow::adam
