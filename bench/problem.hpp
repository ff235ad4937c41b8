// A case as something that can be timed: for each row of the layer's table that accepts it, a function for each direction, and
// what the plan predicts of it.
#pragma once

#include "bench/cuda/card.hpp"
#include "bench/tensors.hpp"
#include "cases/case.hpp"

#include <everglow/everglow.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace everglow::bench {

struct Settings {
  DeviceDescription device{Device::cpu()};  // where the rows run, and whose figures the predictions are made of
  std::shared_ptr<Card> card{};             // of a device that is a card: its stream and its clock
  int threads = 0;                          // 0: those of a plan that nobody tells
  std::uint64_t seed = 1;
  std::int64_t rotate_bytes = 0;
  std::vector<std::string> rows{};  // names of the rows to time; empty: all that accept
  bool graphs = false;              // on a card each row once more, captured into a graph; recurrent rows always
  bool peers = false;               // other libraries' own primitives beside them: oneDNN, or cuBLASLt and cuDNN

  Device where() const { return device.device; }
  Stream stream() const { return card ? card->stream() : Stream{}; }
};

inline Places places(const Settings& settings) {
  return {.device = settings.where(), .rotate_bytes = settings.rotate_bytes, .seed = settings.seed};
}

/// What a direction is of the passes that a plan explains.
enum class Part : std::uint8_t { all, forward, rest };

/// What one direction does at least: arithmetic of its products, and bytes of the tensors it must read and write.
struct Direction {
  std::string name;
  double flops = 0;
  double bytes = 0;
  Part part = Part::all;
  double share = 1;              // of that part: the plan counts all steps of all rows, and tensors that a run may lack
  double steps = 0;              // time steps of a recurrent layer, for the time of one
  double tokens = 0, pairs = 0;  // of a model
};

/// What the plan says of one direction; 0: nothing.
struct Expected {
  double predicted_us = 0;
  double floor_us = 0;  // no implementation can be faster on the device as its figures describe it
};

/// One direction of one row. `prepare` makes what `run` reads and another direction wrote; both take the number of a set.
struct Pass {
  std::function<void(std::int64_t)> prepare;
  std::function<void(std::int64_t)> run;
};

struct Row {
  std::string kernel;
  std::int64_t sets = 1;
  std::vector<Pass> passes;          // as Problem::directions
  std::vector<Expected> expected{};  // likewise
  bool chosen = false;               // a plan that nobody tells which row to take takes this one
};

struct Problem {
  std::string dtype;
  std::vector<Direction> directions;
  std::vector<Row> rows;
};

inline bool is_reference(std::string_view kernel) { return kernel.starts_with("reference."); }
/// Rows of plain loops, which take anything and are no peer: a large problem takes them seconds.
inline bool is_plain(std::string_view kernel) {
  return is_reference(kernel) || kernel.starts_with("cuda.linear") || kernel.starts_with("cuda.loss");  // "... (graph)" too
}

/// The keys that a layer's benchmark knows: sizes, which have no default, and options.
struct Layer {
  std::string_view name;
  std::vector<std::string_view> sizes, options;
};
const std::vector<Layer>& benchmarked_layers();
/// Whether a benchmark has the rows of a layer's table: not the translation model and the copy.
inline bool has_table(std::string_view layer) { return layer != "gnmt" && layer != "copy"; }

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
Problem copy_problem(const cases::Case& c, const Settings& settings);
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

/// What the device can do with a dtype on so many threads, by its figures.
struct Roof {
  double peak_gflops = 0;
  double bandwidth_gbs = 0;  // of main memory
  std::string figures;       // "measured", "estimated"
};
Roof roof_of(DType dtype, const Settings& settings);

/// Appends rows that no plan of ours makes. The floor is the device's and not the row's: they have that of the rows before them.
void append_peers(Problem& problem, std::vector<Row> peers);

/// Bytes of u8 for each set, all 0, for example reserves.
class ByteSets {
 public:
  ByteSets(std::size_t bytes, std::int64_t sets, Device device);
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
