// Writes and reads checkpoints. The JSON is versioned: a newer format is refused instead of being guessed at.
#include "gnmt/checkpoint.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace everglow::gnmt {
namespace {

using Json = nlohmann::json;

constexpr int format_version = 1;
constexpr const char* state_key = "everglow";
constexpr const char* tokenizer_name = "tokenizer.sentencepiece";
constexpr const char* step_name = "optimizer.step";

std::string moment_name(const char* moment, const std::string& parameter) {
  return fmt::format("optimizer.{}.{}", moment, parameter);
}

Error damaged(const std::string& file, const std::string& what) { return {ErrorCode::io, "checkpoint", file + ": " + what}; }

Json model_json(const ModelDescription& model) {
  return {{"hidden", model.hidden},
          {"layers", model.layers},
          {"vocabulary", model.vocabulary},
          {"dropout", model.dropout},
          {"label_smoothing", model.label_smoothing},
          {"dtype", std::string(name(model.dtype))}};
}

ModelDescription model_from(const Json& json) {
  ModelDescription model;
  model.hidden = json.at("hidden").get<std::int64_t>();
  model.layers = json.at("layers").get<std::int64_t>();
  model.vocabulary = json.at("vocabulary").get<std::int64_t>();
  model.dropout = json.at("dropout").get<float>();
  model.label_smoothing = json.at("label_smoothing").get<float>();
  model.dtype = parse_dtype(json.at("dtype").get<std::string>());
  return model;
}

TrainState state_from(const Json& json) {
  TrainState state;
  state.model = model_from(json.at("model"));
  const Json& data = json.at("data");
  state.asked_vocabulary = data.at("asked_vocabulary").get<std::int64_t>();
  state.batch_tokens = data.at("batch_tokens").get<std::int64_t>();
  state.max_words = data.at("max_words").get<std::int64_t>();
  state.seed = data.at("seed").get<std::uint64_t>();
  state.training_pairs = data.at("training_pairs").get<std::int64_t>();
  state.training_hash = data.at("training_hash").get<std::uint64_t>();
  const Json& run = json.at("run");
  state.step = run.at("step").get<std::int64_t>();
  state.epoch = run.at("epoch").get<std::int64_t>();
  state.position = run.at("position").get<std::int64_t>();
  state.tokens = run.at("tokens").get<std::int64_t>();
  state.seconds = run.at("seconds").get<double>();
  state.validated_step = run.at("validated_step").get<std::int64_t>();
  const Json& best = json.at("best");
  state.best_step = best.at("step").get<std::int64_t>();
  state.best_bleu = best.at("bleu").get<double>();
  state.best_exact = best.at("exact").get<double>();
  state.best_loss = best.at("loss").get<double>();
  const Json& build = json.at("computed_by");
  state.version = build.at("version").get<std::string>();
  state.isa = build.at("isa").get<std::string>();
  state.threads = build.at("threads").get<int>();
  state.kernels = build.at("kernels").get<std::vector<std::pair<std::string, std::string>>>();
  return state;
}

}  // namespace

std::string to_json(const TrainState& state) {
  const Json json = {
      {"format", format_version},
      {"model", model_json(state.model)},
      {"data",
       {{"asked_vocabulary", state.asked_vocabulary},
        {"batch_tokens", state.batch_tokens},
        {"max_words", state.max_words},
        {"seed", state.seed},
        {"training_pairs", state.training_pairs},
        {"training_hash", state.training_hash}}},
      {"run",
       {{"step", state.step},
        {"epoch", state.epoch},
        {"position", state.position},
        {"tokens", state.tokens},
        {"seconds", state.seconds},
        {"validated_step", state.validated_step}}},
      {"best", {{"step", state.best_step}, {"bleu", state.best_bleu}, {"exact", state.best_exact}, {"loss", state.best_loss}}},
      {"computed_by", {{"version", state.version}, {"isa", state.isa}, {"threads", state.threads}, {"kernels", state.kernels}}}};
  return json.dump();
}

TrainState state_from_json(const std::string& json, const std::string& file) {
  try {
    const Json parsed = Json::parse(json);
    const int format = parsed.at("format").get<int>();
    if (format != format_version)
      throw damaged(file, fmt::format("expected a checkpoint of format {}, got format {}", format_version, format));
    return state_from(parsed);
  } catch (const Json::exception& e) {
    throw damaged(file, fmt::format("the state of the run is damaged: {}", e.what()));
  }
}

void save_checkpoint(const std::string& file, const Model& model, const Tokenizer& tokenizer, const TrainState& state) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& p : model.parameters()) {
    tensors.push_back({p.name, p.value});
    tensors.push_back({moment_name("m", p.name), p.m});
    tensors.push_back({moment_name("v", p.name), p.v});
  }
  tensors.push_back({step_name, model.optimizer_step()});
  const std::string& bytes = tokenizer.model();
  tensors.push_back({tokenizer_name, ConstTensorView(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())})});
  save_safetensors(file, tensors, {{state_key, to_json(state)}});
}

Checkpoint::Checkpoint(std::string file) : name_(std::move(file)), file_(name_) {
  const auto found = file_.metadata().find(state_key);
  if (found == file_.metadata().end())
    throw damaged(
        name_, fmt::format("expected a checkpoint of everglow, got a safetensors file without \"{}\" in its metadata", state_key));
  state_ = state_from_json(found->second, name_);
}

ConstTensorView Checkpoint::checked(const std::string& name, const ConstTensorView& like) const {
  if (!file_.has(name)) throw damaged(name_, fmt::format("expected a tensor {} {}, got none", name, to_string(like)));
  const ConstTensorView view = file_.tensor(name);
  if (view.dtype != like.dtype || view.rank != like.rank || view.shape != like.shape)
    throw damaged(name_, fmt::format("expected tensor {} to be {}, got {}", name, to_string(like), to_string(view)));
  return view;
}

Tokenizer Checkpoint::tokenizer() const {
  if (!file_.has(tokenizer_name)) throw damaged(name_, fmt::format("expected a tensor {}, got none", tokenizer_name));
  const ConstTensorView bytes = file_.tensor(tokenizer_name);
  if (bytes.dtype != DType::u8)
    throw damaged(name_, fmt::format("expected tensor {} to be u8, got {}", tokenizer_name, to_string(bytes)));
  Tokenizer tokenizer = Tokenizer::from_model({static_cast<const char*>(bytes.data), static_cast<std::size_t>(bytes.elements())});
  if (tokenizer.vocabulary() != state_.model.vocabulary)
    throw damaged(name_, fmt::format("expected a tokenizer of {} pieces, got {}", state_.model.vocabulary, tokenizer.vocabulary()));
  return tokenizer;
}

void Checkpoint::restore(const Model& model) const {
  for (const Parameter& p : model.parameters()) {
    copy(p.value, checked(p.name, p.value));
    copy(p.m, checked(moment_name("m", p.name), p.m));
    copy(p.v, checked(moment_name("v", p.name), p.v));
  }
  copy(model.optimizer_step(), checked(step_name, model.optimizer_step()));
}

}  // namespace everglow::gnmt
