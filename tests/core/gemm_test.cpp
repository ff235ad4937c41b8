// Matrix products: exact on small integers for every instruction set, size, transpose, stride and thread count, with NaN around
// every matrix; the same bits for any thread count, m and n; and the oneDNN adapter against our own kernel.
#include "gemm/gemm.hpp"
#include "core/parallel.hpp"
#include "gemm/onednn.hpp"

#include <everglow/error.hpp>

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace everglow {
namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (const Isa isa : every_isa)
    if (isa <= best_isa()) out.push_back(isa);
  return out;
}

/// A matrix with NaN in the padding of every row, and nothing behind the last element that a sanitizer would not see.
struct Matrix {
  std::int64_t rows, columns, stride;
  std::vector<float> memory;
  Matrix(std::int64_t r, std::int64_t c, std::int64_t padding)
      : rows(r), columns(c), stride(c + padding), memory(static_cast<std::size_t>(r > 0 ? (r - 1) * stride + c : 0), nan_value) {}
  float& at(std::int64_t r, std::int64_t c) { return memory[static_cast<std::size_t>(r * stride + c)]; }
  float at(std::int64_t r, std::int64_t c) const { return memory[static_cast<std::size_t>(r * stride + c)]; }
  template <class Draw>
  void fill(const Draw& draw) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) at(r, c) = draw();
  }
  bool padding_intact() const {
    for (std::int64_t r = 0; r + 1 < rows; ++r)
      for (std::int64_t c = columns; c < stride; ++c)
        if (!std::isnan(at(r, c))) return false;
    return true;
  }
};

struct Shape {
  std::int64_t m, n, k;
};
struct Form {
  bool transpose_a = false, transpose_b = false, bias = false, accumulate = false;
  std::int64_t padding = 0;
};

struct Product {
  Shape shape;
  Form form;
  Matrix a, b, c, bias;
  Product(const Shape& s, const Form& f, bool integers)
      : shape(s),
        form(f),
        a(f.transpose_a ? s.k : s.m, f.transpose_a ? s.m : s.k, f.padding),
        b(f.transpose_b ? s.n : s.k, f.transpose_b ? s.k : s.n, f.padding),
        c(s.m, s.n, f.padding),
        bias(1, s.n, 0) {
    std::mt19937 random(static_cast<unsigned>(s.m * 7919 + s.n * 104729 + s.k));
    std::uniform_int_distribution<int> whole(-3, 3);
    std::uniform_real_distribution<float> real(-1, 1);
    const auto draw = [&] { return integers ? static_cast<float>(whole(random)) : real(random); };
    a.fill(draw), b.fill(draw), bias.fill(draw);
    if (f.accumulate) c.fill(draw);
  }
  Gemm gemm(Matrix& out) const {
    return {.transpose_a = form.transpose_a,
            .transpose_b = form.transpose_b,
            .m = shape.m,
            .n = shape.n,
            .k = shape.k,
            .a = a.memory.data(),
            .lda = a.stride,
            .b = b.memory.data(),
            .ldb = b.stride,
            .c = out.memory.data(),
            .ldc = out.stride,
            .bias = form.bias ? bias.memory.data() : nullptr,
            .accumulate = form.accumulate};
  }
  Matrix expected() const {
    Matrix out = c;
    for (std::int64_t i = 0; i < shape.m; ++i)
      for (std::int64_t j = 0; j < shape.n; ++j) {
        double sum = (form.accumulate ? c.at(i, j) : 0.0F) + (form.bias ? bias.at(0, j) : 0.0F);
        for (std::int64_t l = 0; l < shape.k; ++l)
          sum += double{form.transpose_a ? a.at(l, i) : a.at(i, l)} * double{form.transpose_b ? b.at(j, l) : b.at(l, j)};
        out.at(i, j) = static_cast<float>(sum);
      }
    return out;
  }
};

/// The first element that differs, or nothing.
std::string difference(const Matrix& actual, const Matrix& expected) {
  for (std::int64_t i = 0; i < actual.rows; ++i)
    for (std::int64_t j = 0; j < actual.columns; ++j)
      if (!(actual.at(i, j) == expected.at(i, j)))
        return "at " + std::to_string(i) + ", " + std::to_string(j) + ": expected " + std::to_string(expected.at(i, j)) + ", got " +
               std::to_string(actual.at(i, j));
  return actual.padding_intact() ? "" : "the padding of C was written";
}

std::string describe(const Product& p) {
  return std::to_string(p.shape.m) + " x " + std::to_string(p.shape.n) + " x " + std::to_string(p.shape.k) +
         (p.form.transpose_a ? " ta" : "") + (p.form.transpose_b ? " tb" : "") + (p.form.bias ? " bias" : "") +
         (p.form.accumulate ? " accumulate" : "");
}

void check_exact(const Product& p, const std::vector<Isa>& sets, bool library) {
  SCOPED_TRACE(describe(p));
  const Matrix expected = p.expected();
  for (const Isa isa : sets) {
    Matrix c = p.c;
    gemm(p.gemm(c), {.threads = 2, .isa = isa, .library = library});
    EXPECT_EQ("", difference(c, expected)) << name(isa);
  }
}

