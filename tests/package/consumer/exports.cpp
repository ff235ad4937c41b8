// Names every function of the public headers that is not inline: a shared library that hides one does not link.
#include <everglow/everglow.hpp>

#include <cstddef>

void note(const void* address);

namespace {

using namespace everglow;

template <auto Function>
auto address = Function;

// note() stands in another source, so the compiler must store every address.
template <auto... Functions>
std::size_t keep() {
  (note(&address<Functions>), ...);
  return sizeof...(Functions);
}

template <class Plan, class Description, class Sizes>
void construct(const Description& description, const Sizes& sizes) {
  try {
    const Plan plan(description, sizes);
  } catch (const Error&) {
    // A size that no row serves is an answer as well; what is asked here is whether the constructor links.
  }
}

std::size_t plans() {
  construct<LinearPlan>(LinearDescription{}, LinearSizes{});
  construct<RecurrentPlan>(RecurrentDescription{}, RecurrentSizes{});
  construct<AttentionPlan>(AttentionDescription{}, AttentionSizes{});
  construct<SoftmaxPlan>(SoftmaxDescription{}, SoftmaxSizes{});
  construct<EmbeddingPlan>(EmbeddingDescription{}, EmbeddingSizes{});
  construct<LossPlan>(LossDescription{}, LossSizes{});
  construct<PointwisePlan>(PointwiseDescription{}, PointwiseSizes{});
  construct<AdamPlan>(AdamDescription{}, AdamSizes{});
  return keep<&LinearPlan::explain, &LinearPlan::workspace_bytes, &LinearPlan::packed_bytes, &LinearPlan::preferred_stride,
              &LinearPlan::pack, &LinearPlan::prepare,
              static_cast<int (LinearPlan::*)(const LinearForward&, const Workspace&, const Stream&) const>(&LinearPlan::tune),
              static_cast<int (LinearPlan::*)(const LinearBackward&, const Workspace&, const Stream&) const>(&LinearPlan::tune),
              &LinearPlan::forward, &LinearPlan::backward>() +
         keep<&RecurrentPlan::explain, &RecurrentPlan::workspace_bytes, &RecurrentPlan::reserve_bytes, &RecurrentPlan::packed_bytes,
              &RecurrentPlan::dropout_counters, &RecurrentPlan::pack, &RecurrentPlan::forward, &RecurrentPlan::backward>() +
         keep<&AttentionPlan::explain, &AttentionPlan::workspace_bytes, &AttentionPlan::dropout_counters, &AttentionPlan::forward,
              &AttentionPlan::backward>() +
         keep<&SoftmaxPlan::explain, &SoftmaxPlan::workspace_bytes, &SoftmaxPlan::forward, &SoftmaxPlan::backward>() +
         keep<&EmbeddingPlan::explain, &EmbeddingPlan::workspace_bytes, &EmbeddingPlan::forward, &EmbeddingPlan::backward>() +
         keep<&LossPlan::explain, &LossPlan::workspace_bytes, &LossPlan::forward, &LossPlan::forward_backward>() +
         keep<&PointwisePlan::explain, &PointwisePlan::workspace_bytes, &PointwisePlan::dropout_counters, &PointwisePlan::run>() +
         keep<&AdamPlan::explain, &AdamPlan::workspace_bytes, &AdamPlan::step>();
}

std::size_t runtime() {
  Event event;
  event.record({});
  const Buffer buffer(16, Device::cpu());
  const Error error(ErrorCode::io, "exports", "an error that nobody throws");
  return keep<&Stream::synchronize, &Event::record, &Event::wait, &Event::synchronize, &copy, &DeviceDescription::named,
              &device_names, &cpu_features, &backends, &kernels, &default_threads, &version, &check_status, &size_of, &parse_dtype,
              &to_half, &to_bfloat16, &parse_device, static_cast<std::string_view (*)(DType) noexcept>(&name),
              static_cast<std::string_view (*)(ErrorCode) noexcept>(&name), static_cast<float (*)(Half) noexcept>(&to_float),
              static_cast<float (*)(BFloat16) noexcept>(&to_float), static_cast<std::string (*)(Device)>(&to_string),
              static_cast<std::string (*)(const ConstTensorView&)>(&to_string)>() +
         (DeviceDescription(Device::cpu()).present ? 1 : 0) + error.where().size() + buffer.bytes();
}

}  // namespace

std::size_t count_of_exports() { return plans() + runtime(); }
