// Arguments of an optimiser step.
#include "ops/adam/check.hpp"

#include "core/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
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
  require(d.scale_interval >= 1 && d.scale_interval <= 1 << 24, ErrorCode::invalid_argument, where,
          "scale_interval: expected 1 ... 2^24, which an f32 can count, got ", d.scale_interval);
  require(query.sizes.parameters >= 0, ErrorCode::invalid_argument, where, "parameters: expected 0 or more, got ",
          query.sizes.parameters);
  require(query.sizes.tensors >= 0, ErrorCode::invalid_argument, where, "tensors: expected 0 or more, got ", query.sizes.tensors);
  require_countable(where, "parameters", {query.sizes.parameters});
  require_countable(where, "tensors", {query.sizes.tensors});
}

namespace {

/// The name of an argument: a tensor's part, or, with number -1, a scalar. Made into text only where an error tells it.
struct Argument {
  std::int64_t number = -1;
  const char* part = nullptr;
  std::string name() const { return number < 0 ? std::string(part) : text("tensors[", number, "].", part); }
};

/// The bytes of one dense tensor, and whether the step writes them.
struct Extent {
  std::uintptr_t begin = 0, end = 0;
  bool written = false;
  Argument argument;
};

/// What is written shares no byte with anything else: a sweep over all tensors by address.
class Extents {
 public:
  explicit Extents(std::size_t most) { extents_.reserve(most); }
  void add(const ConstTensorView& view, bool written, Argument argument) {
    if (!view.given() || view.elements() == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
    extents_.push_back({begin, begin + static_cast<std::size_t>(view.elements()) * size_of(view.dtype), written, argument});
  }
  void require_apart(std::string_view where) {
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    const Extent* reach = nullptr;          // the extent that ends last so far
    const Extent* written_reach = nullptr;  // the same among the written ones
    for (const Extent& e : extents_) {
      const Extent* other = e.written ? reach : written_reach;
      if (other != nullptr && other->end > e.begin)
        throw Error(ErrorCode::invalid_argument, where,
                    text(e.argument.name(), ": expected memory apart from ", other->argument.name(), ", got an overlap"));
      if (reach == nullptr || e.end > reach->end) reach = &e;
      if (e.written && (written_reach == nullptr || e.end > written_reach->end)) written_reach = &e;
    }
  }

 private:
  std::vector<Extent> extents_;
};

bool same_shape(const ConstTensorView& a, const ConstTensorView& b) {
  return a.rank == b.rank && a.rank <= max_rank &&
         std::equal(a.shape.begin(), a.shape.begin() + std::max(a.rank, 0), b.shape.begin());
}

/// A dense tensor of the parameter's shape.
void check_tensor(std::string_view where, Argument argument, const ConstTensorView& view, const ConstTensorView& parameter,
                  DType dtype, Device device) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const bool fits = view.given() && same_shape(view, parameter) && view.dtype == dtype && view.device == device && address != 0 &&
                    address % size_of(dtype) == 0 && view.dense() &&
                    std::all_of(view.shape.begin(), view.shape.begin() + view.rank, [](std::int64_t size) { return size > 0; });
  if (fits) return;
  require_tensor(where, argument.name(), view,
                 std::span(parameter.shape.data(), static_cast<std::size_t>(std::min(parameter.rank, max_rank))), dtype, device);
  require(view.dense(), ErrorCode::invalid_argument, where, argument.name(), ": expected a dense tensor, got gaps in ",
          to_string(view));
}

/// One of the 16-bit types, or f32 where that is possible too.
DType storage_of(std::string_view where, Argument argument, const ConstTensorView& view, bool f32) {
  if ((f32 && view.dtype == DType::f32) || view.dtype == DType::f16 || view.dtype == DType::bf16) return view.dtype;
  throw Error(ErrorCode::type_mismatch, where,
              text(argument.name(), ": expected ", f32 ? "f32, " : "", "f16 or bf16, got ", to_string(view)));
}

/// Checks the tensors and returns the number of their parameters.
std::int64_t check_tensors(std::string_view where, std::span<const AdamTensor> tensors, Device device, Extents& extents) {
  std::int64_t parameters = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const AdamTensor& a = tensors[i];
    const auto named = [i](const char* part) { return Argument{static_cast<std::int64_t>(i), part}; };
    if (!a.parameter.given())
      throw Error(ErrorCode::invalid_argument, where,
                  text(named("parameter").name(), ": expected a tensor on ", to_string(device), ", got ", to_string(a.parameter)));
    check_tensor(where, named("parameter"), a.parameter, a.parameter, DType::f32, device);
    const DType gradient = a.gradient.given() ? storage_of(where, named("gradient"), a.gradient, true) : DType::f32;
    check_tensor(where, named("gradient"), a.gradient, a.parameter, gradient, device);
    check_tensor(where, named("m"), a.m, a.parameter, DType::f32, device);
    check_tensor(where, named("v"), a.v, a.parameter, DType::f32, device);
    if (a.copy.given())
      check_tensor(where, named("copy"), a.copy, a.parameter, storage_of(where, named("copy"), a.copy, false), device);
    parameters += a.parameter.elements();
    extents.add(a.parameter, true, named("parameter"));
    extents.add(a.gradient, false, named("gradient"));
    extents.add(a.m, true, named("m"));
    extents.add(a.v, true, named("v"));
    extents.add(a.copy, true, named("copy"));
  }
  return parameters;
}

}  // namespace