const std::vector<Form> forms = {{},
                                 {.transpose_a = true, .padding = 3},
                                 {.transpose_b = true, .bias = true, .padding = 1},
                                 {.transpose_a = true, .transpose_b = true, .accumulate = true},
                                 {.bias = true, .accumulate = true, .padding = 5}};

// Sums of at most 9 k stay below 2^24, so every order is exact.
TEST(Gemm, SmallIntegersAreExactInEverySize_sanitize) {
  for (std::int64_t size = 1; size <= 70; ++size) {
    const Form& form = forms[static_cast<std::size_t>(size) % forms.size()];
    check_exact(Product({size, 71 - size, 5}, form, true), isas(), false);
    check_exact(Product({7, size, 33}, form, true), isas(), false);
    check_exact(Product({size, 9, size}, form, true), isas(), false);
  }
}

TEST(Gemm, SmallIntegersAreExactInEveryForm_sanitize) {
  for (const Form& form : forms)
    for (const Shape& shape :
         {Shape{1, 1, 1}, {1, 129, 65}, {2, 131, 33}, {3, 200, 17}, {4, 40, 257}, {15, 33, 300}, {29, 65, 127}})
      check_exact(Product(shape, form, true), isas(), false);
}

TEST(Gemm, SmallIntegersAreExactAcrossCacheBlocks) {
  for (const Form& form : forms)
    for (const Shape& shape : {Shape{127, 129, 257}, {257, 127, 129}, {470, 1061, 270}, {5, 2100, 530}})
      check_exact(Product(shape, form, true), isas(), false);
}

TEST(Gemm, EmptySizesWriteBiasOrNothing_sanitize) {
  for (const Form& form : forms) {
    check_exact(Product({0, 5, 3}, form, true), isas(), false);
    check_exact(Product({5, 0, 3}, form, true), isas(), false);
    check_exact(Product({5, 3, 0}, form, true), isas(), false);
    check_exact(Product({5, 3, 0}, form, true), {best_isa()}, true);
  }
}

TEST(Gemm, OneDnnIsExactOnSmallIntegers) {
  if (!has_onednn()) GTEST_SKIP() << "built without oneDNN";
  for (const Form& form : forms)
    for (const Shape& shape : {Shape{1, 1, 1}, {1, 129, 65}, {17, 31, 33}, {127, 129, 257}, {257, 127, 129}}) {
      const Product p(shape, form, true);
      SCOPED_TRACE(describe(p));
      const Matrix expected = p.expected();
      for (const int threads : {1, 2, 3}) {
        Matrix c = p.c;
        const Gemm product = p.gemm(c);
        const bool column = (product.transpose_a && product.m == 1) || product.n == 1 || product.k == 1;
        ASSERT_TRUE(onednn_accepts(product) || column) << "only a column with gaps may be left to our kernel";
        if (!onednn_accepts(product)) continue;
        if (!onednn_gemm(product, threads)) continue;  // a kernel that is declined
        EXPECT_EQ("", difference(c, expected));
      }
      check_exact(p, {best_isa()}, true);
    }
}

TEST(Gemm, TheCacheOfPrimitivesMakesRoom) {
  if (!has_onednn()) GTEST_SKIP() << "built without oneDNN";
  for (int round = 0; round < 2; ++round)
    for (std::int64_t size = 1; size <= 270; ++size) {
      const Product p({1, size, 2}, {}, true);
      Matrix c = p.c;
      if (!onednn_gemm(p.gemm(c), 1)) continue;
      EXPECT_EQ("", difference(c, p.expected()));
    }
}

/// With real numbers every order of k gives other bits, so equal bits mean an equal order.
TEST(Gemm, BitsDoNotDependOnThreadsRowsOrColumns_sanitize) {
  for (const Isa isa : isas())
    for (const Form& form : {Form{}, Form{.transpose_a = true}, Form{.transpose_b = true, .bias = true}}) {
      SCOPED_TRACE(name(isa));
      const Product p({95, 530, 600}, form, false);
      Matrix whole = p.c;
      gemm(p.gemm(whole), {.threads = 1, .isa = isa, .library = false});
      for (const int threads : {2, 3, 7}) {
        Matrix c = p.c;
        gemm(p.gemm(c), {.threads = threads, .isa = isa, .library = false});
        EXPECT_EQ("", difference(c, whole));
      }
      Matrix pieces = p.c;
      for (std::int64_t i = 0; i < p.shape.m;)
        for (const std::int64_t rows : {1, 2, 3, 4, 13}) {
          Gemm part = p.gemm(pieces);
          part.m = std::min(rows, p.shape.m - i);
          if (part.m <= 0) break;
          part.a = p.a.memory.data() + (form.transpose_a ? i : i * part.lda);
          part.c = pieces.memory.data() + i * part.ldc;
          gemm(part, {.threads = 2, .isa = isa, .library = false});
          i += part.m;
        }
      EXPECT_EQ("", difference(pieces, whole));
    }
}

