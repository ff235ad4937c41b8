// Checkpoints: what is saved comes back to the bit, and damage is named.
#include "gnmt/checkpoint.hpp"

#include <everglow/gnmt/trainer.hpp>

#include "gnmt/model_batches.hpp"
#include "gnmt/temporary_folder.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

namespace everglow::gnmt {
namespace {

const std::vector<std::string> lines{"one two three", "two three four", "three four five", "five one two", "four five one"};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
    return e.what();
  }
  return "nothing was thrown";
}

struct Saved {
  test::TemporaryFolder folder;
  Tokenizer tokenizer = Tokenizer::train(lines, 30);
  ModelDescription description;
  Model model;
  TrainState state;
  std::string file = folder.file("a.safetensors");

  explicit Saved(DType dtype = DType::f32)
      : description{.hidden = 6, .layers = 2, .vocabulary = tokenizer.vocabulary(), .dropout = 0.3F, .dtype = dtype},
        model(description, Device::cpu(), {}) {
    model.initialise(7);
    const Batch batch = test::ragged_batch(description.vocabulary);
    for (std::uint64_t step = 0; step < 3; ++step) model.forward_backward(batch, 1, step), model.apply(0.01, 5);
    state.model = description;
    state.asked_vocabulary = 30, state.batch_tokens = 55, state.max_words = 9, state.seed = 1ULL << 63;
    state.training_pairs = 5, state.training_hash = ~0ULL;
    state.step = 3, state.epoch = 2, state.position = 1, state.tokens = 1'000'000'000'000, state.seconds = 0.1;
    state.best_step = 2, state.validated_step = 3, state.best_bleu = 1.0 / 3, state.best_exact = 50, state.best_loss = 2.5;
    state.version = "0.1.0", state.isa = "avx512", state.threads = 2, state.kernels = {{"encoder 0", "reference.recurrent"}};
    save_checkpoint(file, model, tokenizer, state);
  }
};

TEST(Checkpoint, brings_back_every_bit_sanitize) {
  const Saved saved;
  const Checkpoint checkpoint(saved.file);
  EXPECT_EQ(to_json(checkpoint.state()), to_json(saved.state));
  EXPECT_EQ(checkpoint.state().seed, 1ULL << 63);
  EXPECT_EQ(checkpoint.tokenizer().model(), saved.tokenizer.model());
  Model other(checkpoint.state().model, Device::cpu(), {});
  other.initialise(8);
  checkpoint.restore(other);
  for (TensorView Parameter::*part : {&Parameter::value, &Parameter::m, &Parameter::v})
    EXPECT_EQ(test::bytes_of(other, part), test::bytes_of(saved.model, part));
  EXPECT_EQ(*static_cast<const std::int64_t*>(other.optimizer_step().data), 3);
}

TEST(Checkpoint, restores_into_a_model_that_has_run) {
  // A model may keep packed copies of its weights; they must follow.
  const Saved saved;
  Model fresh(saved.description, Device::cpu(), {}), used(saved.description, Device::cpu(), {});
  const Batch batch = test::ragged_batch(saved.description.vocabulary);
  used.initialise(8);
  used.forward_backward(batch, 1, 0);
  used.apply(0.1, 5);
  used.evaluate(batch);
  const Checkpoint checkpoint(saved.file);
  checkpoint.restore(used);
  checkpoint.restore(fresh);
  EXPECT_EQ(used.evaluate(batch).loss, fresh.evaluate(batch).loss);
}

TEST(Checkpoint, refuses_a_model_of_another_shape) {
  const Saved saved;
  ModelDescription wider = saved.description;
  wider.hidden = 8;
  Model other(wider, Device::cpu(), {});
  const std::string message = message_of([&] { Checkpoint(saved.file).restore(other); });
  EXPECT_NE(message.find("expected tensor"), std::string::npos) << message;
  EXPECT_NE(message.find(saved.file), std::string::npos) << message;
}

TEST(Checkpoint, names_a_file_that_is_not_a_checkpoint) {
  const Saved saved;
  const std::string file = saved.folder.file("plain.safetensors");
  const float value = 1;
  const NamedTensor tensor{"x", ConstTensorView(&value, DType::f32, {1})};
  save_safetensors(file, {&tensor, 1}, {});
  EXPECT_NE(message_of([&] { Checkpoint{file}; }).find("expected a checkpoint of everglow"), std::string::npos);
  EXPECT_NE(message_of([&] { Checkpoint{saved.folder.file("absent")}; }).find("absent"), std::string::npos);
}

TEST(Checkpoint, names_a_damaged_state_sanitize) {
  EXPECT_NE(message_of([] { state_from_json("{", "f"); }).find("f: the state of the run is damaged"), std::string::npos);
  EXPECT_NE(message_of([] { state_from_json(R"({"format":1})", "f"); }).find("damaged"), std::string::npos);
  const std::string newer = message_of([] { state_from_json(R"({"format":2})", "f"); });
  EXPECT_NE(newer.find("expected a checkpoint of format 1, got format 2"), std::string::npos) << newer;
}

