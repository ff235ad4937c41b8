// The kernels beside odd products, on tensors that begin and end anywhere: every byte around them is looked at, and
// compute-sanitizer finds what is read past them.
#include "cuda/common/odd.hpp"

#include "cuda/card.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>

#include <random>
#include <vector>

namespace everglow {
namespace {

using cuda::Matrix;
class CudaOdd : public test::OnCard {};

/// Whole numbers -2 ... 2 in f16 or f32, `first` elements into a block of memory that ends with them.
class Block {
 public:
  Block(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t first, std::uint32_t seed)
      : dtype_(dtype), first_(first), rows_(rows), columns_(columns), stride_(stride) {
    const std::int64_t elements = first + (rows > 0 ? (rows - 1) * stride + columns : 0);
    values_.assign(static_cast<std::size_t>(elements), outside);
    std::mt19937 random(seed);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) at(r, c) = static_cast<float>(static_cast<int>(random() % 5) - 2);
    memory_ = Buffer(static_cast<std::size_t>(elements) * size_of(dtype), Device::cuda(0));
    send();
  }
  float& at(std::int64_t r, std::int64_t c) { return values_[static_cast<std::size_t>(first_ + r * stride_ + c)]; }
  Matrix matrix() const {
    void* const data = static_cast<char*>(memory_.data()) + static_cast<std::size_t>(first_) * size_of(dtype_);
    return {data, rows_, columns_, stride_, 1, dtype_};
  }
  /// The elements as they lie on the card; true where those outside of the matrix are as they were.
  bool fetch() {
    std::vector<std::uint16_t> halves(values_.size());
    const auto n = static_cast<std::int64_t>(values_.size());
    const TensorView there(memory_.data(), dtype_, {n}, Device::cuda(0));
    if (dtype_ == DType::f32)
      copy(TensorView(values_.data(), DType::f32, {n}), there);
    else
      copy(TensorView(halves.data(), DType::f16, {n}), there);
    for (std::size_t i = 0; i < values_.size() && dtype_ != DType::f32; ++i) values_[i] = to_float(Half{halves[i]});
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t e = i - first_;
      if ((e < 0 || e % stride_ >= columns_) && values_[static_cast<std::size_t>(i)] != outside) return false;
    }
    return true;
  }

 private:
  static constexpr float outside = 1000;
  void send() const {
    const auto n = static_cast<std::int64_t>(values_.size());
    const TensorView there(memory_.data(), dtype_, {n}, Device::cuda(0));
    std::vector<std::uint16_t> halves;
    for (const float value : values_) halves.push_back(to_half(value).bits);
    if (dtype_ == DType::f32)
      copy(there, ConstTensorView(values_.data(), DType::f32, {n}));
    else
      copy(there, ConstTensorView(halves.data(), DType::f16, {n}));
  }
  DType dtype_;
  std::int64_t first_, rows_, columns_, stride_;
  std::vector<float> values_;
  Buffer memory_;
};

TEST_F(CudaOdd, MoveTakesRowsOfAnyAlignment_sanitize) {
  for (const DType dtype : {DType::f16, DType::f32})
    for (const std::int64_t columns : {1, 7, 8, 23, 40, 259})
      for (std::int64_t from = 0; from < 8; ++from)
        for (const std::int64_t to : {0, 1, 4, 7})
          for (const std::int64_t more : {0, 3}) {
            SCOPED_TRACE(testing::Message() << name(dtype) << ' ' << columns << " from " << from << " to " << to << " more "
                                            << more);
            Block a(dtype, 3, columns, columns + from % 3, from, 1), b(dtype, 3, columns, columns, to, 2);
            Block c(dtype, 3 + more, columns + more, columns + more + to % 2, to, 3);
            const cuda::Move all[] = {{b.matrix(), c.matrix()}, {a.matrix(), c.matrix()}};
            cuda::move({all, 1}, nullptr), cuda::move({all + 1, 1}, nullptr);
            EXPECT_TRUE(c.fetch()) << "something beside the rows was written";
            bool same = true;
            for (std::int64_t r = 0; r < 3 + more; ++r)
              for (std::int64_t x = 0; x < columns + more; ++x)
                same = same && c.at(r, x) == (r < 3 && x < columns ? a.at(r, x) : 0.0F);
            EXPECT_TRUE(same);
          }
}

