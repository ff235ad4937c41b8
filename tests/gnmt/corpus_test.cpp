// Reading parallel text, filtering it, and the properties of batches and epochs.
#include <everglow/error.hpp>
#include <everglow/gnmt/corpus.hpp>
#include <everglow/gnmt/numbers.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include <unistd.h>

namespace everglow::gnmt {
namespace {

/// A folder of this test alone, removed at its end.
class CorpusFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("everglow-corpus-") + testing::UnitTest::GetInstance()->current_test_info()->name() +
               std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, std::string_view text) const {
    const std::string file = (folder_ / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  std::filesystem::path folder_;
};

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(CorpusFiles, lines_with_either_ending_and_a_byte_order_mark_sanitize) {
  const auto pairs = read_pairs(write("a.tsv", "\xEF\xBB\xBFone\tun\r\ntwo words\tdeux mots\n\tvide\nlast\tz\xC3\xA9ro"));
  ASSERT_EQ(pairs.size(), 4U);
  EXPECT_EQ(pairs[0].source, "one");
  EXPECT_EQ(pairs[0].target, "un");
  EXPECT_EQ(pairs[1].target, "deux mots");
  EXPECT_EQ(pairs[2].source, "");
  EXPECT_EQ(pairs[3].target, "z\u00e9ro");
  EXPECT_TRUE(read_pairs(write("empty.tsv", "")).empty());
}

TEST_F(CorpusFiles, damaged_lines_are_named_sanitize) {
  const std::string file = write("a.tsv", "a\tb\nno tab here\n");
  EXPECT_EQ(error_of([&] { read_pairs(file); }), "[corpus.read] " + file + ":2: expected source, one tab, target; got no tab");
  const std::string blank = write("blank.tsv", "a\tb\n\nc\td\n");
  EXPECT_EQ(error_of([&] { read_pairs(blank); }),
            "[corpus.read] " + blank + ":2: expected source, one tab, target; got an empty line");
  write("a.tsv", "a\tb\na\tb\ta\tb\n");
  EXPECT_EQ(error_of([&] { read_pairs(file); }), "[corpus.read] " + file + ":2: expected source, one tab, target; got 3 tabs");
  for (const std::string_view bad : {"\xFF", "\xC3", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    write("a.tsv", "a\tb\nc\td\nab\t" + std::string(bad) + "\n");
    const std::string text = error_of([&] { read_pairs(file); });
    EXPECT_TRUE(text.starts_with("[corpus.read] " + file + ":3: expected UTF-8, got byte 0x")) << text;
    EXPECT_TRUE(text.ends_with("at byte 4 of the line")) << text;
  }
}

TEST_F(CorpusFiles, files_that_cannot_be_read_sanitize) {
  const std::string missing = (folder_ / "none.tsv").string();
  EXPECT_EQ(error_of([&] { read_pairs(missing); }), "[corpus.read] " + missing + ": No such file or directory");
  EXPECT_EQ(error_of([&] { read_pairs(folder_.string()); }), "[corpus.read] " + folder_.string() + ": Is a directory");
}

TEST_F(CorpusFiles, two_files_of_equally_many_lines_sanitize) {
  const std::string source = write("s", "one\ntwo\n"), target = write("t", "un\r\ndeux"), longer = write("l", "1\n2\n3\n");
  const auto pairs = read_pairs(source, target);
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs[1].source, "two");
  EXPECT_EQ(pairs[1].target, "deux");
  EXPECT_EQ(error_of([&] { read_pairs(source, longer); }),
            "[corpus.read] expected two files of equally many lines, got 2 in \"" + source + "\" and 3 in \"" + longer + "\"");
}

TEST(corpus, filters_by_words_of_both_sides_sanitize) {
  const std::vector<Pair> pairs{{"a b c", "d"}, {"a", "b c d"}, {"  a \t b  ", "c\u00a0d"}, {"", ""}, {"a-b'c", "\u00e9t\u00e9"}};
  EXPECT_EQ(at_most_words(pairs, 0).size(), 5U);
  EXPECT_EQ(at_most_words(pairs, 3).size(), 5U);
  const auto two = at_most_words(pairs, 2);
  ASSERT_EQ(two.size(), 3U);
  EXPECT_EQ(two[0].source, "  a \t b  ");
  EXPECT_EQ(at_most_words(pairs, 1).size(), 2U);  // a non-breaking space separates words, too
  EXPECT_THROW(at_most_words(pairs, -1), Error);
}

std::size_t threads_now() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// The test's own thread encodes, and another counts the threads of the process again and again.
TEST(corpus, encodes_with_no_more_threads_than_asked) {
  if (!std::filesystem::exists("/proc/self/task")) GTEST_SKIP() << "no /proc here to count threads";
  const std::vector<Pair> pairs(8000, Pair{english(777), french(777)});
  const Tokenizer tokenizer = Tokenizer::train(std::vector<std::string>{english(777), french(777)}, 60);
  const std::size_t before = threads_now();
  std::atomic<bool> done = false;
  std::size_t most = 0;
  std::thread counter([&] {
    while (!done) most = std::max(most, threads_now());
  });
  EXPECT_EQ(encode(tokenizer, pairs, 1).size(), pairs.size());
  done = true;
  counter.join();
  EXPECT_LE(most, before + 1);
}

TEST(corpus, encodes_in_order_whatever_the_threads) {
  std::vector<Pair> pairs;
  std::vector<std::string> lines;
  for (std::int64_t n = 0; n < 5000; ++n) {
    pairs.push_back({english(n), french(n)});
    lines.push_back(french(n));
  }
  const Tokenizer tokenizer = Tokenizer::train(lines, 100);
  const auto examples = encode(tokenizer, pairs, 3);
  const auto alone = encode(tokenizer, pairs, 1);
  ASSERT_EQ(examples.size(), pairs.size());
  ASSERT_EQ(alone.size(), pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    ASSERT_EQ(examples[i].source, tokenizer.encode(pairs[i].source)) << i;
    ASSERT_EQ(examples[i].target, tokenizer.encode(pairs[i].target)) << i;
    ASSERT_EQ(examples[i].source, alone[i].source) << i;
  }
  EXPECT_TRUE(encode(tokenizer, {}).empty());
}

TEST(corpus, a_batch_is_time_major_and_padded_sanitize) {
  const std::vector<Example> examples{{{10, 11, 12}, {20}}, {{13}, {21, 22}}, {{}, {}}};
  const std::vector<std::int64_t> indices{1, 0, 2};
  const Batch batch = make_batch(examples, indices);
  EXPECT_EQ(batch.rows, 3);
  EXPECT_EQ(batch.source_steps, 4);
  EXPECT_EQ(batch.target_steps, 3);
  EXPECT_EQ(batch.source, (std::vector<std::int32_t>{13, 10, 3, 3, 11, 0, 0, 12, 0, 0, 3, 0}));
  EXPECT_EQ(batch.source_lengths, (std::vector<std::int32_t>{2, 4, 1}));
  EXPECT_EQ(batch.decoder_input, (std::vector<std::int32_t>{2, 2, 2, 21, 20, 0, 22, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{21, 20, 3, 22, 3, 0, 3, 0, 0}));
  EXPECT_EQ(batch.target_lengths, (std::vector<std::int32_t>{3, 2, 1}));
  EXPECT_EQ(batch.source_tokens, 7);
  EXPECT_EQ(batch.target_tokens, 6);
  const Batch sources = make_source_batch(std::vector<std::vector<std::int32_t>>{{13}, {10, 11, 12}, {}});
  EXPECT_EQ(sources.source, batch.source);
  EXPECT_EQ(sources.source_lengths, batch.source_lengths);
  EXPECT_EQ(sources.target_steps, 0);
  EXPECT_EQ(make_batch(examples, {}).rows, 0);
  EXPECT_THROW(make_batch(examples, std::vector<std::int64_t>{3}), Error);
  EXPECT_THROW(make_batch(examples, std::vector<std::int64_t>{-1}), Error);
}

std::vector<Example> random_examples(std::size_t count) {
  std::mt19937 random(7);
  std::vector<Example> examples(count);
  for (Example& example : examples) {
    example.source.resize(random() % 30, 5);
    example.target.resize(random() % 40, 6);
  }
  examples[count / 2].target.resize(400, 6);  // longer than any budget below
  return examples;
}

std::int64_t side(const Example& example) {
  return static_cast<std::int64_t>(std::max(example.source.size(), example.target.size())) + 1;
}

TEST(corpus, an_epoch_has_each_pair_once_within_the_budget_sanitize) {
  const auto examples = random_examples(2000);
  for (const std::int64_t tokens : {1, 41, 300}) {
    std::vector<int> seen(examples.size());
    for (const auto& batch : make_epoch(examples, tokens, 3)) {
      std::int64_t longest = 0;
      for (const std::int64_t i : batch) {
        ++seen.at(i);
        longest = std::max(longest, side(examples[i]));
      }
      EXPECT_FALSE(batch.empty());
      EXPECT_TRUE(batch.size() == 1 || static_cast<std::int64_t>(batch.size()) * longest <= tokens);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 2000);
  }
}

TEST(corpus, an_epoch_wastes_little_and_follows_its_seed_sanitize) {
  std::vector<Example> examples = random_examples(4000);
  for (Example& example : examples) example.target = example.source;
  const auto epoch = make_epoch(examples, 600, 11);
  std::int64_t useful = 0, positions = 0;
  for (const auto& batch : epoch) {
    const Batch made = make_batch(examples, batch);
    useful += made.source_tokens;
    positions += made.rows * made.source_steps;
  }
  // Sorting with noise below 2 puts lengths at most 3 apart side by side; random batches of these lengths would waste half.
  EXPECT_GT(static_cast<double>(useful), 0.85 * static_cast<double>(positions));
  EXPECT_EQ(epoch, make_epoch(examples, 600, 11));
  const auto other = make_epoch(examples, 600, 12);
  EXPECT_NE(epoch, other);
  EXPECT_NE(std::set(epoch.begin(), epoch.end()), std::set(other.begin(), other.end()));  // other batches, not only another order
  EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end(),
                              [&](const auto& a, const auto& b) { return side(examples[a[0]]) < side(examples[b[0]]); }));
}

TEST(corpus, an_epoch_of_nothing_sanitize) {
  EXPECT_TRUE(make_epoch({}, 100, 1).empty());
  EXPECT_THROW(make_epoch({}, 0, 1), Error);
}

}  // namespace
}  // namespace everglow::gnmt