void check(const AdamQuery& query, const AdamStep& t) {
  constexpr std::string_view where = "adam.step";
  const Device device = query.device.device;
  const auto tensors = static_cast<std::int64_t>(t.tensors.size());
  require(tensors <= query.sizes.tensors, ErrorCode::invalid_argument, where, "tensors: expected at most ", query.sizes.tensors,
          ", got ", tensors);
  Extents extents(t.tensors.size() * 5 + 6);
  const std::int64_t parameters = check_tensors(where, t.tensors, device, extents);
  require(parameters <= query.sizes.parameters, ErrorCode::invalid_argument, where, "tensors: expected at most ",
          query.sizes.parameters, " parameters, got ", parameters);
  require_tensor(where, "step", t.step, {1}, DType::i64, device);
  const bool rates = t.scaler.given() && t.rate.given() && t.rate.rank == 1 && t.rate.size(0) > 0;
  require_tensor(where, "rate", t.rate, {rates ? t.rate.size(0) : 1}, DType::f32, device);
  require(t.rate.dense(), ErrorCode::invalid_argument, where, "rate: expected a dense tensor, got ", to_string(t.rate));
  require_optional(where, "scale", t.scale, {1}, DType::f32, device);
  require_optional(where, "scaler", t.scaler, {3}, DType::f32, device);
  if (t.scaler.given()) {
    require(t.scaler.dense(), ErrorCode::invalid_argument, where, "scaler: expected a dense tensor, got ", to_string(t.scaler));
    require(!t.scale.given(), ErrorCode::invalid_argument, where, "scale: expected none beside a scaler, got ", to_string(t.scale));
    require(t.overflow.given(), ErrorCode::invalid_argument, where, "overflow: expected a tensor beside a scaler, got none");
  }
  require_optional(where, "norm", t.norm, {1}, DType::f32, device);
  require_optional(where, "overflow", t.overflow, {1}, DType::i32, device);
  extents.add(t.step, true, {.part = "step"});
  extents.add(t.rate, false, {.part = "rate"});
  extents.add(t.scale, false, {.part = "scale"});
  extents.add(t.scaler, true, {.part = "scaler"});
  extents.add(t.norm, true, {.part = "norm"});
  extents.add(t.overflow, true, {.part = "overflow"});
  extents.require_apart(where);
}

}  // namespace everglow::adam