TEST_F(CudaOdd, SeveralMovesAreOneLaunch_sanitize) {
  Block a(DType::f16, 5, 33, 33, 1, 1), b(DType::f16, 70, 9, 9, 0, 2), c(DType::f16, 1, 300, 300, 3, 3);
  Block to_a(DType::f16, 5, 40, 64, 0, 4), to_b(DType::f16, 72, 16, 16, 0, 5), to_c(DType::f16, 1, 300, 300, 0, 6);
  const cuda::Move all[] = {{a.matrix(), to_a.matrix()}, {b.matrix(), to_b.matrix()}, {c.matrix(), to_c.matrix()}};
  cuda::move(all, nullptr);
  ASSERT_TRUE(to_a.fetch() && to_b.fetch() && to_c.fetch());
  for (std::int64_t x = 0; x < 40; ++x) EXPECT_EQ(to_a.at(4, x), x < 33 ? a.at(4, x) : 0);
  for (std::int64_t x = 0; x < 16; ++x) {
    EXPECT_EQ(to_b.at(69, x), x < 9 ? b.at(69, x) : 0);
    EXPECT_EQ(to_b.at(71, x), 0);
  }
  for (std::int64_t x = 0; x < 300; ++x) EXPECT_EQ(to_c.at(0, x), c.at(0, x));
}

/// Narrow rests of all three sizes, whose sums of whole numbers are exact.
TEST_F(CudaOdd, NarrowRestsAreExact_sanitize) {
  for (const DType dtype : {DType::f16, DType::f32})
    for (const std::int64_t few : {1, 4, 7})
      for (const std::int64_t k : {1, 16, 37, 300})
        for (const std::int64_t first : {0, 1, 8}) {
          SCOPED_TRACE(testing::Message() << name(dtype) << ' ' << few << " of " << k << " from " << first);
          constexpr std::int64_t n = 45;
          // c[n, few] = a[n, k] b[few, k]ᵀ + bias
          Block a(dtype, n, k, k + first, first, 1), b(dtype, few, k, k + first, first, 2), bias(dtype, 1, few, few, 0, 3);
          Block c(dtype, n, few, few + 2, first, 4), z(dtype, n, few, few, 0, 5);
          cuda::multiply_narrow({.a = a.matrix(),
                                 .b = b.matrix().transposed(),
                                 .bias = bias.matrix(),
                                 .c = c.matrix(),
                                 .z = z.matrix(),
                                 .activation = Activation::relu},
                                {}, nullptr);
          // sums[few, n] += weights[k, few]ᵀ rows[k, n], and those of the weights
          Block weights(dtype, k, few, few + first, first, 6), rows(dtype, k, n, n + first, first, 7);
          Block sums(DType::f32, few, n, n + 1, 0, 8), old_sums(DType::f32, few, n, n + 1, 0, 8);
          Block ones(DType::f32, 1, few, few, 0, 9), old_ones(DType::f32, 1, few, few, 0, 9);
          cuda::sum_weighted({weights.matrix(), rows.matrix(), sums.matrix(), ones.matrix(), true}, {}, nullptr);
          // out[k, n] = wide[k, n] + weights[k, few] terms[few, n]
          Block wide(DType::f32, k, 48, 48, 0, 10), terms(dtype, few, n, n + first, first, 11),
              out(dtype, k, n, n + first, first, 12);
          cuda::add_narrow({wide.matrix().part_of_columns(0, n), weights.matrix(), terms.matrix(), out.matrix()}, nullptr);
          ASSERT_TRUE(c.fetch() && z.fetch() && sums.fetch() && ones.fetch() && out.fetch());
          bool narrow = true, weighted = true, added = true;
          for (std::int64_t j = 0; j < few; ++j) {
            float all = old_ones.at(0, j);
            for (std::int64_t i = 0; i < k; ++i) all += weights.at(i, j);
            weighted = weighted && ones.at(0, j) == all;
            for (std::int64_t x = 0; x < n; ++x) {
              float dot = bias.at(0, j), sum = old_sums.at(j, x);
              for (std::int64_t i = 0; i < k; ++i) dot += a.at(x, i) * b.at(j, i), sum += weights.at(i, j) * rows.at(i, x);
              narrow = narrow && z.at(x, j) == dot && c.at(x, j) == std::max(dot, 0.0F);
              weighted = weighted && sums.at(j, x) == sum;
            }
          }
          for (std::int64_t i = 0; i < k; ++i)
            for (std::int64_t x = 0; x < n; ++x) {
              float sum = wide.at(i, x);
              for (std::int64_t j = 0; j < few; ++j) sum += weights.at(i, j) * terms.at(j, x);
              added = added && out.at(i, x) == sum;
            }
          EXPECT_TRUE(narrow && weighted && added) << narrow << weighted << added;
        }
}

}  // namespace
}  // namespace everglow
