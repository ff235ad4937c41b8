// Attention over tensors whose rows, heads and batches lie further apart than 2^31 elements (FA#772, FA#47, pytorch#190857,
// xformers#788, fla#1080): the same bits as from dense ones.
#include "ops/small_layers.hpp"
#include "support/sparse.hpp"

#include <everglow/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>

namespace everglow {
namespace {

using test::HostTensor;

constexpr std::int64_t far = (std::int64_t{1} << 31) + 24;

/// A tensor with these strides in memory of its own.
class SparseTensor {
 public:
  SparseTensor(DType dtype, std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> strides)
      : view_(nullptr, dtype, shape) {
    std::copy(strides.begin(), strides.end(), view_.strides.begin());
    std::int64_t last = 0;
    for (int i = 0; i < view_.rank; ++i) last += (view_.shape[i] - 1) * view_.strides[i];
    memory_ = std::make_shared<test::SparseMemory>(static_cast<std::size_t>(last + 1) * size_of(dtype));
    if (memory_->data() == nullptr) throw std::bad_alloc();
    view_.data = memory_->data();
  }
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }

 private:
  std::shared_ptr<test::SparseMemory> memory_;
  TensorView view_;
};

/// All tensors of a run with every option that brings one, dense or far apart.
template <class Tensor>
struct Tensors {
  Tensor q, k, v, o, d_o, dq, dk, dv, lse, dlse, bias, dbias, slopes;

  void fill() const {
    std::uint64_t stream = 0;
    for (const Tensor* t : {&q, &k, &v, &d_o, &dlse, &bias, &slopes}) {
      const TensorView view = *t;
      HostTensor drawn(view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
      drawn.uniform(++stream, -1, 1);
      test::scattered(view, drawn.values());
    }
  }
  std::vector<std::vector<double>> run(const AttentionPlan& plan) const {
    const test::Scratch scratch(plan.workspace_bytes());
    AttentionForward f{.q = q, .k = k, .v = v, .o = o, .lse = lse};
    f.alibi_slopes = slopes, f.bias = bias;
    plan.forward(f, {scratch.data(), scratch.bytes()});
    AttentionBackward b{.q = q, .k = k, .v = v, .o = o, .lse = lse};
    b.alibi_slopes = slopes, b.bias = bias, b.d_o = d_o, b.dlse = dlse;
    b.dq = dq, b.dk = dk, b.dv = dv, b.dbias = dbias;
    plan.backward(b, {scratch.data(), scratch.bytes()});
    std::vector<std::vector<double>> out;
    for (const Tensor* t : {&o, &lse, &dq, &dk, &dv, &dbias}) out.push_back(test::gathered(TensorView(*t)));
    return out;
  }
};

void expect_same_far_apart(std::int64_t queries, std::int64_t keys, DType dtype) {
  const AttentionDescription d{
      .heads = 2, .head_dim = 8, .causal = true, .alibi = true, .bias = true, .dtype = dtype, .training = true};
  const AttentionSizes s{.batch = 2, .queries = queries, .keys = keys};
  const auto dense = [&](DType type, std::initializer_list<std::int64_t> shape) { return HostTensor(type, shape); };
  const Tensors<HostTensor> near{.q = dense(dtype, {2, queries, 2, 8}),
                                 .k = dense(dtype, {2, keys, 2, 8}),
                                 .v = dense(dtype, {2, keys, 2, 8}),
                                 .o = dense(dtype, {2, queries, 2, 8}),
                                 .d_o = dense(dtype, {2, queries, 2, 8}),
                                 .dq = dense(dtype, {2, queries, 2, 8}),
                                 .dk = dense(dtype, {2, keys, 2, 8}),
                                 .dv = dense(dtype, {2, keys, 2, 8}),
                                 .lse = dense(DType::f32, {2, 2, queries}),
                                 .dlse = dense(DType::f32, {2, 2, queries}),
                                 .bias = dense(dtype, {2, 2, queries, keys}),
                                 .dbias = dense(dtype, {2, 2, queries, keys}),
                                 .slopes = dense(DType::f32, {2, 2})};
  // Each dimension is the widest of some tensor: rows, heads, batches; queries and keys of a bias.
  const Tensors<SparseTensor> apart{.q = {dtype, {2, queries, 2, 8}, {16, far, 8, 1}},
                                    .k = {dtype, {2, keys, 2, 8}, {16, far, 8, 1}},
                                    .v = {dtype, {2, keys, 2, 8}, {far, 16, 8, 1}},
                                    .o = {dtype, {2, queries, 2, 8}, {16 * queries, 16, far, 1}},
                                    .d_o = {dtype, {2, queries, 2, 8}, {far, 16, 8, 1}},
                                    .dq = {dtype, {2, queries, 2, 8}, {16, far, 8, 1}},
                                    .dk = {dtype, {2, keys, 2, 8}, {16, far, 8, 1}},
                                    .dv = {dtype, {2, keys, 2, 8}, {16 * keys, 16, far, 1}},
                                    .lse = {DType::f32, {2, 2, queries}, {2, 1, far}},
                                    .dlse = {DType::f32, {2, 2, queries}, {queries, far, 1}},
                                    .bias = {dtype, {2, 2, queries, keys}, {2 * queries, queries, 1, far}},
                                    .dbias = {dtype, {2, 2, queries, keys}, {2 * keys, keys, far, 1}},
                                    .slopes = {DType::f32, {2, 2}, {1, far}}};
  near.fill(), apart.fill();
  for (const auto& row : test::accepting_rows<AttentionPlan>("attention", d, s)) {
    SCOPED_TRACE(row);
    const AttentionPlan plan(d, s, Device::cpu(), {.threads = 2, .force = row});
    EXPECT_EQ(near.run(plan), apart.run(plan));
  }
}

TEST(AttentionOffsets, PastTwoToThe31_sanitize) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(std::string(name(dtype)));
    expect_same_far_apart(18, 20, dtype);
    expect_same_far_apart(1, 30, dtype);
  }
}

}  // namespace
}  // namespace everglow
