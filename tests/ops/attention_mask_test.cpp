// Which keys a query sees, against a definition of its own: with q = 0 and one-hot values, o of a query is 1/n at each of the n
// keys that it sees and 0 at the others, so that every element of the mask can be read off.
#include "ops/small_layers.hpp"

#include <everglow/attention.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace everglow {
namespace {

using test::HostTensor;

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

/// The definition: key j against the diagonal of query i.
bool sees(const AttentionDescription& d, std::int64_t queries, std::int64_t keys, std::int64_t i, std::int64_t j) {
  if (i >= queries || j >= keys) return false;
  const std::int64_t distance = j - (i + (d.alignment == CausalAlignment::bottom_right ? keys - queries : 0));
  if (d.causal && distance > 0) return false;
  if (d.window_left >= 0 && -distance > d.window_left) return false;
  return d.window_right < 0 || distance <= d.window_right;
}

void expect_mask(AttentionDescription d, std::int64_t queries, std::int64_t keys, const std::vector<double>& query_lengths,
                 const std::vector<double>& key_lengths) {
  const std::int64_t batch = 2;
  d.value_dim = keys;
  d.query_lengths = !query_lengths.empty(), d.key_lengths = !key_lengths.empty();
  const AttentionSizes sizes{.batch = batch, .queries = queries, .keys = keys};
  HostTensor q(DType::f32, {batch, queries, 1, d.head_dim}), k(DType::f32, {batch, keys, 1, d.head_dim});
  HostTensor v(DType::f32, {batch, keys, 1, keys}), first(DType::i32, {batch}), second(DType::i32, {batch});
  q.fill(0), k.uniform(1, -1, 1), v.fill(0);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t j = 0; j < keys; ++j) v.put((b * keys + j) * keys + j, 1);
  if (d.query_lengths) first.set(query_lengths);
  if (d.key_lengths) second.set(key_lengths);
  for (const auto& row : test::accepting_rows<AttentionPlan>("attention", d, sizes)) {
    SCOPED_TRACE(row);
    const AttentionPlan plan(d, sizes, Device::cpu(), {.force = row});
    const test::Scratch scratch(plan.workspace_bytes());
    HostTensor o(DType::f32, {batch, queries, 1, keys}), lse(DType::f32, {batch, 1, queries});
    AttentionForward t{.q = q, .k = k, .v = v, .o = o, .lse = lse};
    if (d.query_lengths) t.query_lengths = first;
    if (d.key_lengths) t.key_lengths = second;
    plan.forward(t, {scratch.data(), scratch.bytes()});
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < queries; ++i) {
        const auto at = static_cast<std::size_t>(b);
        const std::int64_t sq = d.query_lengths ? static_cast<std::int64_t>(query_lengths[at]) : queries;
        const std::int64_t sk = d.key_lengths ? static_cast<std::int64_t>(key_lengths[at]) : keys;
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < keys; ++j) count += sees(d, sq, sk, i, j) ? 1 : 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          const double came = o.at((b * queries + i) * keys + j);
          // Scores are 0 and their exponentials 1, so that only the division rounds (twice, as a product with the reciprocal).
          if (sees(d, sq, sk, i, j))
            EXPECT_NEAR(came, 1 / static_cast<double>(count), 2 * 0x1p-24) << b << ' ' << i << ' ' << j;
          else
            EXPECT_EQ(came, 0) << b << ' ' << i << ' ' << j;
        }
        if (i < sq && count == 0) {
          EXPECT_EQ(lse.at(b * queries + i), -std::numeric_limits<double>::infinity()) << b << ' ' << i;
        }
      }
  }
}

TEST(AttentionMask, EveryWindowAndAlignment_sanitize) {
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{8, 2}, {8, 3}, {3, 8}, {5, 5}, {1, 6}})
    for (const bool causal : {false, true})
      for (const auto alignment : {CausalAlignment::bottom_right, CausalAlignment::top_left})
        for (const std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, std::int64_t{9}, everything})
          for (const std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7},
                                           std::int64_t{11}, everything}) {
            const AttentionDescription d{
                .heads = 1, .head_dim = 4, .causal = causal, .alignment = alignment, .window_left = left, .window_right = right};
            SCOPED_TRACE(::testing::Message() << queries << " queries, " << keys << " keys, causal " << causal << ", alignment "
                                              << static_cast<int>(alignment) << ", window " << left << ' ' << right);
            expect_mask(d, queries, keys, {}, {});
            const auto sq = static_cast<double>(queries), sk = static_cast<double>(keys);
            expect_mask(d, queries, keys, {sq, sq - 1}, {1, sk});
          }
}

}  // namespace
}  // namespace everglow
