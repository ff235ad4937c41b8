// Explanations as JSON.
#include "cli/plan_json.hpp"

namespace everglow::cli {
namespace {

std::string tile_text(const ExplanationTile& tile) { return std::to_string(tile.m) + "x" + std::to_string(tile.n); }

Json operand_json(const ExplanationOperand& operand) {
  return {{"role", operand.role},
          {"tensor", operand.tensor},
          {"leading_bytes", operand.leading_bytes},
          {"alignment_bytes", operand.alignment_bytes}};
}

Json residency_json(const ExplanationResidency& r) {
  return {{"resident", r.resident},
          {"where", r.where},
          {"bytes", r.bytes},
          {"groups", r.groups},
          {"blocks", r.blocks},
          {"units_per_block", r.units_per_block},
          {"largest_hidden", r.largest_hidden},
          {"hand_off_us", r.hand_off_us},
          {"broadcast_us", r.broadcast_us},
          {"arithmetic_us", r.arithmetic_us},
          {"step_us", r.step_us},
          {"step_floor_us", r.step_floor_us},
          {"reason", r.reason}};
}

Json algorithm_json(const ExplanationAlgorithm& a) {
  return {{"bytes", a.bytes},
          {"flops", a.flops},
          {"time_us", a.time_us},
          {"backward_time_us", a.backward_time_us},
          {"tile", tile_text(a.tile)},
          {"shared_bytes", a.shared_bytes},
          {"register_bytes", a.register_bytes},
          {"blocks", a.blocks},
          {"waves", a.waves},
          {"splits", a.splits},
          {"formula", a.formula}};
}

template <class Items, class Convert>
Json list(const Items& items, const Convert& convert) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(convert(item));
  return out;
}

}  // namespace

Json gemm_json(const ExplanationGemm& g) {
  Json out{{"pass", g.pass},
           {"name", g.name},
           {"layer", g.layer},
           {"direction", g.direction},
           {"count", g.count},
           {"m", g.m},
           {"n", g.n},
           {"k", g.k},
           {"transpose_a", g.transpose_a},
           {"transpose_b", g.transpose_b},
           {"operands", list(g.operands, operand_json)},
           {"alignment_bytes", g.alignment_bytes},
           {"arithmetic_intensity", g.arithmetic_intensity},
           {"ridge", g.ridge},
           {"bound", g.bound},
           {"tile", tile_text(g.tile)},
           {"tiles", g.tiles},
           {"tile_efficiency", g.tile_efficiency},
           {"waves", g.waves},
           {"wave_efficiency", g.wave_efficiency},
           {"chosen_tile", tile_text(g.chosen_tile)},
           {"split_k", g.split_k},
           {"time_us", g.time_us},
           {"floor_us", g.floor_us},
           {"source", g.source}};
  if (!g.algorithm.empty()) out["algorithm"] = g.algorithm;
  return out;
}

Json advice_json(const ExplanationAdvice& a) {
  return {{"kind", a.kind},
          {"dimension", a.dimension},
          {"from", a.from},
          {"to", a.to},
          {"time_us_before", a.time_us_before},
          {"time_us_after", a.time_us_after},
          {"gain", a.gain},
          {"reason", a.reason}};
}

Json explanation_json(const Explanation& e) {
  Json out;
  out["layer"] = e.layer;
  out["device"] = e.device;
  out["dtype"] = e.dtype;
  out["figures"] = e.figures;
  out["kernel"] = e.kernel.empty() ? Json(nullptr) : Json(e.kernel);
  out["time_us"] = e.time_us;
  out["floor_us"] = e.floor_us;
  if (!e.passes.empty())
    out["passes"] = list(e.passes, [](const ExplanationPass& pass) {
      return Json{{"name", pass.name}, {"time_us", pass.time_us}};
    });
  out["alignment_needed"] = e.alignment_needed;
  out["rows"] = list(e.rows, [](const ExplanationRow& row) {
    return Json{{"name", row.name}, {"taken", row.taken}, {"reason", row.reason}};
  });
  out["gemms"] = list(e.gemms, gemm_json);
  if (e.residency) out["residency"] = residency_json(*e.residency);
  for (const ExplanationPeer& peer : e.peers) out["peers"][peer.name] = Json{{"eligible", peer.eligible}, {"reason", peer.reason}};
  for (const ExplanationAlgorithm& a : e.algorithms) out["algorithms"][a.name] = algorithm_json(a);
  out["advice"] = list(e.advice, advice_json);
  return out;
}

}  // namespace everglow::cli