TEST(Gemm, PackedProductsEqualPlainOnes_sanitize) {
  for (const Isa isa : isas())
    for (const bool transpose_b : {false, true})
      for (const bool accumulate : {false, true})
        for (const std::int64_t m : {0, 1, 2, 3, 4, 6, 13, 14, 15, 16, 33, 64, 65, 150})
          for (const Shape& s : {Shape{m, 1, 1}, {m, 129, 300}, {m, 300, 40}, {m, 70, 0}, {m, 33, 2900}}) {
            const Product p(s, {.transpose_b = transpose_b, .accumulate = accumulate, .padding = 2}, false);
            SCOPED_TRACE(std::string(name(isa)) + " " + describe(p));
            Matrix whole = p.c, c = p.c;
            gemm(p.gemm(whole), {.threads = 1, .isa = isa, .library = false});
            std::vector<float> packed(packed_matrix_bytes(isa, s.k, s.n) / sizeof(float), nan_value);
            pack_matrix(isa, transpose_b, p.b.memory.data(), p.b.stride, s.k, s.n, packed.data());
            const std::int64_t middle = std::min(s.n, s.n / 2 / packed_panel_columns(isa) * packed_panel_columns(isa));
            for (const auto& [begin, end] : {std::pair{std::int64_t{0}, middle}, std::pair{middle, s.n}})
              gemm_packed(isa, s.m, s.k, s.n, p.a.memory.data(), p.a.stride, packed.data(), begin, end, c.memory.data(), c.stride,
                          accumulate);
            EXPECT_EQ("", difference(c, whole));
          }
}

/// Threads that wait for one another call it, so it may not throw; nor does it keep memory, whatever the sizes.
TEST(Gemm, PackedProductsNeitherAllocateNorThrow) {
  static_assert(noexcept(gemm_packed(Isa::portable, 0, 0, 0, nullptr, 0, nullptr, 0, 0, nullptr, 0, false)));
  constexpr std::int64_t m = 700, k = 1000, n = 40;
  std::vector<float> a(m * k, 1), b(k * n, 1), c(m * n);
  std::vector<float> packed(packed_matrix_bytes(best_isa(), k, n) / sizeof(float));
  pack_matrix(best_isa(), false, b.data(), n, k, n, packed.data());
  std::thread([&] {
    const auto held = [] {
      const struct mallinfo2 info = mallinfo2();
      return info.uordblks + info.hblkhd;
    };
    const std::size_t before = held();
    gemm_packed(best_isa(), m, k, n, a.data(), k, packed.data(), 0, n, c.data(), n, false);
    EXPECT_EQ(held(), before);
  }).join();
  EXPECT_EQ(c, std::vector<float>(m * n, k));
}

TEST(Gemm, FaultsOfTheLibraryAreErrors) {
  if (!has_onednn()) GTEST_SKIP() << "oneDNN is not built";
  std::vector<float> memory(64);
  const float* in = memory.data();
  try {  // rows that overlap, which onednn_accepts keeps away
    onednn_gemm({.m = 4, .n = 4, .k = 4, .a = in, .lda = 1, .b = in + 16, .ldb = 4, .c = memory.data() + 32, .ldc = 4}, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[gemm] expected oneDNN to multiply [4, 4] by [4, 4], got: "), std::string::npos)
        << error.what();
  }
}

TEST(Gemm, FinishSeesEveryElementOnceWhenItIsComplete_sanitize) {
  for (const bool library : {false, true}) {
    const Product p({70, 300, 280}, {.bias = true}, true);
    Matrix c = p.c;
    Gemm product = p.gemm(c);
    const auto negate = [](const void* context, const GemmBlock& block) {
      auto& matrix = *const_cast<Matrix*>(static_cast<const Matrix*>(context));
      const auto* values = static_cast<const float*>(block.values);
      for (std::int64_t i = 0; i < block.rows; ++i)
        for (std::int64_t j = 0; j < block.columns; ++j)
          matrix.at(block.row + i, block.column + j) = 1000 - values[i * block.stride + j];
    };
    product.finish = {negate, &c};
    gemm(product, {.threads = 2, .isa = best_isa(), .library = library});
    Matrix expected = p.expected();
    for (float& value : expected.memory) value = 1000 - value;
    EXPECT_EQ("", difference(c, expected));
  }
}

TEST(Parallel, AnExceptionReachesTheCallerFromAnyThread) {
  for (const int threads : {1, 2, 3}) {
    EXPECT_THROW(parallel_tasks(threads, 9,
                                [](std::int64_t i) {
                                  if (i == 7) throw 7;
                                }),
                 int);
    EXPECT_THROW(parallel_ranges(threads, 9, 1,
                                 [](std::int64_t, std::int64_t end) {
                                   if (end == 9) throw 7;
                                 }),
                 int);
  }
}

}  // namespace
}  // namespace everglow
