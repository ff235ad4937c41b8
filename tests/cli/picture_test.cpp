// The picture of attention on known weights, and the lines of progress.
#include "cli/picture.hpp"
#include "cli/progress.hpp"

#include <gtest/gtest.h>

namespace everglow::cli {
namespace {

const std::vector<std::string> source{"▁deux", "▁cent", "</s>"};
const std::vector<std::string> target{"▁two", "é"};

TEST(Picture, shades_each_cell_as_wide_as_its_label) {
  const std::string expected =
      "     ▁deux ▁cent </s>\n"
      "▁two █████ ░░░░░ ····\n"
      "   é ▒▒▒▒▒ ▓▓▓▓▓ ····\n"
      "     (█ at least 0.7, ▓ 0.4, ▒ 0.2, ░ 0.05, · less)\n";
  EXPECT_EQ(attention_picture({{0.9, 0.09, 0.01}, {0.39, 0.6, 0.01}}, source, target), expected);
}

TEST(Picture, writes_labels_downwards_where_they_do_not_fit) {
  const std::string picture = attention_picture({{0.9, 0.09, 0.01}, {0.39, 0.6, 0.01}}, source, target, 15);
  EXPECT_NE(picture.find("▁two ██ ░░ ··\n"), std::string::npos) << picture;
  EXPECT_NE(picture.find("     x  t  > \n"), std::string::npos) << picture;
}

TEST(Picture, of_nothing_is_a_legend_sanitize) {
  EXPECT_EQ(attention_picture({}, {}, {}), "\n (█ at least 0.7, ▓ 0.4, ▒ 0.2, ░ 0.05, · less)\n");
}

TEST(Progress, writes_clocks_and_counts) {
  EXPECT_EQ(clock_text(65.4), "1:05");
  EXPECT_EQ(clock_text(7390), "2:03:10");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(-1234), "-1,234");
}

TEST(Progress, bar_keeps_to_the_width_of_the_terminal) {
  gnmt::Progress p;
  p.epoch = 3, p.part = 0.5, p.loss = 1.25, p.tokens_per_second = 18432, p.padding = 0.04, p.gradient_norm = 0.5,
  p.seconds_left = 61;
  EXPECT_NE(bar_line(p, 120).find("███████████████░░░░░░░░░░░░░░░"), std::string::npos);
  EXPECT_EQ(bar_line(p, 40).find("█"), std::string::npos);
  EXPECT_NE(plain_line(p).find("18,432 tok/s"), std::string::npos);
}

TEST(Progress, a_validation_of_nothing_has_no_figures) {
  gnmt::Progress p;
  p.step = 12, p.seconds = 5, p.validated = true;
  EXPECT_EQ(validation_line(p), "step 12 after 0:05: saved; there are no validation pairs");
  p.valid_lines = 3, p.valid_loss = 1.5, p.valid_bleu = 20;
  EXPECT_EQ(validation_line(p), "step 12 after 0:05: validation loss 1.500, BLEU 20.00, exact 0.0 %");
}

}  // namespace
}  // namespace everglow::cli
