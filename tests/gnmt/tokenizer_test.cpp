// The tokenizer: training on ordinary, tiny and odd text, the fixed ids, and that what is encoded decodes to the same line.
#include <everglow/error.hpp>
#include <everglow/gnmt/numbers.hpp>
#include <everglow/gnmt/tokenizer.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace everglow::gnmt {
namespace {

std::vector<std::string> number_lines(std::int64_t begin, std::int64_t end) {
  std::vector<std::string> lines;
  for (std::int64_t n = begin; n < end; ++n) {
    lines.push_back(english(n));
    lines.push_back(french(n));
  }
  return lines;
}

TEST(tokenizer, encodes_and_decodes_lines_it_has_not_seen) {
  const Tokenizer tokenizer = Tokenizer::train(number_lines(0, 3000), 300);
  EXPECT_LE(tokenizer.vocabulary(), 300);
  EXPECT_GT(tokenizer.vocabulary(), 60);
  for (const std::string& line : number_lines(123'400, 123'500)) {
    const auto pieces = tokenizer.encode(line);
    EXPECT_EQ(tokenizer.decode(pieces), line);
    for (const std::int32_t id : pieces) EXPECT_TRUE(id > eos_id && id < tokenizer.vocabulary()) << line;
  }
}

TEST(tokenizer, special_pieces_have_the_promised_ids) {
  const Tokenizer tokenizer = Tokenizer::train(number_lines(0, 200), 100);
  EXPECT_EQ(tokenizer.piece(pad_id), "<pad>");
  EXPECT_EQ(tokenizer.piece(unk_id), "<unk>");
  EXPECT_EQ(tokenizer.piece(bos_id), "<s>");
  EXPECT_EQ(tokenizer.piece(eos_id), "</s>");
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{bos_id, eos_id, pad_id}), "");
  const auto unknown = tokenizer.encode("\u4e16");
  EXPECT_EQ(unknown.back(), unk_id);
  std::set<std::string> pieces;
  for (std::int32_t id = 0; id < tokenizer.vocabulary(); ++id) EXPECT_TRUE(pieces.insert(tokenizer.piece(id)).second);
}

TEST(tokenizer, a_tiny_text_gives_a_tiny_vocabulary) {
  const std::vector<std::string> three{"one two", "un deux", "three"};
  for (const auto& lines : {three, std::vector<std::string>{"a"}, std::vector<std::string>{"", "b c", ""}}) {
    const Tokenizer tokenizer = Tokenizer::train(lines, 8000);
    EXPECT_GT(tokenizer.vocabulary(), 4);
    EXPECT_LT(tokenizer.vocabulary(), 40);
    for (const std::string& line : lines) EXPECT_EQ(tokenizer.decode(tokenizer.encode(line)), line);
  }
}

TEST(tokenizer, the_same_lines_give_the_same_model) {
  const auto lines = number_lines(5000, 8000);
  EXPECT_EQ(Tokenizer::train(lines, 200).model(), Tokenizer::train(lines, 200).model());
}

TEST(tokenizer, bytes_of_the_model_give_the_same_pieces) {
  const Tokenizer first = Tokenizer::train(number_lines(0, 1000), 200);
  const Tokenizer second = Tokenizer::from_model(first.model());
  EXPECT_EQ(first.vocabulary(), second.vocabulary());
  for (const std::string& line : number_lines(998'000, 998'050)) EXPECT_EQ(first.encode(line), second.encode(line));
}

TEST(tokenizer, empty_and_blank_lines_have_no_pieces) {
  const Tokenizer tokenizer = Tokenizer::train(number_lines(0, 200), 100);
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_TRUE(tokenizer.encode("  \t ").empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

ErrorCode code_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "expected an Error";
  return ErrorCode::device;
}

TEST(tokenizer, wrong_arguments_are_errors) {
  const auto lines = number_lines(0, 200);
  EXPECT_EQ(code_of([&] { Tokenizer::train({}, 100); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { Tokenizer::train(std::vector<std::string>{"", " "}, 100); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { Tokenizer::train(lines, 4); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { Tokenizer::train(lines, 8); }), ErrorCode::invalid_argument);  // fewer than there are characters
  const Tokenizer tokenizer = Tokenizer::train(lines, 100);
  EXPECT_EQ(code_of([&] { tokenizer.piece(-1); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { tokenizer.decode(std::vector<std::int32_t>{100'000}); }), ErrorCode::invalid_argument);
}

TEST(tokenizer, a_damaged_model_is_an_error) {
  const Tokenizer tokenizer = Tokenizer::train(number_lines(0, 200), 100);
  EXPECT_EQ(code_of([] { Tokenizer::from_model(""); }), ErrorCode::io);
  EXPECT_EQ(code_of([] { Tokenizer::from_model("no model at all"); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { Tokenizer::from_model(std::string_view(tokenizer.model()).substr(0, tokenizer.model().size() / 2)); }),
            ErrorCode::io);
  // A changed byte anywhere, even one that SentencePiece itself would follow out of its tables.
  for (std::size_t i = 0; i < tokenizer.model().size() - 10; i += 997) {
    std::string damaged = tokenizer.model();
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_EQ(code_of([&] { Tokenizer::from_model(damaged); }), ErrorCode::io) << i;
  }
  // Without the hash at its end it is an ordinary model of SentencePiece.
  const std::string plain = tokenizer.model().substr(0, tokenizer.model().size() - 10);
  EXPECT_EQ(Tokenizer::from_model(plain).encode("deux cents"), tokenizer.encode("deux cents"));
}

}  // namespace
}  // namespace everglow::gnmt
