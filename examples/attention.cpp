// Causal attention of two query heads that share one head of keys and values, forward and backward: the last query sees all keys,
// the first one only itself.
#include <everglow/everglow.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  using namespace everglow;
  const std::int64_t batch = 1, length = 6, heads = 2, kv_heads = 1, width = 16;
  const AttentionPlan plan({.heads = heads, .kv_heads = kv_heads, .head_dim = width, .causal = true, .training = true},
                           {.batch = batch, .queries = length, .keys = length});
  std::printf("%s\n", plan.explain().kernel.c_str());

  const std::int64_t queries = batch * length * heads * width, keys = batch * length * kv_heads * width;
  std::vector<float> q(queries, 0.1F), k(keys), v(keys), o(queries), lse(batch * heads * length);
  for (std::int64_t i = 0; i < keys; ++i) k[i] = 0.5F, v[i] = static_cast<float>(i / width);  // each value is its place: 0 ... 5
  const auto of_queries = [&](std::vector<float>& memory) {
    return TensorView(memory.data(), DType::f32, {batch, length, heads, width});
  };
  const auto of_keys = [&](std::vector<float>& memory) {
    return TensorView(memory.data(), DType::f32, {batch, length, kv_heads, width});
  };
  const TensorView sums{lse.data(), DType::f32, {batch, heads, length}};
  const Buffer scratch(plan.workspace_bytes(), Device::cpu());
  plan.forward({.q = of_queries(q), .k = of_keys(k), .v = of_keys(v), .o = of_queries(o), .lse = sums}, scratch);
  // All keys are the same, so that a query sees the mean of the values up to its own place.
  for (std::int64_t i = 0; i < length; ++i) std::printf("query %d sees the mean %.2f\n", static_cast<int>(i), o[i * heads * width]);

  std::vector<float> d_o(queries, 1), dq(queries), dk(keys), dv(keys);
  plan.backward({.q = of_queries(q),
                 .k = of_keys(k),
                 .v = of_keys(v),
                 .o = of_queries(o),
                 .lse = sums,
                 .d_o = of_queries(d_o),
                 .dq = of_queries(dq),
                 .dk = of_keys(dk),
                 .dv = of_keys(dv)},
                scratch);
  // Key 0 has a share in each query's mean, of both heads: 2 (1 + 1/2 + ... + 1/6).
  std::printf("gradient of the first value %.2f, of the last %.2f\n", dv[0], dv[(length - 1) * width]);
  return std::abs(o[(length - 1) * heads * width] - 2.5F) < 1e-5F && std::abs(dv[0] - 4.9F) < 1e-5F ? 0 : 1;
}
