// The counts and the formula of corpus BLEU with one reference, as sacreBLEU takes them: exponential smoothing, no effective order.
#include <everglow/error.hpp>
#include <everglow/gnmt/bleu.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

namespace everglow::gnmt {

namespace {

constexpr int max_order = 4;
using Ngram = std::array<std::int32_t, max_order>;  // words by number, -1 past the end

/// The words of one pair of lines by number. Tokenised lines have single spaces between words and none around them.
class Words {
 public:
  std::vector<std::int32_t> numbers(std::string_view line) {
    std::vector<std::int32_t> numbers;
    while (!line.empty()) {
      const std::size_t end = std::min(line.find(' '), line.size());
      numbers.push_back(known_.try_emplace(line.substr(0, end), static_cast<std::int32_t>(known_.size())).first->second);
      line.remove_prefix(std::min(end + 1, line.size()));
    }
    return numbers;
  }

 private:
  std::unordered_map<std::string_view, std::int32_t> known_;
};

std::vector<Ngram> sorted_ngrams(const std::vector<std::int32_t>& words, int order) {
  std::vector<Ngram> ngrams;
  for (std::size_t i = 0; i + order <= words.size(); ++i) {
    Ngram ngram;
    ngram.fill(-1);
    std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(i), order, ngram.begin());
    ngrams.push_back(ngram);
  }
  std::sort(ngrams.begin(), ngrams.end());
  return ngrams;
}

/// How many n-grams both lists have, each counted as often as in the list that has fewer of it.
std::int64_t common(const std::vector<Ngram>& a, const std::vector<Ngram>& b) {
  std::int64_t count = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const bool equal = *i == *j;
    count += equal;
    const bool less = *i < *j;
    i += equal || less;
    j += equal || !less;
  }
  return count;
}

void add_counts(Bleu& result, const std::string& hypothesis, const std::string& reference) {
  Words words;
  const auto hypothesis_words = words.numbers(hypothesis), reference_words = words.numbers(reference);
  result.hypothesis_length += static_cast<std::int64_t>(hypothesis_words.size());
  result.reference_length += static_cast<std::int64_t>(reference_words.size());
  for (int order = 1; order <= max_order; ++order) {
    const auto ours = sorted_ngrams(hypothesis_words, order);
    result.totals[order - 1] += static_cast<std::int64_t>(ours.size());
    result.matches[order - 1] += common(ours, sorted_ngrams(reference_words, order));
  }
}

/// Precisions, penalty and score from the counts. An order without matches counts as half a match, the next such one as a quarter,
/// and so on; an order without n-grams makes the score 0, and so does a corpus without any match.
void score_counts(Bleu& result) {
  const auto hypothesis = static_cast<double>(result.hypothesis_length), reference = static_cast<double>(result.reference_length);
  result.brevity_penalty = 1;
  if (hypothesis < reference) result.brevity_penalty = hypothesis > 0 ? std::exp(1 - reference / hypothesis) : 0;
  if (std::all_of(result.matches.begin(), result.matches.end(), [](std::int64_t matches) { return matches == 0; })) return;
  double smoothing = 1, logarithms = 0;
  for (int i = 0; i < max_order; ++i) {
    if (result.totals[i] == 0) return;
    const auto matches = static_cast<double>(result.matches[i]), total = static_cast<double>(result.totals[i]);
    if (result.matches[i] == 0) smoothing *= 2;
    result.precisions[i] = result.matches[i] == 0 ? 100. / (smoothing * total) : 100. * matches / total;
    logarithms += std::log(result.precisions[i]);
  }
  result.score = result.brevity_penalty * std::exp(logarithms / max_order);
}

}  // namespace

Bleu bleu(std::span<const std::string> hypotheses, std::span<const std::string> references, BleuTokenizer tokenizer) {
  if (hypotheses.size() != references.size())
    throw Error(ErrorCode::invalid_argument, "bleu",
                fmt::format("expected as many hypotheses as references, got {} and {}", hypotheses.size(), references.size()));
  Bleu result;
  for (std::size_t i = 0; i < hypotheses.size(); ++i)
    add_counts(result, tokenize_for_bleu(hypotheses[i], tokenizer), tokenize_for_bleu(references[i], tokenizer));
  score_counts(result);
  return result;
}

std::string bleu_signature(BleuTokenizer tokenizer) {
  return fmt::format("nrefs:1|case:mixed|eff:no|tok:{}|smooth:exp|version:everglow-{}",
                     tokenizer == BleuTokenizer::v13a ? "13a" : "intl", EVERGLOW_VERSION);
}

}  // namespace everglow::gnmt
