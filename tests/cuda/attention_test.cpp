// What the cases cannot say of attention on a card: NaN behind a mask, lengths that a card must clamp, seeds in its memory, graphs.
#include "cases/proof/attention_problem.hpp"
#include "cases/proof/placement.hpp"
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/attention.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>
#include <string>

namespace everglow {
namespace {

using proof::AttentionInputs;
using proof::AttentionResults;
using proof::Values;
using test::HostTensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr const char* rows[] = {"sm80.attention_flash2", "sm80.attention_flash1", "cuda.attention_standard"};

class CudaAttention : public test::OnCard {
 protected:
  AttentionResults run(const char* row, const AttentionDescription& d, const AttentionSizes& s, const AttentionInputs& in) const {
    return proof::run_attention(d, s, in, {.options = {.force = row}, .device = DeviceDescription(card)});
  }
};

/// Row `at` of one head of `columns`.
void spoil(Values& values, std::size_t at, std::size_t columns) {
  for (std::size_t e = 0; e < columns; e += 3) values[at * columns + e] = nan;
}
Values part(const Values& values, std::size_t begin, std::size_t end, std::size_t columns) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin * columns),
          values.begin() + static_cast<std::ptrdiff_t>(end * columns)};
}

/// One head with a causal mask, 100 queries and keys: one block of keys, so that sums have one order and bits can be compared.
TEST_F(CudaAttention, NanThatIsNotSeenStaysWhereItIs_sanitize) {
  constexpr std::size_t spoilt = 50, all = 100;
  for (const char* dtype : {"f16", "bf16"})
    for (const std::size_t columns : {64, 128}) {
      const cases::Case c = cases::parse(
          "attention batch=1 queries=100 keys=100 heads=1 causal=1 head_dim=" + std::to_string(columns) + " dtype=" + dtype);
      const AttentionDescription d = proof::attention_description(c);
      const AttentionSizes s = proof::attention_sizes(c);
      const AttentionInputs in = proof::attention_inputs(d, s, c);
      for (const char* row : rows) {
        SCOPED_TRACE(c.line + " " + row);
        const AttentionResults whole = run(row, d, s, in);
        AttentionInputs keys = in, queries = in;
        spoil(keys.k, spoilt, columns), spoil(keys.v, spoilt + 1, columns);
        spoil(queries.q, spoilt, columns), spoil(queries.d_o, spoilt - 1, columns);
        const AttentionResults behind = run(row, d, s, keys), before = run(row, d, s, queries);
        EXPECT_EQ(part(behind.o, 0, spoilt, columns), part(whole.o, 0, spoilt, columns));
        EXPECT_EQ(part(behind.lse, 0, spoilt, 1), part(whole.lse, 0, spoilt, 1));
        EXPECT_EQ(part(behind.dq, 0, spoilt, columns), part(whole.dq, 0, spoilt, columns));
        EXPECT_EQ(part(before.dk, spoilt + 1, all, columns), part(whole.dk, spoilt + 1, all, columns));
        EXPECT_EQ(part(before.dv, spoilt + 1, all, columns), part(whole.dv, spoilt + 1, all, columns));
        // Where it is seen it is not hidden: query 51 sees key 51, whose value is NaN in column 0.
        EXPECT_TRUE(std::isnan(behind.o[(spoilt + 1) * columns])) << behind.o[(spoilt + 1) * columns];
        EXPECT_TRUE(std::isnan(before.dk[0])) << before.dk[0];
      }
    }
}

/// In the row that keeps scores in memory a bias of -inf hides what a mask would: key 7 from every query, keys below 10 from
/// query 5.
TEST_F(CudaAttention, ABiasOfMinusInfinityHidesNanFromTheStandardRow_sanitize) {
  constexpr std::size_t queries = 70, keys = 80, columns = 16, key = 7, query = 5, hidden = 10;
  for (const char* dtype : {"f32", "bf16"}) {
    const cases::Case c =
        cases::parse(std::string("attention batch=1 queries=70 keys=80 heads=1 bias=1 softcap=20 head_dim=16 dtype=") + dtype);
    const AttentionDescription d = proof::attention_description(c);
    const AttentionSizes s = proof::attention_sizes(c);
    AttentionInputs in = proof::attention_inputs(d, s, c);
    for (std::size_t i = 0; i < queries; ++i) in.bias[i * keys + key] = -std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < hidden; ++j) in.bias[query * keys + j] = -std::numeric_limits<double>::infinity();
    SCOPED_TRACE(c.line);
    AttentionInputs behind = in, before = in;
    spoil(behind.k, key, columns), spoil(behind.v, key, columns);
    spoil(before.q, query, columns), spoil(before.d_o, query, columns);
    const AttentionResults whole = run(rows[2], d, s, in), hides = run(rows[2], d, s, behind), spoilt = run(rows[2], d, s, before);
    EXPECT_EQ(hides.o, whole.o);
    EXPECT_EQ(hides.lse, whole.lse);
    EXPECT_EQ(hides.dq, whole.dq);
    EXPECT_EQ(hides.dk, whole.dk);
    EXPECT_EQ(hides.dv, whole.dv);
    EXPECT_EQ(hides.dbias, whole.dbias);
    EXPECT_EQ(part(spoilt.dk, 0, hidden, columns), part(whole.dk, 0, hidden, columns));
    EXPECT_EQ(part(spoilt.dv, 0, hidden, columns), part(whole.dv, 0, hidden, columns));
    EXPECT_TRUE(std::isnan(spoilt.dk[hidden * columns])) << spoilt.dk[hidden * columns];
  }
}

