// Products of two operands of bf16 where the instruction set multiplies pairs of them: exact or within a derived bound, the same
// bits however m, n, k and threads cut them, nothing from outside the operands, subnormal numbers as zero; and widened on a lower
// set.
#include "gemm/gemm.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace everglow {
namespace {

using test::HostTensor;

class GemmPairs : public testing::Test {
 protected:
  void SetUp() override {
    if (best_isa() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no avx512_bf16, or this build is for another processor";
  }
};

/// Rows of bf16 with infinities and NaN behind each.
HostTensor matrix(std::int64_t rows, std::int64_t columns, std::uint64_t stream, DType dtype = DType::bf16) {
  HostTensor out(dtype, {rows, columns}, columns + 3);
  HostTensor whole(dtype, {rows, columns + 3});
  whole.fill(std::numeric_limits<double>::infinity());
  auto* to = static_cast<std::byte*>(out.view().data);
  std::copy_n(static_cast<const std::byte*>(whole.view().data), static_cast<std::size_t>(rows * (columns + 3) - 3) * size_of(dtype),
              to);
  HostTensor drawn(DType::bf16, {rows, columns});
  drawn.uniform(stream, -1, 1);
  out.set(drawn.values());
  return out;
}

struct Shape {
  std::int64_t m, n, k;
};

/// C in f32 of a product of bf16, packed where asked.
HostTensor multiply(const Gemm& product, const GemmContext& context, bool packed = false) {
  HostTensor c(DType::f32, {product.m, product.n}, product.n + 1);
  Gemm p = product;
  p.c = c.view().data, p.ldc = c.view().stride(0);
  const test::Scratch bytes(packed ? packed_matrix_bytes(context.isa, p.k, p.n, p.b_type) : 0);
  if (packed) {
    pack_matrix(context.isa, {.transpose = p.transpose_b, .data = p.b, .dtype = p.b_type, .stride = p.ldb, .k = p.k, .n = p.n},
                bytes.data());
    p.b = bytes.data(), p.packed_b = true;
  }
  gemm(p, context);
  EXPECT_TRUE(c.guards_intact() && bytes.guards_intact());
  return c;
}

/// The operands of a product in all four storage orders.
struct Operands {
  Shape s;
  bool transpose_a, transpose_b;
  HostTensor a, b;
  Operands(const Shape& shape, bool ta, bool tb)
      : s(shape),
        transpose_a(ta),
        transpose_b(tb),
        a(matrix(ta ? s.k : s.m, ta ? s.m : s.k, 1)),
        b(matrix(tb ? s.n : s.k, tb ? s.k : s.n, 2)) {}
  Gemm product() const {
    return {.transpose_a = transpose_a,
            .transpose_b = transpose_b,
            .m = s.m,
            .n = s.n,
            .k = s.k,
            .a = a.view().data,
            .lda = a.view().stride(0),
            .b = b.view().data,
            .ldb = b.view().stride(0),
            .a_type = DType::bf16,
            .b_type = DType::bf16};
  }
  double a_at(std::int64_t i, std::int64_t l) const { return a.at(transpose_a ? l * s.m + i : i * s.k + l); }
  double b_at(std::int64_t l, std::int64_t j) const { return b.at(transpose_b ? j * s.k + l : l * s.n + j); }
};

constexpr GemmContext native{.threads = 1, .isa = Isa::avx512_bf16, .library = false};

/// Products of bf16 are exact in f32, and k sums of them in any order err by at most (k + 1) u Σ|a b| (Higham, section 3.1). What
/// counts as zero is less than 2^-126 of a product, as |a| and |b| are at most 1, or of a sum: (k + 2) 2^-125 in all.
TEST_F(GemmPairs, ResultsAreWithinTheBoundOfASum_sanitize) {
  for (const Shape& s : {Shape{1, 1, 1}, {1, 300, 33}, {3, 70, 2}, {15, 33, 129}, {29, 65, 515}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const Operands o(s, ta, tb);
        for (const bool packed : {false, true}) {
          const HostTensor c = multiply(o.product(), native, packed);
          for (std::int64_t i = 0; i < s.m; ++i)
            for (std::int64_t j = 0; j < s.n; ++j) {
              double exact = 0, magnitude = 0;
              for (std::int64_t l = 0; l < s.k; ++l)
                exact += o.a_at(i, l) * o.b_at(l, j), magnitude += std::fabs(o.a_at(i, l) * o.b_at(l, j));
              const auto k = static_cast<double>(s.k);
              ASSERT_LE(std::fabs(c.at(i * s.n + j) - exact), (k + 1) * 0x1p-24 * magnitude + (k + 2) * 0x1p-125)
                  << s.m << ' ' << s.n << ' ' << s.k << ' ' << ta << tb << packed;
            }
        }
      }
}

/// Whole numbers whose sums are exact in f32: the words of an odd k, its last blocks and the panels at the edges hold what they
/// must.
TEST_F(GemmPairs, EveryDepthAroundAWordAndABlockIsExact_sanitize) {
  for (const std::int64_t k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1025}) {
    Operands o({5, 35, k}, k % 3 == 0, k % 2 == 0);
    o.a.integers(3, -2, 2), o.b.integers(4, -2, 2);
    for (const bool packed : {false, true}) {
      const HostTensor c = multiply(o.product(), native, packed);
      for (std::int64_t i = 0; i < 5; ++i)
        for (std::int64_t j = 0; j < 35; ++j) {
          double exact = 0;
          for (std::int64_t l = 0; l < k; ++l) exact += o.a_at(i, l) * o.b_at(l, j);
          ASSERT_EQ(c.at(i * 35 + j), exact) << k << ' ' << i << ' ' << j << ' ' << packed;
        }
    }
  }
}

TEST_F(GemmPairs, BitsDoNotDependOnThreadsRowsOrColumns) {
  for (const Shape& s : {Shape{470, 70, 1031}, {40, 1100, 300}, {9, 140, 2049}}) {
    const Operands o(s, false, true);
    const std::vector<double> all = multiply(o.product(), native).values();
    for (const int threads : {2, 3, 100}) {
      EXPECT_EQ(multiply(o.product(), {threads, Isa::avx512_bf16, false}).values(), all) << threads;
      EXPECT_EQ(multiply(o.product(), {threads, Isa::avx512_bf16, false}, true).values(), all) << threads << " packed";
    }
    for (const std::int64_t row : {std::int64_t{0}, s.m / 2, s.m - 1}) {
      Gemm one = o.product();
      one.a = static_cast<const BFloat16*>(one.a) + row * one.lda, one.m = 1;
      const std::vector<double> alone = multiply(one, native).values();
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * s.n)) << row;
    }
    Gemm right = o.product();
    const std::int64_t first = s.n - 37;
    right.b = static_cast<const BFloat16*>(right.b) + first * right.ldb, right.n = 37;
    const HostTensor some = multiply(right, native);
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < 37; ++j) ASSERT_EQ(some.at(i * 37 + j), all[static_cast<std::size_t>(i * s.n + first + j)]);
  }
}

