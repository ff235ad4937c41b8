// Tables of bad calls. Each entry spoils one argument of a call that is right otherwise and says what the library must answer:
// the code, the place, and the text with the argument, what was expected and what came. Nothing may have been written then.
#pragma once

#include <everglow/runtime.hpp>
#include <everglow/tensor.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::test {

/// One block of memory for all tensors of a call, so that a single comparison shows whether anything was written. Floats are NaN
/// from the start, integers 0. Tensors lie on cache lines of their own, with a line between them.
class Pool {
 public:
  Pool() : memory_(capacity + line, std::byte{0xFF}) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    const std::size_t bytes = static_cast<std::size_t>(view.elements()) * size_of(dtype);
    view.data = take(bytes);
    if (dtype > DType::f64) std::memset(view.data, 0, bytes);
    return view;
  }
  Workspace workspace(std::size_t bytes) { return {take(bytes), bytes}; }
  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  static constexpr std::size_t capacity = 1 << 18, line = 64;

  void* take(std::size_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(memory_.data());
    const std::size_t begin = (first + line - 1) / line * line - first + used_;
    used_ += (bytes + 2 * line - 1) / line * line;
    if (used_ > capacity) throw std::length_error("the pool of a bad call is too small");
    return memory_.data() + begin;
  }

  std::vector<std::byte> memory_;
  std::size_t used_ = 0;
};

/// One entry. `World` has a Pool `pool` and `call(where)`, which makes the call that names itself so in its errors.
template <class World>
struct BadCall {
  std::string_view name;
  std::string_view where;
  ErrorCode code;
  std::string_view text;  // a part of the error's text
  void (*spoil)(World&);
};

/// What the right call must do before its spoilt forms mean anything: pass, and write unless it only makes a plan or prepares one.
template <class World>
void expect_right_call(std::string_view where) {
  SCOPED_TRACE(where);
  World world;
  const auto before = world.pool.memory();
  ASSERT_NO_THROW(world.call(where));
  const bool writes = !where.ends_with(".plan") && !where.ends_with(".prepare");
  EXPECT_EQ(before != world.pool.memory(), writes) << "a run that writes nothing shows nothing";
}

template <class World>
void expect_bad_calls(std::span<const BadCall<World>> table) {
  std::set<std::string_view> names;
  std::set<std::string_view> places;
  for (const auto& entry : table)
    if (places.insert(entry.where).second) expect_right_call<World>(entry.where);
  for (const auto& entry : table) {
    SCOPED_TRACE(std::string(entry.where) + ": " + std::string(entry.name));
    EXPECT_TRUE(names.insert(entry.name).second) << "two entries of one name";
    World world;
    entry.spoil(world);
    const auto before = world.pool.memory();
    try {
      world.call(entry.where);
      ADD_FAILURE() << "accepted; expected " << entry.text;
    } catch (const Error& error) {
      EXPECT_EQ(name(error.code()), name(entry.code)) << error.what();
      EXPECT_EQ(error.where(), entry.where) << error.what();
      EXPECT_NE(std::string_view(error.what()).find(entry.text), std::string_view::npos)
          << "expected " << entry.text << "\ngot      " << error.what();
    }
    EXPECT_EQ(before, world.pool.memory()) << "written in spite of the error";
  }
}

/// The view `bytes` further on.
template <class View>
void shift(View& view, std::ptrdiff_t bytes) {
  view.data =
      reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) + static_cast<std::uintptr_t>(bytes));
}

}  // namespace everglow::test