/// A card cannot throw for a length: it is clamped and noted.
TEST_F(CudaAttention, LengthsOutOfRangeAreClampedAndNoted_sanitize) {
  const AttentionSizes s{.batch = 2, .queries = 9, .keys = 11};
  const AttentionDescription d{.heads = 2, .head_dim = 16, .key_lengths = true, .dtype = DType::f16};
  HostTensor q(DType::f16, {2, 9, 2, 16}), k(DType::f16, {2, 11, 2, 16}), v(DType::f16, {2, 11, 2, 16});
  HostTensor o(DType::f16, {2, 9, 2, 16}), expected(DType::f16, {2, 9, 2, 16}), lengths(DType::i32, {2}), status(DType::i32, {1});
  q.uniform(1, -1, 1), k.uniform(2, -1, 1), v.uniform(3, -1, 1);
  for (const char* row : {rows[0], rows[2]}) {
    SCOPED_TRACE(row);
    const AttentionPlan plan(d, s, card, {.force = row});
    AttentionForward t{.q = q, .k = k, .v = v, .o = expected};
    t.key_lengths = lengths, t.status = status;
    status.fill(0), lengths.set({11, 0});
    proof::forward_on(card, plan, t, proof::Scratch(plan.workspace_bytes()));
    EXPECT_EQ(status.at(0), 0);
    t.o = o, lengths.set({12, -5});
    proof::forward_on(card, plan, t, proof::Scratch(plan.workspace_bytes()));
    EXPECT_EQ(status.at(0), status_lengths);
    EXPECT_EQ("", test::compare(o.values(), expected.values(), 0));
  }
}

TEST_F(CudaAttention, DropoutStateIsReadOnTheCard_sanitize) {
  const AttentionSizes s{.batch = 1, .queries = 30, .keys = 41};
  const AttentionDescription d{.heads = 2, .head_dim = 16, .dropout = 0.4F, .dtype = DType::bf16};
  HostTensor q(DType::bf16, {1, 30, 2, 16}), k(DType::bf16, {1, 41, 2, 16}), v(DType::bf16, {1, 41, 2, 16});
  HostTensor o(DType::bf16, {1, 30, 2, 16}), expected(DType::bf16, {1, 30, 2, 16}), state(DType::i64, {2});
  q.uniform(1, -1, 1), k.uniform(2, -1, 1), v.uniform(3, -1, 1), state.put(0, 4711), state.put(1, 99);
  for (const char* row : {rows[0], rows[2]}) {
    SCOPED_TRACE(row);
    const AttentionPlan plan(d, s, card, {.force = row});
    AttentionForward t{.q = q, .k = k, .v = v, .o = expected};
    t.dropout_seed = 4711, t.dropout_offset = 99;
    proof::forward_on(card, plan, t, proof::Scratch(plan.workspace_bytes()));
    t.o = o, t.dropout_seed = t.dropout_offset = 0, t.dropout_state = state;
    proof::forward_on(card, plan, t, proof::Scratch(plan.workspace_bytes()));
    EXPECT_EQ("", test::compare(o.values(), expected.values(), 0));
  }
}

/// A captured forward and backward give at each replay what plain ones do.
TEST_F(CudaAttention, IsCapturedIntoAGraph) {
  constexpr std::int64_t count = 2 * 70 * 2 * 64;
  const AttentionDescription d{.heads = 2, .head_dim = 64, .causal = true, .dtype = DType::f16, .training = true};
  HostTensor start(DType::f16, {5, count});
  start.uniform(1, -1, 1);
  for (const char* row : rows) {
    SCOPED_TRACE(row);
    const AttentionPlan plan(d, {.batch = 2, .queries = 70, .keys = 70}, card, {.force = row, .deterministic = true});
    const Buffer memory(12 * count * 2, card), scratch(plan.workspace_bytes(), card);
    const auto tensor = [&](int i) {
      return TensorView(static_cast<std::byte*>(memory.data()) + i * count * 2, DType::f16, {2, 70, 2, 64}, card);
    };
    copy(TensorView(memory.data(), DType::f16, {5, count}, card), start, stream);
    const TensorView lse(tensor(5).data, DType::f32, {2, 2, 70}, card);
    cudaStream_t own = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamCreate(&own));
    const Stream mine{card, own};
    stream.synchronize();
    const auto both = [&](int first) {
      plan.forward({.q = tensor(0), .k = tensor(1), .v = tensor(2), .o = tensor(4), .lse = lse}, scratch, mine);
      AttentionBackward b{.q = tensor(0), .k = tensor(1), .v = tensor(2), .o = tensor(4), .lse = lse};
      b.d_o = tensor(3), b.dq = tensor(first), b.dk = tensor(first + 1), b.dv = tensor(first + 2);
      plan.backward(b, scratch, mine);
    };
    both(6);
    mine.synchronize();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
    both(9);
    ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(own, &graph));
    ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&ready, graph, 0));
    for (int replay = 0; replay < 2; ++replay) ASSERT_EQ(cudaSuccess, cudaGraphLaunch(ready, own));
    mine.synchronize();
    HostTensor plain(DType::f16, {3 * count}), replayed(DType::f16, {3 * count});
    copy(plain, ConstTensorView(tensor(6).data, DType::f16, {3 * count}, card), stream);
    copy(replayed, ConstTensorView(tensor(9).data, DType::f16, {3 * count}, card), stream);
    stream.synchronize();
    EXPECT_EQ("", test::compare(replayed.values(), plain.values(), 0));
    cudaGraphExecDestroy(ready), cudaGraphDestroy(graph), cudaStreamDestroy(own);
  }
}

}  // namespace
}  // namespace everglow
