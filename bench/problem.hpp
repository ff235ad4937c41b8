// A case as something that can be timed: for each row of the layer's table that accepts it, a function for each direction.
#pragma once

#include "bench/tensors.hpp"
#include "cases/case.hpp"

#include <everglow/everglow.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::bench {

struct Settings {
  int threads = 1;
  std::uint64_t seed = 1;
  std::int64_t rotate_bytes = 0;
  std::vector<std::string> rows{};  // names of the rows to time; empty: all that accept
  bool peers = false;               // oneDNN's own primitives beside them
};

/// What one direction does at least: arithmetic of its products, and bytes of the tensors it must read and write.
struct Direction {
  std::string name;
  double flops = 0;
  double bytes = 0;
  double steps = 0;              // time steps of a recurrent layer, for the time of one
  double tokens = 0, pairs = 0;  // of a model
};

/// One direction of one row. `prepare` makes what `run` reads and another direction wrote; both take the number of a set.
struct Pass {
  std::function<void(std::int64_t)> prepare;
  std::function<void(std::int64_t)> run;
};

struct Row {
  std::string kernel;
  std::int64_t sets = 1;
  std::vector<Pass> passes;  // as Problem::directions
};

struct Problem {
  std::string dtype;
  std::vector<Direction> directions;
  std::vector<Row> rows;
};

inline bool is_reference(std::string_view kernel) { return kernel.starts_with("reference."); }

/// The keys that a layer's benchmark knows: sizes, which have no default, and options.
struct Layer {
  std::string_view name;
  std::vector<std::string_view> sizes, options;
};
const std::vector<Layer>& benchmarked_layers();

/// Throws std::invalid_argument for an unknown layer or a key that the layer's benchmark does not know, Error for impossible sizes.
Problem make_problem(const cases::Case& c, const Settings& settings);

Problem linear_problem(const cases::Case& c, const Settings& settings);
Problem recurrent_problem(const cases::Case& c, const Settings& settings);
Problem attention_problem(const cases::Case& c, const Settings& settings);
Problem softmax_problem(const cases::Case& c, const Settings& settings);
Problem embedding_problem(const cases::Case& c, const Settings& settings);
Problem loss_problem(const cases::Case& c, const Settings& settings);
Problem pointwise_problem(const cases::Case& c, const Settings& settings);
Problem adam_problem(const cases::Case& c, const Settings& settings);
Problem gnmt_problem(const cases::Case& c, const Settings& settings);

/// The value of a key as one of the names, by its position.
template <class Enum>
Enum named(const cases::Case& c, std::string_view key, const std::vector<std::string>& names) {
  const std::string value = c.text(key, names.front());
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == value) return static_cast<Enum>(i);
    all += (i == 0 ? "" : ", ") + names[i];
  }
  throw std::invalid_argument("case: " + std::string(key) + ": expected one of " + all + ", got \"" + value + "\"");
}

inline DType dtype_of(const cases::Case& c) { return parse_dtype(c.text("dtype", "f32")); }
Activation activation_of(const cases::Case& c);

/// Calls passes(plan, sets) for each CPU row that accepts and that the user wants.
template <class Plan, class Description, class Sizes, class Passes>
std::vector<Row> accepting_rows(const Settings& settings, const TensorSets& tensors, const Description& description,
                                const Sizes& sizes, const Passes& passes) {
  // Which layer a plan belongs to is what any plan of it says.
  const std::string layer = Plan(description, sizes, Device::cpu()).explain().layer;
  std::vector<Row> out;
  for (const std::string& name : kernels(layer, DeviceKind::cpu)) {
    if (!settings.rows.empty() && std::find(settings.rows.begin(), settings.rows.end(), name) == settings.rows.end()) continue;
    try {
      const Plan plan(description, sizes, Device::cpu(), {.threads = settings.threads, .force = name});
      // Caches do not matter to a row that is bound by scalar arithmetic, and preparing many of its sets would take minutes.
      const std::int64_t sets = is_reference(name) ? std::min<std::int64_t>(tensors.sets(), 2) : tensors.sets();
      out.push_back({name, sets, passes(plan, sets)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
  return out;
}

/// Bytes of u8 for each set, for example reserves.
class ByteSets {
 public:
  ByteSets(std::size_t bytes, std::int64_t sets);
  TensorView at(std::int64_t set) const;

 private:
  std::int64_t bytes_, stride_;
  Buffer memory_;
};

/// Packed weights of each set in the memory given, which must live as long; pack(set, packed) packs one.
template <class Pack>
std::shared_ptr<const std::vector<PackedWeights>> packed_sets(const ByteSets& memory, std::int64_t sets, const Pack& pack) {
  auto out = std::make_shared<std::vector<PackedWeights>>();
  for (std::int64_t set = 0; set < sets; ++set) {
    out->push_back({.bytes = memory.at(set)});
    pack(set, out->back());
  }
  return out;
}

}  // namespace everglow::bench
