// What `everglow check` says where a row does not agree, which no row of a good build shows, and how it counts support.
#include "cli/bar.hpp"
#include "cli/support.hpp"
#include "cli/tally.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace everglow::cli {
namespace {

std::vector<Tally> one_faulty() {
  return {{.layer = "linear", .row = "cpu.linear", .isa = "avx2", .dtypes = {"f64", "f32"}, .cases = 3, .share = 0.25},
          {.layer = "linear", .row = "reference.linear", .isa = ""},
          {.layer = "attention",
           .row = "cpu.attention_flash2",
           .isa = "portable",
           .dtypes = {"bf16"},
           .cases = 2,
           .share = 7,
           .faults = std::vector<Fault>(8, {"attention batch=1", "forward o", "element 3: expected 1, got 2"})}};
}

TEST(Check, SaysWhichRowDoesNotAgree) {
  std::vector<Tally> tallies = one_faulty();
  EXPECT_FALSE(passed(tallies));
  std::istringstream table(tally_table(tallies) + fault_list(tallies));
  std::vector<std::string> lines;
  for (std::string line; std::getline(table, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    lines.push_back(line);
  }
  EXPECT_EQ(lines[1], "linear     cpu.linear                 avx2      f32 f64                3        0.250  agrees");
  EXPECT_EQ(lines[2], "linear     reference.linear           -                                0               no case");
  EXPECT_EQ(lines[3], "attention  cpu.attention_flash2       portable  bf16                   2        7.000  8 faults");
  EXPECT_EQ(lines[5], "cpu.attention_flash2 on portable:");
  EXPECT_EQ(lines[6], "  attention batch=1");
  EXPECT_EQ(lines[7], "    forward o: element 3: expected 1, got 2");
  EXPECT_EQ(lines.back(), "  and 3 more");
  const nlohmann::json rows = rows_json(tallies);
  EXPECT_EQ(rows[0]["verdict"], "agrees");
  EXPECT_TRUE(rows[1]["isa"].is_null());
  EXPECT_EQ(rows[2]["verdict"], "faults");
  EXPECT_EQ(rows[2]["faults"].size(), 8U);
  tallies.pop_back();
  EXPECT_TRUE(passed(tallies));
  EXPECT_EQ(fault_list(tallies), "");
}

TEST(Check, OptionsAreTheKeysThatAreNoSizes) {
  const auto options = [](const char* line) { return options_of(cases::parse(line)); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(options("softmax rows=3 columns=7"), Names{"plain"});
  EXPECT_EQ(options("softmax rows=0 columns=7 dtype=f16"), (Names{"plain", "size 0"}));
  EXPECT_EQ(options("linear batch=1 inputs=0 outputs=1 activation=relu bias=0"), (Names{"activation=relu", "bias=0", "size 0"}));
  EXPECT_EQ(options("attention batch=1 softcap=2.5 alibi=rows causal=1"), (Names{"alibi=rows", "causal", "softcap"}));
}

TEST(Check, MakesAProblemSmall) {
  const cases::Case c = at_most(cases::parse("attention batch=3 queries=900 heads=4 kv_heads=2 window_left=700 scale=0.5"), 12);
  EXPECT_EQ(c.integer("queries", 0), 12);
  EXPECT_EQ(c.integer("batch", 0), 3);
  EXPECT_EQ(c.integer("window_left", 0), 700);
  EXPECT_FALSE(c.has("keys"));
}

TEST(Check, SupportTellsSomeFromAllAndProvedFromAccepted) {
  const auto log = cases::parse("softmax rows=1 columns=1 log=1"), zero = cases::parse("softmax rows=1 columns=1 masked_row=zero");
  const auto both = cases::parse("softmax rows=1 columns=1 log=1 masked_row=zero");
  Support support;
  support.note(log, "f32", "reference.softmax", Answer::proved);
  support.note(log, "f16", "reference.softmax", Answer::accepted);
  support.note(log, "f32", "cpu.softmax_online", Answer::proved);
  support.note(both, "f32", "cpu.softmax_online", Answer::declined);
  support.note(zero, "f32", "cpu.softmax_online", Answer::failed);
  EXPECT_EQ(support.markdown(),
            "\n## softmax\n\n| option | `cpu.softmax_online` | `reference.softmax` |\n|---|---|---|\n"
            "| log | f32* | f32 (f16) |\n| masked_row=zero |  |  |\n");
  EXPECT_EQ(support.text(),
            "softmax\n  log                            cpu.softmax_online: f32*; reference.softmax: f32 (f16)\n"
            "  masked_row=zero                none\n");
  const nlohmann::json json = support.json();
  EXPECT_EQ(json[0]["dtypes"], nlohmann::json({"f32"}));
  EXPECT_EQ(json[2]["option"], "masked_row=zero");
  EXPECT_TRUE(json[2]["dtypes"].empty());
}

TEST(Bar, FitsItsColumns) {
  EXPECT_EQ(bar(0.5, 4), "██░░");
  EXPECT_EQ(count_line("case", 5, 10, "softmax rows=3", 60), "case 5 of 10 ██████████░░░░░░░░░░ softmax rows=3");
  EXPECT_EQ(count_line("case", 5, 10, "softmax rows=3", 40), "case 5 of 10 ██████████░░░░░░░░░░ softm");
  EXPECT_EQ(count_line("case", 5, 10, "softmax", 16), "case 5 of 10 so");
  EXPECT_EQ(count_line("case", 5, 10, "softmax", 5), "case");
  EXPECT_EQ(count_line("case", 0, 0, "", 26), "case 0 of 0 █████████████");
}

}  // namespace
}  // namespace everglow::cli
