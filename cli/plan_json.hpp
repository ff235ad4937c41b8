// Explanations as JSON: the names are those of the struct. The schema is docs/plan.schema.json.
#pragma once

#include <everglow/everglow.hpp>

#include <nlohmann/json.hpp>

namespace everglow::cli {

using Json = nlohmann::ordered_json;

/// Raised when a field changes its meaning or goes; a new field does not raise it.
inline constexpr int plan_schema_version = 1;

/// All but schema_version, which stands at the top of what the tool prints.
Json explanation_json(const Explanation& explanation);
Json gemm_json(const ExplanationGemm& gemm);
Json advice_json(const ExplanationAdvice& advice);

}  // namespace everglow::cli
