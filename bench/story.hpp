// The story of attention: scores in memory, FlashAttention and FlashAttention-2 on one card, over lengths and head sizes.
#pragma once

#include "bench/session.hpp"

namespace everglow::bench {

/// One row of the table at one length: microseconds of the medians.
struct StoryCell {
  std::string kernel{};
  double forward_us = 0, backward_us = 0;
};
struct StoryLine {
  std::int64_t length = 0;
  double forward_flops = 0, backward_flops = 0;
  std::vector<StoryCell> cells{};
};

/// TFLOP/s forward, backward and both together of each row, and how many times faster FlashAttention-2 is, both together. A row
/// that declines at a length has an empty cell.
std::string story_table(const std::vector<StoryLine>& lines);

/// The case lines, in the order of the tables: 16384 tokens of 2048 columns, head sizes 64, 128 and 256, full and causal.
std::vector<std::vector<cases::Case>> story_cases(const std::string& dtype);

/// All of them whose line holds the text. Throws where there is none.
std::vector<cases::Case> story_lines(const std::string& filter, const std::string& dtype);

/// Times them, prints a table for each head size and mask, and writes the records. Of a request it takes settings, timing, filter,
/// out and json.
void tell_story(const Request& request, const std::string& dtype, const Progress& progress);

}  // namespace everglow::bench
