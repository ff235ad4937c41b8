// The rows of a layer's table that accept a problem, each with what its plan predicts.
#pragma once

#include "bench/problem.hpp"

#include <algorithm>

namespace everglow::bench {

/// Of each direction. What comes after forward is the difference of a plan that trains and one that does not.
template <class Plan, class Description, class Sizes>
std::vector<Expected> expected_of(const Settings& settings, const std::vector<Direction>& directions,
                                  const Description& description, const Sizes& sizes, PlanOptions options) {
  options.advice = false;
  const auto of = [&](const Description& d) {
    const Explanation explanation = Plan(d, sizes, settings.device, options).explain();
    return Expected{explanation.time_us, explanation.floor_us};
  };
  const Expected all = of(description);
  Expected forward = all;
  if constexpr (requires { description.training; }) {
    Description inference = description;
    inference.training = false;
    forward = of(inference);
  }
  std::vector<Expected> out;
  for (const Direction& direction : directions) {
    Expected part = direction.part == Part::all ? all : forward;
    if (direction.part == Part::rest)
      part = {std::max(0.0, all.predicted_us - forward.predicted_us), std::max(0.0, all.floor_us - forward.floor_us)};
    out.push_back({part.predicted_us * direction.share, part.floor_us * direction.share});
  }
  return out;
}

/// The same row with the runs of each set captured into a graph, as a loop of many short kernels is meant to be used.
inline Row captured(const Row& row, const std::shared_ptr<Card>& card) {
  Row out = row;
  out.kernel += " (graph)", out.chosen = false;
  for (Pass& pass : out.passes) {
    const auto graphs = std::make_shared<std::vector<std::function<void()>>>(static_cast<std::size_t>(row.sets));
    pass.prepare = [card, graphs, before = pass.prepare, run = pass.run](std::int64_t set) {
      if (before) before(set);
      (*graphs)[static_cast<std::size_t>(set)] = card->captured([&] { run(set); });
    };
    pass.run = [graphs](std::int64_t set) { (*graphs)[static_cast<std::size_t>(set)](); };
  }
  return out;
}

/// And so each of them.
inline std::vector<Row> with_captured(std::vector<Row> rows, const Settings& settings) {
  const std::size_t count = settings.card && settings.graphs ? rows.size() : 0;
  for (std::size_t i = 0; i < count; ++i) rows.push_back(captured(rows[i], settings.card));
  return rows;
}

/// Appends each row of the device that accepts and that the user wants; passes(plan, sets) are its runs.
template <class Plan, class Description, class Sizes, class Passes>
void append_rows(Problem& problem, const Settings& settings, const TensorSets& tensors, const Description& description,
                 const Sizes& sizes, const Passes& passes) {
  // Which layer a plan belongs to is what any plan of it says.
  const Explanation own = Plan(description, sizes, settings.device, {.threads = settings.threads, .advice = false}).explain();
  for (const std::string& name : kernels(own.layer, settings.where().kind)) {
    if (!settings.rows.empty() && std::find(settings.rows.begin(), settings.rows.end(), name) == settings.rows.end()) continue;
    const PlanOptions options{.threads = settings.threads, .force = name};
    try {
      const Plan plan(description, sizes, settings.device, options);
      // Caches do not matter to a row that is bound by scalar arithmetic, and preparing many of its sets would take minutes.
      const std::int64_t sets = is_reference(name) ? std::min<std::int64_t>(tensors.sets(), 2) : tensors.sets();
      problem.rows.push_back({name, sets, passes(plan, sets),
                              expected_of<Plan>(settings, problem.directions, description, sizes, options), name == own.kernel});
      if (settings.card && (settings.graphs || own.layer == "recurrent"))
        problem.rows.push_back(captured(problem.rows.back(), settings.card));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
}

}  // namespace everglow::bench
