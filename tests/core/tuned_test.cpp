// The file of measured choices: what is added is read again, damage costs a line, and no reader sees half a file.
#include "gemm/tuned.hpp"

#include <everglow/error.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace everglow {
namespace {

using tuned::Choice;
using tuned::Choices;

class Tuned : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override {
    std::filesystem::remove_all(folder);
    unsetenv("EVERGLOW_TUNED");
  }
  std::string content() const {
    std::ifstream in(file);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  void write(const std::string& text) const { std::ofstream(file) << text; }
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("everglow_tuned_" + std::to_string(getpid()));
  const std::filesystem::path file = folder / "below" / "tuned.txt";
  const Choice one{{1, 2, 3, 4, 5, 6, 7, ~std::uint64_t{0}}, 47.25, 53.5}, other{{9}, 1.125, 2};
};

TEST_F(Tuned, WhatIsAddedIsReadAgain_sanitize) {
  EXPECT_TRUE(tuned::read(file).empty());
  tuned::add(file, {{"a card, m=1 n=2", one}});
  EXPECT_EQ(tuned::read(file), (Choices{{"a card, m=1 n=2", one}}));
  tuned::add(file, {{"b", other}, {"c", one}});
  tuned::add(file, {{"c", other}});
  EXPECT_EQ(tuned::read(file), (Choices{{"a card, m=1 n=2", one}, {"b", other}, {"c", other}}));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(file.parent_path())) ++files;
  EXPECT_EQ(files, 1U) << "something was left beside the file";
}

/// Every byte of a line is changed in turn, and cut off: either the line is as it was or it is not there; its neighbours are.
TEST_F(Tuned, ADamagedLineCostsItselfAlone_sanitize) {
  tuned::add(file, {{"a", other}, {"b", one}, {"c", other}});
  const std::string good = content();
  const std::size_t begin = good.find('\n') + 1, end = good.find('\n', begin);
  for (std::size_t at = begin; at < end; ++at) {
    std::string bad = good;
    bad[at] = bad[at] == '5' ? '6' : '5';
    write(bad);
    const Choices found = tuned::read(file);
    EXPECT_EQ(found, (Choices{{"a", other}, {"c", other}})) << "byte " << at;
    write(good.substr(0, at));
    EXPECT_EQ(tuned::read(file), (Choices{{"a", other}})) << "cut at " << at;
  }
  for (const char* text : {"", "\n\n", "\t", "a\tb", "\t\t\t\t\t\t\t\t\t\t\t\t", "{\"json\": 1}\n"}) {
    write(text);
    EXPECT_TRUE(tuned::read(file).empty()) << text;
  }
  tuned::add(file, {{"a", one}});
  EXPECT_EQ(tuned::read(file), (Choices{{"a", one}})) << "a damaged file can be added to";
}

TEST_F(Tuned, APlaceThatCannotBeWrittenIsAnError_sanitize) {
  std::ofstream(folder / "file") << "no folder";
  try {
    tuned::add(folder / "file" / "tuned.txt", {{"a", one}});
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("expected a file that can be written"), std::string::npos) << error.what();
  }
  std::filesystem::create_directories(file);  // a folder where the file should be
  EXPECT_THROW(tuned::add(file, {{"a", one}}), Error);
}

TEST_F(Tuned, LinksStayAndDevicesAreLeftAlone_sanitize) {
  const std::filesystem::path link = folder / "link", nothing = folder / "nothing";
  tuned::add(file, {{"a", one}});
  std::filesystem::create_symlink(file, link);
  tuned::add(link, {{"b", other}});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(tuned::read(file), (Choices{{"a", one}, {"b", other}}));
  std::filesystem::create_symlink("/dev/null", nothing);
  tuned::add(nothing, {{"a", one}});
  EXPECT_TRUE(std::filesystem::is_symlink(nothing));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_TRUE(tuned::read(nothing).empty());
}

TEST_F(Tuned, TheFileIsNamedOrInTheUsersCache_sanitize) {
  const char* const home = std::getenv("HOME");
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const std::string old_home = home != nullptr ? home : "", old_cache = cache != nullptr ? cache : "";
  setenv("XDG_CACHE_HOME", "/cache", 1), setenv("HOME", "/h", 1);
  EXPECT_EQ(tuned::file(), "/cache/everglow/tuned.txt");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(tuned::file(), "/h/.cache/everglow/tuned.txt");
  setenv("EVERGLOW_TUNED", "/elsewhere/t", 1);
  EXPECT_EQ(tuned::file(), "/elsewhere/t");
  setenv("EVERGLOW_TUNED", "", 1);
  EXPECT_EQ(tuned::file(), "");
  unsetenv("EVERGLOW_TUNED"), unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
  EXPECT_EQ(tuned::file(), "");
  if (home != nullptr) setenv("HOME", old_home.c_str(), 1);
  if (cache != nullptr) setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
}

}  // namespace
}  // namespace everglow
