// Runs one softmax with the installed library and prints its version and the result.
#include <everglow/everglow.hpp>

#include <cmath>
#include <cstdio>
#include <string>

std::size_t count_of_exports();
void note(const void* address);

void note(const void* address) {
  if (address == nullptr) std::puts("a function without an address");
}

int main() {
  using namespace everglow;
  float values[2] = {0.0F, std::log(3.0F)};
  const TensorView x(values, DType::f32, {1, 2});
  const SoftmaxPlan plan({}, {.rows = 1, .columns = 2});
  const Buffer scratch(plan.workspace_bytes(), Device::cpu());
  plan.forward({.x = x, .y = x}, scratch);
  std::printf("everglow %s: %.4f %.4f\n", std::string(version()).c_str(), static_cast<double>(values[0]),
              static_cast<double>(values[1]));
  return count_of_exports() > 0 ? 0 : 1;
}