/// What a time loop calls: A in f32 that was rounded to bf16, any rows at a time, deeper than one piece of A.
TEST_F(GemmPairs, LoopsMultiplyRoundedStatesWithTheSameBits) {
  for (const Shape& s : {Shape{70, 96, 701}, {1, 64, 33'001}, {3, 33, 129}}) {
    const Operands o(s, false, true);
    const std::vector<double> expected = multiply(o.product(), native).values();
    const HostTensor wide = matrix(s.m, s.k, 1, DType::f32);
    ASSERT_EQ(wide.values(), o.a.values());
    const test::Scratch bytes(packed_matrix_bytes(Isa::avx512_bf16, s.k, s.n, DType::bf16));
    pack_matrix(
        Isa::avx512_bf16,
        {.transpose = true, .data = o.b.view().data, .dtype = DType::bf16, .stride = o.b.view().stride(0), .k = s.k, .n = s.n},
        bytes.data());
    const auto run = [&](const HostTensor& a, bool rounded, const Shape& part) {
      HostTensor c(DType::f32, {s.m, s.n});
      for (std::int64_t i = 0; i < s.m; i += part.m)
        for (std::int64_t j = 0; j < s.n; j += part.n) {
          const std::int64_t lda = a.view().stride(0);
          const auto* data =
              static_cast<const std::byte*>(a.view().data) + i * lda * static_cast<std::int64_t>(size_of(a.view().dtype));
          gemm_packed(Isa::avx512_bf16, {.m = std::min(part.m, s.m - i),
                                         .k = s.k,
                                         .n = s.n,
                                         .a = data,
                                         .a_type = a.view().dtype,
                                         .a_is_bf16 = rounded,
                                         .lda = lda,
                                         .packed = bytes.data(),
                                         .packed_type = DType::bf16,
                                         .column_begin = j,
                                         .column_end = std::min(j + part.n, s.n),
                                         .c = static_cast<float*>(c.view().data) + i * s.n,
                                         .ldc = s.n});
        }
      return c.values();
    };
    for (const Shape& part : {Shape{s.m, s.n, 0}, {1, 64, 0}, {17, 32, 0}}) {
      EXPECT_EQ(run(o.a, false, part), expected) << s.k;
      EXPECT_EQ(run(wide, true, part), expected) << s.k;
    }
    // Rows of f32 widen the weights: the bits of the set below.
    std::vector<double> widened = run(wide, false, {s.m, s.n, 0});
    EXPECT_EQ(widened, multiply(o.product(), {1, Isa::avx512, false}).values());
    EXPECT_TRUE(s.k < 200 || widened != expected) << "sums of other order or pairs; else the test sees nothing";
  }
}

/// As the instruction says: no mode of the thread changes it. The widened product keeps them, so this tells the two apart.
TEST_F(GemmPairs, SubnormalNumbersCountAsZero) {
  const float least = 0x1p-126F;  // the smallest normal number of f32 and bf16
  const auto product = [](float a, float b, float c, Isa isa, DType a_type) {
    HostTensor x(a_type, {1, 1}), w(DType::bf16, {1, 1}), y(DType::f32, {1, 1});
    x.fill(a), w.fill(b), y.fill(c);
    gemm({.m = 1,
          .n = 1,
          .k = 1,
          .a = x.view().data,
          .lda = 1,
          .b = w.view().data,
          .ldb = 1,
          .c = y.view().data,
          .ldc = 1,
          .accumulate = true,
          .a_type = a_type,
          .b_type = DType::bf16},
         {1, isa, false});
    return y.at(0);
  };
  struct Way {
    Isa isa;
    DType a;
    bool keeps;
  };
  for (const auto& [isa, a, keeps] : {Way{Isa::avx512_bf16, DType::bf16, false}, Way{Isa::avx512_bf16, DType::f32, true},
                                      Way{Isa::avx512, DType::bf16, true}, Way{Isa::portable, DType::bf16, true}}) {
    EXPECT_EQ(product(least / 16, 1, 0, isa, a), keeps ? least / 16 : 0) << "an operand";
    EXPECT_EQ(product(1, least / 16, 0, isa, a), keeps ? least / 16 : 0) << "the other";
    EXPECT_EQ(product(1, -least, 1.5F * least, isa, a), keeps ? least / 2 : 0) << "a sum";
    EXPECT_EQ(product(1, 0, least / 2, isa, a), keeps ? least / 2 : 0) << "what it begins with";
    EXPECT_EQ(product(2, least, least, isa, a), 3 * least) << "normal numbers";
  }
}

DeviceDescription cpu_with(const char* isa) {
  DeviceDescription out = Device::cpu();
  out.isa = isa;
  return out;
}

std::string reason_of(const Explanation& e) {
  for (const ExplanationRow& row : e.rows)
    if (row.taken) return row.name + ": " + row.reason;
  return "none";
}

TEST(Bf16, ExplanationsSayHowItIsMultiplied) {
  const auto linear = [](const char* isa, DType dtype) {
    return reason_of(
        LinearPlan({.inputs = 8, .outputs = 8, .dtype = dtype}, {4}, cpu_with(isa), {.force = "cpu.linear"}).explain());
  };
  EXPECT_EQ(linear("avx512", DType::bf16), "cpu.linear: bf16 widened to f32");
  EXPECT_EQ(linear("portable", DType::f16), "cpu.linear: f16 converted to f32");
  EXPECT_EQ(linear("avx512", DType::f32), "cpu.linear: ");
  const RecurrentDescription lstm{.inputs = 8, .hidden = 8, .dtype = DType::bf16};
  const auto recurrent = [&](const char* isa) { return reason_of(RecurrentPlan(lstm, {2, 2}, cpu_with(isa)).explain()); };
  EXPECT_EQ(recurrent("avx2"), "cpu.recurrent_stepwise: bf16 widened to f32");
  if (best_isa() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no avx512_bf16";
  EXPECT_EQ(linear("avx512_bf16", DType::bf16), "cpu.linear: bf16 multiplied as it is, in pairs");
  EXPECT_EQ(linear("amx", DType::bf16), "cpu.linear: bf16 multiplied as it is, in pairs");
  EXPECT_EQ(linear("avx512_bf16", DType::f32), "cpu.linear: ");
  EXPECT_EQ(recurrent("avx512_bf16"),
            "cpu.recurrent_stepwise: x, h and weights of bf16 multiplied as they are, in pairs; widened where they meet f32");
}

/// A layer on a lower set multiplies what is widened, whatever the machine has; and packed weights of one are refused by the other.
TEST_F(GemmPairs, ALowerSetWidensAndHasItsOwnPackedWeights) {
  const LinearDescription d{.inputs = 3, .outputs = 2, .dtype = DType::bf16};
  HostTensor x(DType::bf16, {1, 3}), w(DType::bf16, {2, 3}), y(DType::bf16, {1, 2});
  x.fill(0x1p-130), w.fill(1);
  const PlanOptions ours{.force = "cpu.linear"};
  const LinearPlan pairs(d, {1}, cpu_with("avx512_bf16"), ours), lower(d, {1}, cpu_with("avx512"), ours);
  pairs.forward({.x = x, .weight = w, .y = y}, {});
  EXPECT_EQ(y.at(0), 0);
  lower.forward({.x = x, .weight = w, .y = y}, {});
  EXPECT_EQ(y.at(0), 3 * 0x1p-130);
  const test::Scratch bytes(pairs.packed_bytes());
  PackedWeights packed{.bytes = {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.bytes())}}};
  pairs.pack(w, packed);
  pairs.forward({.x = x, .y = y, .packed = &packed}, {});
  EXPECT_TRUE(bytes.guards_intact());
  EXPECT_THROW(lower.forward({.x = x, .y = y, .packed = &packed}, {}), Error);
}

/// dz is rounded to bf16 where it is multiplied in pairs, as it is for oneDNN; without an activation it is dy itself.
TEST_F(GemmPairs, GradientsAreMultipliedInPairsToo) {
  for (const Activation activation : {Activation::none, Activation::relu}) {
    const LinearDescription d{.inputs = 2, .outputs = 3, .dtype = DType::bf16, .activation = activation, .training = true};
    HostTensor x(DType::bf16, {1, 2}), w(DType::bf16, {3, 2}), z(DType::bf16, {1, 3}), dy(DType::bf16, {1, 3});
    HostTensor dx(DType::bf16, {1, 2}), dw(DType::f32, {3, 2});
    x.fill(1), w.fill(1), z.fill(1), dy.fill(0x1p-130);
    for (const char* isa : {"avx512", "avx512_bf16"}) {
      const LinearPlan plan(d, {1}, cpu_with(isa), {.force = "cpu.linear"});
      const test::Scratch scratch(plan.workspace_bytes());
      plan.backward({.dy = dy, .x = x, .weight = w, .preactivation = z, .dx = dx, .dweight = dw},
                    {scratch.data(), scratch.bytes()});
      const bool keeps = std::string(isa) == "avx512";
      EXPECT_EQ(dx.at(0), keeps ? 3 * 0x1p-130 : 0) << isa;
      EXPECT_EQ(dw.at(0), keeps ? 0x1p-130 : 0) << isa;
    }
  }
}

/// W x and R h of a loop; the definition keeps gradients in f32, so that they are kept on the way back.
TEST_F(GemmPairs, RecurrentLoopsMultiplyStatesAsTheyAreStored) {
  const RecurrentDescription d{.cell = Cell::relu, .inputs = 1, .hidden = 1, .dtype = DType::bf16};
  HostTensor x(DType::bf16, {1, 1, 1}), h0(DType::bf16, {1, 1, 1}), y(DType::bf16, {1, 1, 1}), w(DType::bf16, {1, 1});
  w.fill(1);
  const RecurrentWeights weights[] = {{.w_ih = w, .w_hh = w}};
  for (const char* isa : {"avx512", "avx512_bf16"})
    for (const bool of_x : {false, true}) {
      x.fill(of_x ? 0x1p-130 : 0), h0.fill(of_x ? 0 : 0x1p-130);
      const RecurrentPlan plan(d, {1, 1}, cpu_with(isa));
      const test::Scratch scratch(plan.workspace_bytes());
      plan.forward({.x = x, .h0 = h0, .weights = weights, .y = y}, {scratch.data(), scratch.bytes()});
      EXPECT_EQ(y.at(0), std::string(isa) == "avx512" ? 0x1p-130 : 0) << isa << of_x;
    }
}

}  // namespace
}  // namespace everglow
