// Writes and reads checkpoints. The JSON is versioned: a newer format is refused instead of being guessed at. Every number of it is
// checked, and the model's sizes against the tensors of the file, before anything is computed or allocated from it.
#include "gnmt/checkpoint.hpp"

#include "gnmt/model_impl.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <cstring>

namespace everglow::gnmt {
namespace {

using Json = nlohmann::json;

constexpr int format_version = 1;
constexpr const char* state_key = "everglow";
constexpr const char* tokenizer_name = "tokenizer.sentencepiece";
constexpr const char* step_name = "optimizer.step";
constexpr const char* scaler_name = "optimizer.loss_scaler";  // of f16 alone

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

constexpr std::int64_t largest_count = 1'000'000'000'000'000;  // of steps and tokens: sums of two stay far from overflow
constexpr std::int64_t largest_size = 1 << 30;                 // of a layer: products of two stay far from overflow

/// What is wrong with a field of the state; the file's name is added where it is known.
struct Fault {
  std::string what;
};

std::int64_t whole(const Json& json, const char* key, std::int64_t least, std::int64_t most) {
  const Json& value = json.at(key);
  // An unsigned number past int64 would come back negative, and one with a fraction cut off.
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                               : value.is_number_integer() && value.get<std::int64_t>() <= most;
  if (!fits || value.get<std::int64_t>() < least)
    throw Fault{fmt::format("{}: expected a whole number from {} to {}, got {}", key, least, most, value.dump())};
  return value.get<std::int64_t>();
}

double real(const Json& json, const char* key) {
  const auto value = json.at(key).get<double>();
  if (!(value >= 0)) throw Fault{fmt::format("{}: expected a number of at least 0, got {}", key, value)};
  return value;
}

ModelDescription model_from(const Json& json) {
  ModelDescription model;
  model.hidden = whole(json, "hidden", 1, largest_size);
  model.layers = whole(json, "layers", 1, largest_size);
  model.vocabulary = whole(json, "vocabulary", 1, largest_size);
  model.dropout = json.at("dropout").get<float>();
  model.label_smoothing = json.at("label_smoothing").get<float>();
  try {
    model.dtype = parse_dtype(json.at("dtype").get<std::string>());
    return check_description(model);
  } catch (const Error& e) {
    throw Fault{e.what()};
  }
}

TrainState state_from(const Json& json) {
  TrainState state;
  state.model = model_from(json.at("model"));
  const Json& data = json.at("data");
  state.asked_vocabulary = whole(data, "asked_vocabulary", 0, largest_count);
  state.batch_tokens = whole(data, "batch_tokens", 0, largest_count);
  state.max_words = whole(data, "max_words", 0, largest_count);
  state.seed = data.at("seed").get<std::uint64_t>();
  state.training_pairs = whole(data, "training_pairs", 0, largest_count);
  state.training_hash = data.at("training_hash").get<std::uint64_t>();
  const Json& run = json.at("run");
  state.step = whole(run, "step", 0, largest_count);
  if (run.contains("skipped")) state.skipped = whole(run, "skipped", 0, largest_count);
  state.epoch = whole(run, "epoch", 0, largest_count);
  state.position = whole(run, "position", 0, largest_count);
  state.tokens = whole(run, "tokens", 0, largest_count);
  state.seconds = real(run, "seconds");
  state.validated_step = whole(run, "validated_step", -1, largest_count);
  const Json& best = json.at("best");
  state.best_step = whole(best, "step", -1, largest_count);
  state.best_bleu = real(best, "bleu");
  state.best_exact = real(best, "exact");
  state.best_loss = real(best, "loss");
  const Json& build = json.at("computed_by");
  state.version = build.at("version").get<std::string>();
  state.isa = build.at("isa").get<std::string>();
  if (build.contains("device")) state.device = build.at("device").get<std::string>();
  state.threads = static_cast<int>(whole(build, "threads", 0, largest_size));
  state.kernels = build.at("kernels").get<std::vector<std::pair<std::string, std::string>>>();
  return state;
}

}  // namespace

std::string to_json(const TrainState& state) {
  Json json = {
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
  if (state.skipped > 0) json["run"]["skipped"] = state.skipped;
  if (!state.device.empty()) json["computed_by"]["device"] = state.device;
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
  } catch (const Fault& fault) {
    throw damaged(file, fmt::format("the state of the run is damaged: {}", fault.what));
  }
}

void save_checkpoint(const std::string& file, const Model& model, const Tokenizer& tokenizer, const TrainState& state) {
  std::vector<NamedTensor> tensors;
  std::vector<Buffer> copies;  // of what lies on a card
  const auto add = [&](std::string name, const TensorView& view) {
    if (view.device == Device::cpu()) return tensors.push_back({std::move(name), view});
    copies.emplace_back(static_cast<std::size_t>(view.elements()) * size_of(view.dtype), Device::cpu());
    const TensorView here(copies.back().data(), view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    copy(here, view);
    tensors.push_back({std::move(name), here});
  };
  for (const Parameter& p : model.parameters()) {
    add(p.name, p.value);
    add(moment_name("m", p.name), p.m);
    add(moment_name("v", p.name), p.v);
  }
  add(step_name, model.optimizer_step());
  if (model.description().dtype == DType::f16) add(scaler_name, model.loss_scaler());
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
  check_sizes();
}

void Checkpoint::check_sizes() const {
  const ModelDescription& model = state_.model;
  const std::int64_t H = model.hidden;
  const DType dtype = master_type(model.dtype);
  checked("embedding.weight", ConstTensorView(nullptr, dtype, {model.vocabulary, H}));
  for (std::int64_t l = 0; l < model.layers; ++l)  // ends at the first layer that the file does not have
    for (const char* side : {"encoder", "decoder"})
      checked(fmt::format("{}.{}.weight_hh", side, l), ConstTensorView(nullptr, dtype, {4 * H, H}));
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
  const Tokenizer tokenizer = [&] {
    try {
      return Tokenizer::from_model({static_cast<const char*>(bytes.data), static_cast<std::size_t>(bytes.elements())});
    } catch (const Error& e) {
      throw damaged(name_, fmt::format("tensor {}: {}", tokenizer_name, e.what()));
    }
  }();
  if (tokenizer.vocabulary() != state_.model.vocabulary)
    throw damaged(name_, fmt::format("expected a tokenizer of {} pieces, got {}", state_.model.vocabulary, tokenizer.vocabulary()));
  return tokenizer;
}

void Checkpoint::restore(Model& model) const {
  if (model.description().dtype == DType::f16) {
    std::array<float, 3> scaler{};
    std::memcpy(scaler.data(), checked(scaler_name, model.loss_scaler()).data, sizeof scaler);
    const auto counts = [](float x) { return x >= 0 && x <= 0x1p24F; };
    if (!(scaler[0] > 0 && std::isfinite(scaler[0]) && counts(scaler[1]) && counts(scaler[2])))
      throw damaged(name_, fmt::format("tensor {}: expected a scale and two counts, got {}, {}, {}", scaler_name, scaler[0],
                                       scaler[1], scaler[2]));
  }
  for (const Parameter& p : model.parameters()) {
    copy(p.value, checked(p.name, p.value));
    copy(p.m, checked(moment_name("m", p.name), p.m));
    copy(p.v, checked(moment_name("v", p.name), p.v));
  }
  copy(model.optimizer_step(), checked(step_name, model.optimizer_step()));
  if (model.description().dtype == DType::f16) copy(model.loss_scaler(), checked(scaler_name, model.loss_scaler()));
  model.weights_changed();
}

}  // namespace everglow::gnmt
