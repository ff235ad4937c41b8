// The checkpoint's file format: what is saved comes back, damaged files are refused with words, and a save is all or nothing.
#include <everglow/error.hpp>
#include <everglow/gnmt/safetensors.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include <unistd.h>

namespace everglow::gnmt {
namespace {

using Metadata = std::map<std::string, std::string>;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("everglow-safetensors-") + testing::UnitTest::GetInstance()->current_test_info()->name() +
               std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    file_ = (folder_ / "a.safetensors").string();
  }
  void TearDown() override {
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(folder_);
  }
  void write(std::string_view bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }
  void write(std::string_view header, std::string_view data) const {
    std::string bytes(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    write(bytes + std::string(header) + std::string(data));
  }
  std::string read() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// The text after "[safetensors.load] FILE: ".
  std::string refusal() const {
    try {
      SafetensorsFile opened(file_);
    } catch (const Error& error) {
      const std::string text = error.what(), start = "[safetensors.load] " + file_ + ": ";
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_TRUE(text.starts_with(start)) << text;
      return text.substr(std::min(start.size(), text.size()));
    }
    return "no error";
  }
  std::filesystem::path folder_;
  std::string file_;
};

TEST_F(Safetensors, every_dtype_comes_back_sanitize) {
  std::vector<std::byte> memory(8 * 24);
  std::mt19937 random(1);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  std::vector<NamedTensor> tensors;
  for (const DType dtype : {DType::u8, DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64})
    tensors.push_back({std::string(name(dtype)), ConstTensorView(memory.data(), dtype, {2, 3, 4})});
  tensors.push_back({"scalar", ConstTensorView(memory.data(), DType::f32, {})});
  tensors.push_back({"empty", ConstTensorView(nullptr, DType::f32, {3, 0})});
  tensors.push_back({"odd \"name\" \u00e9", ConstTensorView(memory.data(), DType::u8, {5})});
  const Metadata metadata{{"state", R"({"step": 3, "text": "\u00e9\n"})"}, {"empty", ""}};
  save_safetensors(file_, tensors, metadata);
  const SafetensorsFile loaded(file_);
  EXPECT_EQ(loaded.metadata(), metadata);
  EXPECT_EQ(loaded.names().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    ASSERT_TRUE(loaded.has(tensor.name));
    const ConstTensorView view = loaded.tensor(tensor.name);
    EXPECT_EQ(to_string(view), to_string(tensor.view));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0U);
    EXPECT_EQ(std::memcmp(view.data, memory.data(), view.elements() * size_of(view.dtype)), 0) << tensor.name;
  }
  EXPECT_FALSE(loaded.has("none"));
  EXPECT_THROW(loaded.tensor("none"), Error);
}

TEST_F(Safetensors, the_file_is_what_the_format_says_sanitize) {
  const std::int32_t numbers[] = {1, 2};
  const std::uint8_t bytes[] = {7, 8, 9};
  const NamedTensor tensors[] = {{"b", ConstTensorView(bytes, DType::u8, {3})},
                                 {"a", ConstTensorView(numbers, DType::i32, {2, 1})}};
  save_safetensors(file_, tensors, {{"k", "v"}});
  std::string header = R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[0,8],"dtype":"I32","shape":[2,1]},)"
                       R"("b":{"data_offsets":[8,11],"dtype":"U8","shape":[3]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::string expected = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header +
                               std::string("\1\0\0\0\2\0\0\0\7\10\11", 11);
  EXPECT_EQ(read(), expected);
}

TEST_F(Safetensors, a_file_without_tensors_sanitize) {
  save_safetensors(file_, {}, {});
  const SafetensorsFile loaded(file_);
  EXPECT_TRUE(loaded.names().empty());
  EXPECT_TRUE(loaded.metadata().empty());
}

TEST_F(Safetensors, a_tensor_at_an_odd_byte_is_aligned_in_memory_sanitize) {
  write(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I32","shape":[1],"data_offsets":[1,5]}})",
        std::string("\5\6\0\0\0", 5));
  const SafetensorsFile loaded(file_);
  EXPECT_EQ(*static_cast<const std::int32_t*>(loaded.tensor("b").data), 6);
}

