// Wrong arguments of the attention layer: for each, what was expected and what came, and that nothing has run.
#include "ops/small_layers.hpp"

#include <everglow/attention.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace everglow {
namespace {

using test::error_of;
using test::HostTensor;

struct BadPlan {
  std::function<void(AttentionDescription&, AttentionSizes&)> spoil;
  std::string text;  // without the place
  ErrorCode code = ErrorCode::invalid_argument;
};

void expect_error(const std::string& text, ErrorCode code, const std::function<void()>& f) {
  try {
    f();
    ADD_FAILURE() << "expected an error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_STREQ(error.what(), text.c_str());
  }
}

constexpr float infinite = std::numeric_limits<float>::infinity();

TEST(AttentionErrors, Descriptions_sanitize) {
  using D = AttentionDescription;
  using S = AttentionSizes;
  const std::vector<BadPlan> table{
      {[](D& d, S&) { d.dtype = DType::i32; }, "dtype: expected f32, f16, bf16 or f64, got i32", ErrorCode::type_mismatch},
      {[](D& d, S&) { d.heads = -1; }, "heads: expected 0 or more, got -1"},
      {[](D& d, S&) { d.kv_heads = -1; }, "kv_heads: expected 0 or more, got -1"},
      {[](D& d, S&) { d.kv_heads = 3; }, "kv_heads: expected a divisor of 4 heads, got 3"},
      {[](D& d, S&) { d.kv_heads = 8; }, "kv_heads: expected a divisor of 4 heads, got 8"},
      {[](D& d, S&) { d.head_dim = -1; }, "head_dim: expected 0 or more, got -1"},
      {[](D& d, S&) { d.value_dim = -3; }, "value_dim: expected 0 or more, got -3"},
      {[](D& d, S&) { d.scale = infinite; }, "scale: expected a finite number, got inf"},
      {[](D& d, S&) { d.scale = std::nanf(""); }, "scale: expected a finite number, got nan"},
      {[](D& d, S&) { d.softcap = -1; }, "softcap: expected 0 or a positive number, got -1"},
      {[](D& d, S&) { d.softcap = infinite; }, "softcap: expected 0 or a positive number, got inf"},
      {[](D& d, S&) { d.dropout = 1; }, "dropout: expected 0 or more and less than 1, got 1"},
      {[](D& d, S&) { d.dropout = -0.5F; }, "dropout: expected 0 or more and less than 1, got -0.5"},
      {[](D& d, S&) { d.dropout = std::nanf(""); }, "dropout: expected 0 or more and less than 1, got nan"},
      {[](D& d, S&) { d.window_left = -2; }, "window_left: expected -1 or more, got -2"},
      {[](D& d, S&) { d.window_right = -7; }, "window_right: expected -1 or more, got -7"},
      {[](D&, S& s) { s.batch = -1; }, "batch: expected 0 or more, got -1"},
      {[](D&, S& s) { s.queries = -1; }, "queries: expected 0 or more, got -1"},
      {[](D&, S& s) { s.keys = -1; }, "keys: expected 0 or more, got -1"},
      {[](D&, S& s) { s.total_queries = -1; }, "total_queries: expected 0 or more, got -1"},
      {[](D&, S& s) { s.total_keys = -1; }, "total_keys: expected 0 or more, got -1"},
      {[](D& d, S&) { d.packed = d.query_lengths = true; },
       "query_lengths: expected false for packed batches, whose lengths follow from cu_queries and cu_keys, got true"},
      {[](D& d, S&) { d.packed = d.key_lengths = true; },
       "key_lengths: expected false for packed batches, whose lengths follow from cu_queries and cu_keys, got true"},
      {[](D&, S& s) { s.total_keys = 9; }, "total_queries and total_keys: expected 0 where the batch is not packed, got 0 and 9"},
  };
  for (const BadPlan& bad : table) {
    AttentionDescription d{.heads = 4, .head_dim = 8};
    AttentionSizes s{.batch = 2, .queries = 5, .keys = 6};
    bad.spoil(d, s);
    expect_error("[attention.plan] " + bad.text, bad.code, [&] { const AttentionPlan plan(d, s); });
  }
}

/// A layer with every option that brings a tensor, after its forward run; a test spoils one argument and runs again.
struct AttentionCall {
  AttentionDescription description{.heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .value_dim = 6,
                                   .alibi = true,
                                   .bias = true,
                                   .query_lengths = true,
                                   .key_lengths = true,
                                   .training = true};
  AttentionPlan plan{description, {.batch = 2, .queries = 5, .keys = 7}};
  HostTensor q = drawn({2, 5, 4, 8}), k = drawn({2, 7, 2, 8}), v = drawn({2, 7, 2, 6}), d_o = drawn({2, 5, 4, 6});
  HostTensor slopes = drawn({4}), bias = drawn({2, 4, 5, 7}), dlse = drawn({2, 4, 5});
  HostTensor query_lengths{DType::i32, {2}}, key_lengths{DType::i32, {2}};
  HostTensor o{DType::f32, {2, 5, 4, 6}}, lse{DType::f32, {2, 4, 5}}, dq{DType::f32, {2, 5, 4, 8}}, dk{DType::f32, {2, 7, 2, 8}};
  HostTensor dv{DType::f32, {2, 7, 2, 6}}, dbias{DType::f32, {2, 4, 5, 7}};
  test::Scratch scratch{plan.workspace_bytes()};
  Workspace workspace{scratch.data(), scratch.bytes()};
  HostTensor other{DType::f32, {2, 5, 9}};     // of a shape that nothing here has
  HostTensor wide{DType::f32, {2, 9, 4, 16}};  // columns of rows of 16
  AttentionForward f{.q = q, .k = k, .v = v, .o = o, .lse = lse};
  AttentionBackward b{.q = q, .k = k, .v = v, .o = o, .lse = lse};

