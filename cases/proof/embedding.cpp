// Embedding beside the reference.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"

#include <everglow/embedding.hpp>

#include <algorithm>
#include <cmath>

namespace everglow::proof {
namespace {

class EmbeddingProof final : public Proof {
 public:
  explicit EmbeddingProof(const cases::Case& c)
      : d_{.vocabulary = c.integer("vocabulary", 1),
           .width = c.integer("width", 1),
           .dtype = parse_dtype(c.text("dtype", "f32")),
           .padding_index = c.integer("padding_index", -1)},
        sizes_{c.integer("indices", 1)},
        gradient_(parse_dtype(c.text("gradient", name(d_.dtype)))),
        dense_(c.flag("dense")),
        indices_(c.flag("wide") ? DType::i64 : DType::i32, {sizes_.indices}),
        table_(d_.dtype, {d_.vocabulary, d_.width}, apart(3)),
        dy_(d_.dtype, {sizes_.indices, d_.width}, apart(2)) {
    indices_.integers(1, 0, static_cast<int>(std::max<std::int64_t>(d_.vocabulary, 1) - 1));
    for (std::int64_t n = 0; d_.padding_index >= 0 && n < sizes_.indices; n += 9)  // a draw may miss it
      indices_.put(n, static_cast<double>(d_.padding_index));
    table_.uniform(2, -1, 1), dy_.uniform(3, -1, 1);
    std::vector<double> magnitudes = dy_.values();
    for (double& value : magnitudes) value = std::fabs(value);
    sum_ = uses_in_f64(dy_.values());
    magnitude_ = uses_in_f64(magnitudes);
    terms_ = uses_in_f64(std::vector<double>(magnitudes.size(), 1));
  }

  Explanation explain(const PlanOptions& options) const override { return plan(options).explain(); }

  std::vector<Finding> run(const PlanOptions& options) const override {
    const EmbeddingPlan embedding = plan(options);
    const Scratch scratch(embedding.workspace_bytes());
    HostTensor y(d_.dtype, {sizes_.indices, d_.width}, apart(1));
    forward_on(device.device, embedding, EmbeddingForward{indices_, table_, y}, scratch);
    std::vector<Finding> out{finding("forward", "y", y.values(), rows_of_the_table(), std::vector<double>(dy_.values().size(), 0)),
                             untouched("forward", y.guards_intact() && scratch.guards_intact())};
    for (const bool accumulate : {false, true}) {
      HostTensor dtable(gradient_, {d_.vocabulary, d_.width}, apart(4));
      if (accumulate) dtable.uniform(4, -1, 1);
      const std::vector<double> before = accumulate ? dtable.values() : std::vector<double>(sum_.size(), 0);
      backward_on(device.device, embedding, EmbeddingBackward{indices_, dy_, dtable, accumulate}, scratch);
      std::vector<double> expected = before;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += sum_[i];
      out.push_back(
          finding("backward", accumulate ? "dtable accumulated" : "dtable", dtable.values(), expected, bound(before, expected)));
      out.push_back(untouched("backward", dtable.guards_intact() && scratch.guards_intact()));
    }
    return out;
  }

 private:
  /// From row to row: with a gap, or without one.
  std::int64_t apart(std::int64_t gap) const { return dense_ ? 0 : d_.width + gap; }
  EmbeddingPlan plan(const PlanOptions& options) const { return {d_, sizes_, device, options}; }

  std::vector<double> rows_of_the_table() const {
    std::vector<double> out;
    for (std::int64_t n = 0; n < sizes_.indices; ++n)
      for (std::int64_t i = 0; i < d_.width; ++i)
        out.push_back(table_.at(static_cast<std::int64_t>(indices_.at(n)) * d_.width + i));
    return out;
  }

  /// The gradient of the table in f64, for some gradient of y.
  std::vector<double> uses_in_f64(const std::vector<double>& values) const {
    EmbeddingDescription exact = d_;
    exact.dtype = DType::f64;
    HostTensor dy(DType::f64, {sizes_.indices, d_.width}), dtable(DType::f64, {d_.vocabulary, d_.width});
    dy.set(values);
    const EmbeddingPlan reference(exact, sizes_, Device::cpu(), {.force = "reference.embedding"});
    const Scratch scratch(reference.workspace_bytes());
    reference.backward({indices_, dy, dtable}, {scratch.data(), scratch.bytes()});
    return dtable.values();
  }

  /// A sum of k terms and what was there before in f32, in any order, is within k u of the sum of magnitudes; then one rounding to
  /// the type of dtable, which below f16's smallest normal number is half of 2^-24.
  std::vector<double> bound(const std::vector<double>& before, const std::vector<double>& expected) const {
    const double u = unit_roundoff(DType::f32), storage = gradient_ == DType::f32 ? 0 : unit_roundoff(gradient_);
    const double least = gradient_ == DType::f16 ? 0x1p-25 : 0;
    std::vector<double> out;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = terms_[i] * u * (magnitude_[i] + std::fabs(before[i]));
      out.push_back(error + storage * (std::fabs(expected[i]) + error) + least);
    }
    return out;
  }

  EmbeddingDescription d_;
  EmbeddingSizes sizes_;
  DType gradient_;
  bool dense_;
  HostTensor indices_, table_, dy_;
  std::vector<double> sum_, magnitude_, terms_;  // of the uses of each element of the table
};

}  // namespace

std::unique_ptr<Proof> embedding_proof(const cases::Case& c) { return std::make_unique<EmbeddingProof>(c); }

}  // namespace everglow::proof