TEST_F(Safetensors, damaged_headers_are_refused_sanitize) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "header: expected JSON"},
      {"{", "header: expected JSON"},
      {"[]", "header: expected a JSON object"},
      {"{\"a\xFF\":1}", "header: expected JSON"},
      {R"({"a":1})", "tensor 'a': expected an object of dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "tensor 'a': expected an object"},
      {R"({"a":{"dtype":"F8","shape":[4],"data_offsets":[0,4]}})", "tensor 'a': dtype: expected F32, F16"},
      {R"({"a":{"dtype":3,"shape":[4],"data_offsets":[0,4]}})", "tensor 'a': expected an object"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", "tensor 'a': expected a list 'shape'"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",
       "tensor 'a': expected whole numbers of at least 0 in 'shape', got -4"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", "tensor 'a': expected whole numbers"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})", "tensor 'a': expected whole numbers"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,4]}})",
       "tensor 'a': shape: expected fewer elements"},
      {R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})",
       "tensor 'a': shape: expected fewer elements"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,4],"data_offsets":[0,4]}})",
       "tensor 'a': shape: expected at most 6 dimensions, got 7"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,5]}})",
       "tensor 'a': data_offsets: expected a beginning and an end that are 4"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "tensor 'a': data_offsets: expected a beginning"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", "tensor 'a': data_offsets: expected a beginning"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "expected 3 bytes of tensors, got 4"},
      {R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", "expected 5 bytes of tensors, got 4"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})", "tensor 'a': data_offsets: expected to begin at byte 0"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "tensor 'b': data_offsets: expected to begin at byte 3, where the one before ends, got 2"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "tensor '"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "header: expected each name once, got 'a' twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "header: expected each name once, got 'dtype' twice"},
      {R"({"__metadata__":{"k":1},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "__metadata__: expected a string for 'k'"},
      {R"({"__metadata__":[],"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "__metadata__: expected an object of strings"},
      {R"({"__metadata__":{"k":{"l":{"m":{}}}}})", "header: expected objects of objects, got deeper nesting"}};
  for (const auto& [header, expected] : cases) {
    write(header, "abcd");
    const std::string text = refusal();
    EXPECT_TRUE(text.starts_with(expected)) << header << "\n" << text;
  }
  write(std::string(100'000, '['), "abcd");
  EXPECT_EQ(refusal(), "header: expected objects of objects, got deeper nesting");
}

TEST_F(Safetensors, no_file_or_a_length_that_lies_sanitize) {
  EXPECT_EQ(refusal(), "No such file or directory");
  write("");
  EXPECT_EQ(refusal(), "expected at least 8 bytes, got 0");
  write("1234567");
  EXPECT_EQ(refusal(), "expected at least 8 bytes, got 7");
  write(std::string(8, '\xFF') + "{}");
  EXPECT_EQ(refusal(),
            "expected a header of at most 2 bytes, got a length of 18446744073709551615: truncated, or no safetensors file");
  file_ = folder_.string();
  EXPECT_EQ(refusal(), "expected a regular file");
}

TEST_F(Safetensors, each_truncation_is_refused_sanitize) {
  const std::vector<float> values(5, 1.5F);
  const NamedTensor tensors[] = {{"a", ConstTensorView(values.data(), DType::f32, {5})}};
  save_safetensors(file_, tensors, {{"state", "{}"}});
  const std::string whole = read();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    EXPECT_NE(refusal(), "no error") << length;
  }
  write(whole + "x");
  EXPECT_EQ(refusal(), "expected 20 bytes of tensors, got 21");
}

// A flipped bit in a tensor's values cannot be seen by the format; anywhere else the file must load or be refused by an Error.
TEST_F(Safetensors, random_damage_never_does_worse_than_an_error_sanitize) {
  const std::vector<float> values(5, 1.5F);
  const NamedTensor tensors[] = {{"a", ConstTensorView(values.data(), DType::f32, {5})},
                                 {"b", ConstTensorView(values.data(), DType::u8, {3})}};
  save_safetensors(file_, tensors, {{"state", "{}"}});
  const std::string whole = read();
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string damaged = whole;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) damaged[random() % damaged.size()] = static_cast<char>(random());
    write(damaged);
    refused += refusal() != "no error";
  }
  EXPECT_GT(refused, 500);
}

TEST_F(Safetensors, wrong_arguments_leave_no_file_sanitize) {
  const std::vector<float> values(6);
  const ConstTensorView good(values.data(), DType::f32, {2, 3});
  const auto code = [&](std::vector<NamedTensor> tensors, const Metadata& metadata) {
    try {
      save_safetensors(file_, tensors, metadata);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::device;
  };
  EXPECT_EQ(code({{"a", good.transposed(0, 1)}}, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{"a", {}}}, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{"a", ConstTensorView(values.data(), DType::f32, {6}, Device::cuda(0))}}, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{"a", good}, {"a", good}}, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{"__metadata__", good}}, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({{"a\xFF", good}}, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({}, {{"k", "\xC3"}}), ErrorCode::invalid_argument);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(Safetensors, a_save_that_fails_keeps_the_old_file_sanitize) {
  const float one = 1, two = 2;
  const NamedTensor first[] = {{"a", ConstTensorView(&one, DType::f32, {1})}},
                    second[] = {{"a", ConstTensorView(&two, DType::f32, {1})}};
  const auto value = [&] { return *static_cast<const float*>(SafetensorsFile(file_).tensor("a").data); };
  save_safetensors(file_, first, {});
  const SafetensorsFile opened(file_);
  save_safetensors(file_, second, {});
  EXPECT_EQ(value(), 2);
  EXPECT_EQ(*static_cast<const float*>(opened.tensor("a").data), 1);  // a reader of the old file is not disturbed

  std::filesystem::create_directory(folder_ / "taken");
  std::ofstream(folder_ / "taken" / "x") << "x";
  EXPECT_THROW(save_safetensors((folder_ / "taken").string(), first, {}), Error);  // the rename fails: a folder stands there
  EXPECT_THROW(save_safetensors((folder_ / "none" / "a").string(), first, {}), Error);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"a.safetensors", "taken"}));  // and no temporary file
}

}  // namespace
}  // namespace everglow::gnmt