  AttentionCall() {
    query_lengths.set({5, 3}), key_lengths.set({7, 4});
    f.query_lengths = b.query_lengths = query_lengths, f.key_lengths = b.key_lengths = key_lengths;
    f.alibi_slopes = b.alibi_slopes = slopes, f.bias = b.bias = bias;
    plan.forward(f, workspace);
    b.d_o = d_o, b.dlse = dlse, b.dq = dq, b.dk = dk, b.dv = dv, b.dbias = dbias;
  }
  static HostTensor drawn(std::vector<std::int64_t> shape) {
    HostTensor out(DType::f32, std::move(shape));
    out.uniform(3, -1, 1);
    return out;
  }
};

struct BadCall {
  std::function<void(AttentionCall&)> spoil;
  std::string text;  // without the place
  ErrorCode code = ErrorCode::invalid_argument;
};

TensorView strided(TensorView view, int dim, std::int64_t stride) {
  view.strides[static_cast<std::size_t>(dim)] = stride;
  return view;
}
TensorView on_card(TensorView view) {
  view.device = Device::cuda(0);
  return view;
}

void expect_forward_errors(const std::vector<BadCall>& table) {
  for (const BadCall& bad : table) {
    AttentionCall call;
    bad.spoil(call);
    call.o.poison();
    expect_error("[attention.forward] " + bad.text, bad.code, [&] { call.plan.forward(call.f, call.workspace); });
    EXPECT_TRUE(std::isnan(call.o.at(0))) << "ran in spite of: " << bad.text;
  }
}

TEST(AttentionErrors, Inputs_sanitize) {
  using C = AttentionCall;
  expect_forward_errors({
      {[](C& c) { c.f.q = {}; }, "q: expected [any, any, 4, 8] f32 cpu, got not given"},
      {[](C& c) { c.f.q = c.other; }, "q: expected [any, any, 4, 8] f32 cpu, got [2, 5, 9] f32 cpu"},
      {[](C& c) {
         c.f.q = TensorView(nullptr, DType::f32, {2, 5, 4, 8});
       },
       "q: expected memory for [2, 5, 4, 8] f32 cpu, got a null pointer"},
      {[](C& c) {
         c.f.q = TensorView(c.q.view().data, DType::f16, {2, 5, 4, 8});
       },
       "q: expected [any, any, 4, 8] f32 cpu, got [2, 5, 4, 8] f16 cpu", ErrorCode::type_mismatch},
      {[](C& c) { c.f.q = on_card(c.q); }, "q: expected [any, any, 4, 8] f32 cpu, got [2, 5, 4, 8] f32 cuda:0",
       ErrorCode::type_mismatch},
      {[](C& c) { c.f.q = strided(c.wide.view().narrow(3, 0, 8).narrow(1, 0, 5), 3, 2); },
       "q: expected a last dimension whose stride is 1, got stride 2"},
      {[](C& c) { c.f.q = c.wide.view().narrow(3, 0, 8); }, "q: expected at most 5 queries, got 9"},
      {[](C& c) {
         c.f.q = TensorView(c.wide.view().data, DType::f32, {3, 5, 4, 8});
       },
       "k: expected [3, any, 2, 8] f32 cpu, got [2, 7, 2, 8] f32 cpu"},
      {[](C& c) { c.f.k = {}; }, "k: expected [2, any, 2, 8] f32 cpu, got not given"},
      {[](C& c) { c.f.k = c.q; }, "k: expected [2, any, 2, 8] f32 cpu, got [2, 5, 4, 8] f32 cpu"},
      {[](C& c) {
         c.f.k = TensorView(c.wide.view().data, DType::f32, {2, 8, 2, 8});
       },
       "v: expected [2, 8, 2, 6] f32 cpu, got [2, 7, 2, 6] f32 cpu"},
      {[](C& c) { c.f.v = {}; }, "v: expected [2, 7, 2, 6] f32 cpu, got not given"},
      {[](C& c) { c.f.v = c.k; }, "v: expected [2, 7, 2, 6] f32 cpu, got [2, 7, 2, 8] f32 cpu"},
      {[](C& c) {
         c.f.k = TensorView(c.wide.view().data, DType::f32, {2, 8, 2, 8});
         c.f.v = TensorView(c.wide.view().data, DType::f32, {2, 8, 2, 6});
       },
       "k: expected at most 7 keys, got 8"},
      {[](C& c) { c.f.query_lengths = {}; }, "query_lengths: expected [2] i32 cpu, got not given"},
      {[](C& c) { c.f.key_lengths = c.slopes; }, "key_lengths: expected [2] i32 cpu, got [4] f32 cpu"},
      {[](C& c) { c.query_lengths.put(1, 6); }, "query_lengths: expected 0 to 5 in row 1, got 6"},
      {[](C& c) { c.query_lengths.put(0, -1); }, "query_lengths: expected 0 to 5 in row 0, got -1"},
      {[](C& c) { c.key_lengths.put(1, 8); }, "key_lengths: expected 0 to 7 in row 1, got 8"},
      {[](C& c) { c.f.cu_queries = c.query_lengths; },
       "cu_queries: expected none, since the description has no cu_queries, got [2] i32 cpu"},
      {[](C& c) { c.f.cu_keys = c.key_lengths; }, "cu_keys: expected none, since the description has no cu_keys, got [2] i32 cpu"},
      {[](C& c) { c.f.alibi_slopes = {}; }, "alibi_slopes: expected [2, 4] f32 cpu, got not given"},
      {[](C& c) { c.f.alibi_slopes = c.slopes.view().narrow(0, 0, 3); }, "alibi_slopes: expected [4] f32 cpu, got [3] f32 cpu"},
      {[](C& c) { c.f.bias = {}; }, "bias: expected [2, 4, 5, 7] f32 cpu, got not given"},
      {[](C& c) { c.f.bias = c.bias.view().narrow(3, 0, 6); }, "bias: expected [2, 4, 5, 7] f32 cpu, got [2, 4, 5, 6] f32 cpu"},
      {[](C& c) { c.f.bias = c.bias.view().narrow(0, 0, 1).narrow(1, 0, 3); },
       "bias: expected [1, 4, 5, 7] f32 cpu, got [1, 3, 5, 7] f32 cpu"},
      {[](C& c) { c.f.status = c.other; }, "status: expected [1] i32 cpu, got [2, 5, 9] f32 cpu"},
  });
}

TEST(AttentionErrors, Outputs_sanitize) {
  using C = AttentionCall;
  expect_forward_errors({
      {[](C& c) { c.f.o = {}; }, "o: expected [2, 5, 4, 6] f32 cpu, got not given"},
      {[](C& c) { c.f.o = c.dq; }, "o: expected [2, 5, 4, 6] f32 cpu, got [2, 5, 4, 8] f32 cpu"},
      {[](C& c) { c.f.o = strided(c.o, 1, 0); }, "o: expected elements that do not overlap, got stride 0 in dimension 1"},
      {[](C& c) {
         c.f.o = TensorView(c.v.view().data, DType::f32, {2, 5, 4, 6});
       },
       "o: expected memory apart from v, got an overlap"},
      {[](C& c) { c.f.lse = {}; }, "lse: expected [2, 4, 5] f32 cpu, got not given"},
      {[](C& c) { c.f.lse = c.other; }, "lse: expected [2, 4, 5] f32 cpu, got [2, 5, 9] f32 cpu"},
      {[](C& c) {
         c.f.lse = TensorView(c.o.view().data, DType::f32, {2, 4, 5});
       },
       "o: expected memory apart from lse, got an overlap"},
      {[](C& c) {
         c.f.lse = TensorView(c.bias.view().data, DType::f32, {2, 4, 5});
       },
       "lse: expected memory apart from bias, got an overlap"},
      {[](C& c) { c.workspace = {}; }, "workspace: expected at least " + std::to_string(C().scratch.bytes()) + " bytes, got 0",
       ErrorCode::out_of_memory},
      {[](C& c) { --c.workspace.bytes; },
       "workspace: expected at least " + std::to_string(C().scratch.bytes()) + " bytes, got " +
           std::to_string(C().scratch.bytes() - 1),
       ErrorCode::out_of_memory},
  });
}

TEST(AttentionErrors, Gradients_sanitize) {
  using C = AttentionCall;
  const std::vector<BadCall> table{
      {[](C& c) { c.b.o = {}; }, "o: expected [2, 5, 4, 6] f32 cpu, got not given"},
      {[](C& c) { c.b.lse = {}; }, "lse: expected [2, 4, 5] f32 cpu, got not given"},
      {[](C& c) { c.b.d_o = c.q; }, "d_o: expected [2, 5, 4, 6] f32 cpu, got [2, 5, 4, 8] f32 cpu"},
      {[](C& c) { c.b.dlse = c.other; }, "dlse: expected [2, 4, 5] f32 cpu, got [2, 5, 9] f32 cpu"},
      {[](C& c) { c.b.dq = c.o; }, "dq: expected [2, 5, 4, 8] f32 cpu, got [2, 5, 4, 6] f32 cpu"},
      {[](C& c) { c.b.dk = c.dq; }, "dk: expected [2, 7, 2, 8] f32 cpu, got [2, 5, 4, 8] f32 cpu"},
      {[](C& c) { c.b.dv = c.dk; }, "dv: expected [2, 7, 2, 6] f32 cpu, got [2, 7, 2, 8] f32 cpu"},
      {[](C& c) { c.b.dbias = c.dbias.view().narrow(0, 0, 1); }, "dbias: expected the shape of bias, got [1, 4, 5, 7] f32 cpu"},
      {[](C& c) { c.b.dq = strided(c.dq, 0, 3); }, "dq: expected elements that do not overlap, got stride 3 in dimension 0"},
      {[](C& c) {
         c.b.dq = TensorView(c.q.view().data, DType::f32, {2, 5, 4, 8});
       },
       "dq: expected memory apart from q, got an overlap"},
      {[](C& c) {
         c.b.dv = TensorView(c.dk.view().data, DType::f32, {2, 7, 2, 6});
       },
       "dk: expected memory apart from dv, got an overlap"},
      {[](C& c) { c.b.dbias = c.b.dbias.narrow(3, 0, 6); }, "dbias: expected [2, 4, 5, 7] f32 cpu, got [2, 4, 5, 6] f32 cpu"},
      {[](C& c) { c.key_lengths.put(0, 8); }, "key_lengths: expected 0 to 7 in row 0, got 8"},
      {[](C& c) { c.workspace = {}; }, "workspace: expected at least " + std::to_string(C().scratch.bytes()) + " bytes, got 0",
       ErrorCode::out_of_memory},
      {[](C& c) {
         c.description.training = false;
         c.plan = AttentionPlan(c.description, {.batch = 2, .queries = 5, .keys = 7});
       },
       "plan: expected a description with training, got one without"},
  };
  for (const BadCall& bad : table) {
    AttentionCall call;
    bad.spoil(call);
    expect_error("[attention.backward] " + bad.text, bad.code, [&] { call.plan.backward(call.b, call.workspace); });
    EXPECT_TRUE(std::isnan(call.dq.at(0))) << "ran in spite of: " << bad.text;
  }
}

/// A packed layer of sequences of 3, 0 and 4 queries and 2, 5 and 0 keys.
struct PackedCall {
  AttentionPlan plan{{.heads = 2, .head_dim = 8, .bias = true, .packed = true, .training = true},
                     {.batch = 3, .queries = 4, .keys = 5, .total_queries = 8, .total_keys = 7}};
  HostTensor q = AttentionCall::drawn({7, 2, 8}), k = AttentionCall::drawn({7, 2, 8}), v = AttentionCall::drawn({7, 2, 8});
  HostTensor o{DType::f32, {7, 2, 8}}, lse{DType::f32, {2, 7}}, dq{DType::f32, {7, 2, 8}},
      bias = AttentionCall::drawn({1, 1, 4, 5});
  HostTensor cu_queries{DType::i32, {4}}, cu_keys{DType::i32, {4}}, more{DType::f32, {9, 2, 8}}, batched{DType::f32, {1, 7, 2, 8}};
  test::Scratch scratch{plan.workspace_bytes()};
  AttentionForward f{.q = q, .k = k, .v = v, .o = o, .lse = lse};
  AttentionBackward b{.q = q, .k = k, .v = v, .o = o, .lse = lse};