TEST(Checkpoint, names_a_damaged_loss_scale_sanitize) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [at, value] : {std::pair{0, 0.0F}, {0, none}, {1, -1.0F}, {2, -1.0F}, {2, none}, {2, 0x1p30F}}) {
    Saved saved(DType::f16);
    static_cast<float*>(saved.model.loss_scaler().data)[at] = value;
    save_checkpoint(saved.file, saved.model, saved.tokenizer, saved.state);
    const Checkpoint checkpoint(saved.file);
    Model other(checkpoint.state().model, Device::cpu(), {});
    other.initialise(8);
    const std::string message = message_of([&] { checkpoint.restore(other); });
    EXPECT_NE(message.find("expected a scale and two counts"), std::string::npos) << at << ' ' << value << ": " << message;
  }
}

TEST(Checkpoint, names_numbers_that_no_run_has_sanitize) {
  const Saved saved;
  using Json = nlohmann::json;
  const std::pair<const char*, Json> cases[] = {{"/run/step", -1},
                                                {"/run/step", 18446744073709551615U},
                                                {"/run/epoch", -3},
                                                {"/run/position", -1},
                                                {"/run/position", "4"},
                                                {"/run/tokens", 1.5},
                                                {"/run/tokens", 1e300},
                                                {"/run/seconds", -0.5},
                                                {"/run/seconds", Json()},
                                                {"/run/validated_step", -2},
                                                {"/best/step", -2},
                                                {"/best/loss", Json()},
                                                {"/data/batch_tokens", -1},
                                                {"/model/hidden", 0},
                                                {"/model/hidden", 1LL << 62},
                                                {"/model/layers", -1},
                                                {"/model/vocabulary", 1LL << 62},
                                                {"/model/vocabulary", 3},
                                                {"/model/dropout", 1},
                                                {"/model/dtype", "f99"},
                                                {"/model/dtype", "i32"}};
  for (const auto& [pointer, value] : cases) {
    Json json = Json::parse(to_json(saved.state));
    json[Json::json_pointer(pointer)] = value;
    const std::string text = message_of([&] { state_from_json(json.dump(), "f"); });
    EXPECT_NE(text.find("f: the state of the run is damaged"), std::string::npos) << pointer << " " << value << ": " << text;
  }
}

TEST(Checkpoint, compares_the_sizes_with_the_tensors_before_a_model_is_made_sanitize) {
  const Saved saved;
  const auto message = [&](auto change) {
    TrainState state = saved.state;
    change(state.model);
    save_checkpoint(saved.file, saved.model, saved.tokenizer, state);
    const std::string text = message_of([&] { load_model(saved.file, Device::cpu(), {}); });
    EXPECT_NE(text.find(saved.file), std::string::npos) << text;
    return text;
  };
  constexpr std::int64_t large = 1 << 29;
  EXPECT_NE(message([](ModelDescription& m) { m.hidden = large; }).find("embedding.weight"), std::string::npos);
  EXPECT_NE(message([](ModelDescription& m) { m.vocabulary = large; }).find("embedding.weight"), std::string::npos);
  EXPECT_NE(message([](ModelDescription& m) { m.layers = large; }).find("encoder.2.weight_hh"), std::string::npos);
  EXPECT_NE(message([](ModelDescription& m) { m.layers = 1; }).find("encoder.projection.weight"), std::string::npos);
  EXPECT_NE(message([](ModelDescription& m) { m.dtype = DType::f64; }).find("embedding.weight"), std::string::npos);
}

TEST(Checkpoint, names_the_file_of_a_damaged_tokenizer_sanitize) {
  const Saved saved;
  const SafetensorsFile whole(saved.file);
  std::vector<NamedTensor> tensors;
  const std::string bytes = "no model at all";
  for (const std::string& name : whole.names()) tensors.push_back({name, whole.tensor(name)});
  for (NamedTensor& tensor : tensors)
    if (tensor.name == "tokenizer.sentencepiece") tensor.view = ConstTensorView(bytes.data(), DType::u8, {std::ssize(bytes)});
  const std::string damaged = saved.folder.file("damaged.safetensors");
  save_safetensors(damaged, tensors, whole.metadata());
  const std::string text = message_of([&] { load_model(damaged, Device::cpu(), {}); });
  EXPECT_NE(text.find(damaged + ": tensor tokenizer.sentencepiece: "), std::string::npos) << text;
}

TEST(Checkpoint, survives_no_cut) {
  const Saved saved;
  std::ifstream in(saved.file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string cut = saved.folder.file("cut.safetensors");
    std::ofstream(cut, std::ios::binary) << bytes.substr(0, length);
    EXPECT_NE(message_of([&] { Checkpoint{cut}; }).find(cut), std::string::npos) << length;
  }
}

}  // namespace
}  // namespace everglow::gnmt
