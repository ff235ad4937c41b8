// Layers without products of their own, and the loss.
#include "plan/small_layers.hpp"

#include "plan/linear.hpp"

namespace everglow::plan {

void explain_stream(double bytes, const Machine& machine, Explanation& out) {
  out.time_us = bytes > 0 ? machine.overhead_us + bytes / machine.copy : 0;
  out.floor_us = bytes / machine.bandwidth;
}

void explain_loss(const LossDescription& d, std::int64_t rows, const Machine& machine, Explanation& out) {
  explain_linear({.inputs = d.inputs, .outputs = d.classes, .dtype = d.dtype, .training = d.training}, rows, machine, out);
  out.passes.clear();  // all are made block by block in one call
  const auto renamed = [](const std::string& name) { return name == "y" ? "logits" : name == "dy" ? "dlogits" : name; };
  for (ExplanationGemm& gemm : out.gemms) {
    gemm.name = "classifier";
    for (ExplanationOperand& operand : gemm.operands) operand.tensor = renamed(operand.tensor);
  }
  const double logits = static_cast<double>(rows) * static_cast<double>(d.classes) * static_cast<double>(machine.element);
  const double passes = d.training ? 2 : 1;  // softmax reads them, its gradient is written over them
  const double stream = passes * logits / machine.copy;
  out.time_us += stream;
  for (ExplanationAdvice& advice : out.advice) {
    if (advice.dimension == "outputs") advice.dimension = "classes";
    if (advice.dimension == "batch") advice.dimension = "rows";
    // The passes over the logits take as long for each row, before and after.
    advice.time_us_before += stream, advice.time_us_after += stream;
    advice.gain = advice.time_us_before / advice.time_us_after;
    const std::size_t tensors = advice.reason.find("y and dy");
    if (tensors != std::string::npos) advice.reason.replace(tensors, 8, "logits and dlogits");
  }
}

}  // namespace everglow::plan