  PackedCall() {
    cu_queries.set({0, 3, 3, 7}), cu_keys.set({0, 2, 7, 7});
    f.cu_queries = b.cu_queries = cu_queries, f.cu_keys = b.cu_keys = cu_keys, f.bias = b.bias = bias;
    plan.forward(f, {scratch.data(), scratch.bytes()});
    b.d_o = q, b.dq = dq;
    o.poison();
  }
  void forward() const { plan.forward(f, {scratch.data(), scratch.bytes()}); }
  void backward() const { plan.backward(b, {scratch.data(), scratch.bytes()}); }
};

TEST(AttentionErrors, PackedBatches_sanitize) {
  using C = PackedCall;
  const std::vector<std::pair<std::string, std::function<void(C&)>>> table{
      {"q: expected [any, 2, 8] f32 cpu, got [1, 7, 2, 8] f32 cpu", [](C& c) { c.f.q = c.b.q = c.batched; }},
      {"q: expected at most 8 rows, got 9", [](C& c) { c.f.q = c.b.q = c.more; }},
      {"v: expected [9, 2, 8] f32 cpu, got [7, 2, 8] f32 cpu", [](C& c) { c.f.k = c.b.k = c.more; }},
      {"k: expected at most 7 rows, got 9", [](C& c) { c.f.k = c.b.k = c.f.v = c.b.v = c.more; }},
      {"cu_queries: expected [any] i32 cpu, got not given", [](C& c) { c.f.cu_queries = c.b.cu_queries = {}; }},
      {"cu_queries: expected one start more than sequences, got none",
       [](C& c) { c.f.cu_queries = c.b.cu_queries = c.cu_queries.view().narrow(0, 0, 0); }},
      {"cu_keys: expected [4] i32 cpu, got not given", [](C& c) { c.f.cu_keys = c.b.cu_keys = {}; }},
      {"cu_keys: expected [4] i32 cpu, got [3] i32 cpu",
       [](C& c) { c.f.cu_keys = c.b.cu_keys = c.cu_keys.view().narrow(0, 0, 3); }},
      {"cu_queries: expected 0 as the first, got 1", [](C& c) { c.cu_queries.put(0, 1); }},
      {"cu_queries: expected 3 or more at position 2, since it may not decrease, got 2", [](C& c) { c.cu_queries.put(2, 2); }},
      {"cu_keys: expected 2 or more at position 2, since it may not decrease, got -7", [](C& c) { c.cu_keys.put(2, -7); }},
      {"cu_queries: expected at most 4 rows in sequence 0, got 5", [](C& c) { c.cu_queries.put(1, 5); }},
      {"cu_keys: expected at most 5 rows in sequence 1, got 6", [](C& c) { c.cu_keys.put(1, 1); }},
      {"cu_queries: expected the 7 rows of q as the last, got 6", [](C& c) { c.cu_queries.put(3, 6); }},
      {"cu_keys: expected the 7 rows of k as the last, got 8", [](C& c) { c.cu_keys.put(3, 8); }},
      {"bias: expected [1, 1, 4, 5] f32 cpu, got [1, 1, 3, 5] f32 cpu",
       [](C& c) { c.f.bias = c.b.bias = c.bias.view().narrow(2, 0, 3); }},
      {"o: expected [7, 2, 8] f32 cpu, got [9, 2, 8] f32 cpu", [](C& c) { c.f.o = c.more, c.b.o = c.more; }},
      {"lse: expected [2, 7] f32 cpu, got [7, 2] f32 cpu",
       [](C& c) { c.f.lse = c.lse.view().transposed(0, 1), c.b.lse = c.f.lse; }},
  };
  for (const auto& [text, spoil] : table) {
    C call;
    spoil(call);
    EXPECT_EQ(error_of([&] { call.forward(); }), "[attention.forward] " + text);
    EXPECT_EQ(error_of([&] { call.backward(); }), "[attention.backward] " + text);
    EXPECT_TRUE(std::isnan(call.o.at(0)) && std::isnan(call.dq.at(0))) << "ran in spite of: " << text;
  }
  C call;
  call.cu_keys.put(3, 6);
  call.f.cu_queries = call.f.cu_queries.narrow(0, 0, 4);
  EXPECT_EQ(error_of([&] { call.forward(); }),
            "[attention.forward] cu_keys: expected 7 or more at position 3, since it may not decrease, got 6");
}

/// What the description does not announce must not come.
TEST(AttentionErrors, UnannouncedInputs_sanitize) {
  const AttentionPlan plan({.heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6, .training = true},
                           {.batch = 2, .queries = 5, .keys = 7});
  AttentionCall call;
  const std::vector<std::pair<std::string, std::function<void(AttentionForward&)>>> table{
      {"query_lengths: expected none, since the description has no query_lengths, got [2] i32 cpu",
       [&](AttentionForward& f) { f.query_lengths = call.query_lengths; }},
      {"key_lengths: expected none, since the description has no key_lengths, got [2] i32 cpu",
       [&](AttentionForward& f) { f.key_lengths = call.key_lengths; }},
      {"alibi_slopes: expected none, since the description has no alibi_slopes, got [4] f32 cpu",
       [&](AttentionForward& f) { f.alibi_slopes = call.slopes; }},
      {"bias: expected none, since the description has no bias, got [2, 4, 5, 7] f32 cpu",
       [&](AttentionForward& f) { f.bias = call.bias; }},
  };
  for (const auto& [text, spoil] : table) {
    AttentionForward f{.q = call.q, .k = call.k, .v = call.v, .o = call.o, .lse = call.lse};
    spoil(f);
    EXPECT_EQ(error_of([&] { plan.forward(f, call.workspace); }), "[attention.forward] " + text);
  }
}

}  // namespace
}  // namespace everglow
