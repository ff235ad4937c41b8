// Which layer a case belongs to, and what all proofs share.
#include "cases/proof/proof.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace everglow::proof {
namespace {

/// FNV-1a over the bits of the values.
std::uint64_t digest(const std::vector<double>& values) {
  std::uint64_t out = 14695981039346656037U;
  for (const double value : values)
    for (int byte = 0; byte < 8; ++byte) out = (out ^ (std::bit_cast<std::uint64_t>(value) >> (8 * byte) & 0xFF)) * 1099511628211U;
  return out;
}

}  // namespace

Finding finding(std::string_view direction, std::string_view tensor, const std::vector<double>& actual,
                const std::vector<double>& expected, const std::vector<double>& bound) {
  Finding out{.direction = std::string(direction),
              .tensor = std::string(tensor),
              .fault = compare(actual, expected, bound),
              .digest = digest(actual)};
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    const double error = std::fabs(actual[i] - expected[i]);  // NaN for what is infinite or NaN in both
    if (error > 0) out.share = std::max(out.share, bound[i] > 0 ? error / bound[i] : std::numeric_limits<double>::infinity());
  }
  return out;
}

Finding untouched(std::string_view direction, bool guards_intact) {
  return {.direction = std::string(direction),
          .tensor = "guards",
          .fault = guards_intact ? "" : "memory outside the outputs and the workspace was written"};
}

std::unique_ptr<Proof> make_proof(const cases::Case& c) {
  if (c.layer == "attention") return attention_proof(c);
  if (c.layer == "linear") return linear_proof(c);
  if (c.layer == "recurrent") return recurrent_proof(c);
  if (c.layer == "softmax") return softmax_proof(c);
  if (c.layer == "embedding") return embedding_proof(c);
  if (c.layer == "loss") return loss_proof(c);
  if (c.layer == "pointwise") return pointwise_proof(c);
  if (c.layer == "adam") return adam_proof(c);
  throw std::invalid_argument("case: unknown layer \"" + c.layer + "\"");
}

std::vector<std::string> accepting_rows(const Proof& proof, const PlanOptions& options) {
  std::vector<std::string> out;
  std::vector<ExplanationRow> rows;
  try {
    rows = proof.explain({}).rows;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported) return out;  // none of them
    throw;
  }
  for (const ExplanationRow& row : rows) {
    try {
      PlanOptions forced = options;
      forced.force = row.name;
      proof.explain(forced);
      out.push_back(row.name);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
  return out;
}

}  // namespace everglow::proof
