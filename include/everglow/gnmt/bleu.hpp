// BLEU (Papineni et al. 2002) over a corpus, equal to sacreBLEU's (Post 2018) for one reference, case-sensitive, exponential smoothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::gnmt {

/// 13a: mteval-v13a's tokenisation, sacreBLEU's default; intl: by Unicode classes of punctuation and symbols.
enum class BleuTokenizer : std::uint8_t { v13a, intl };

struct Bleu {
  double score = 0;                        ///< 0 ... 100
  std::array<double, 4> precisions{};      ///< per cent, n-grams of 1 ... 4
  double brevity_penalty = 0;
  std::int64_t hypothesis_length = 0, reference_length = 0;
  std::array<std::int64_t, 4> matches{}, totals{};
};

std::string tokenize_for_bleu(std::string_view line, BleuTokenizer tokenizer);
/// Throws Error(invalid_argument) where the counts of lines differ.
Bleu bleu(std::span<const std::string> hypotheses, std::span<const std::string> references,
          BleuTokenizer tokenizer = BleuTokenizer::v13a);
/// sacreBLEU's signature, for example "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:..."
std::string bleu_signature(BleuTokenizer tokenizer);

}  // namespace everglow::gnmt
